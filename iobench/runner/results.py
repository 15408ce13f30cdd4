"""A run's directory, and its record while it is made: begun, added to, and written."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

from ..base.errors import (
    InterruptedRun,
    IobenchError,
    StorageError,
    UnwrittenError,
    failure_text,
    kept_in,
    told_after,
)
from ..base.filesystem import describe_path, sync_names
from ..base.interrupts import defer_interrupts
from ..base.processes import in_own_process
from ..data.dataset import ResolvedSpec, cheaper_codecs
from ..judge.figures.events import Events
from ..judge.figures.metrics import repetition_metrics, uncounted_reads
from ..judge.rebuild import conclude
from ..judge.statistics import of_all
from ..load.build import offered, planned_ahead
from ..load.choose import make_reader, reads_ahead
from ..load.order import BatchPlan, epoch_order, rank_share
from ..record.host import Host, ModelWork, StorageFacts
from ..record.job import DatasetFacts, LoaderFacts, WorkloadFacts
from ..record.manifest import Manifest
from ..record.run import (
    RUN_FILE,
    FileDigest,
    Finding,
    Job,
    RunRecord,
    ServingRecord,
    TrainingRecord,
)
from ..record.training import FittedFacts, LocalCacheFacts, Repetition, TrainingRun
from ..settings.base import fitting, head, save_record
from ..settings.workload import AcceleratorSpec, Subject
from ..storage import is_local, rewrapped
from ..storage.base import Storage, Versioned, innermost
from ..storage.local.uring import refused
from ..storage.s3.storage import S3Storage
from .agent import HostAgent, Used
from .plan import Plan

_ROOM_BYTES = 1 << 20
"""Written in a new directory and removed again, so that a full disk is told before a run."""


def new_directory(results: Path, name: str) -> Path:
    """Make a fresh run directory; an existing one is never reused."""
    directory = results / fresh_name(name)
    make_directory(directory)
    return directory


@contextmanager
def run_directory(results: Path, name: str) -> Iterator[Path]:
    """A fresh run directory, which goes again if the body fails before anything is in it.

    Raises IobenchError.
    """
    with removed_if_empty(results / fresh_name(name)) as directory:
        yield directory


@contextmanager
def removed_if_empty(directory: Path) -> Iterator[Path]:
    """A new directory, which goes again if the body fails before anything is in it."""
    make_directory(directory)
    try:
        yield directory
    except BaseException:
        with suppress(OSError):  # it is not empty
            directory.rmdir()
        raise


def fresh_name(name: str) -> str:
    """The name with the time and two random bytes."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{name}-{stamp}-{secrets.token_hex(2)}"


def make_directory(directory: Path, *, fresh: bool = True) -> None:
    """Make a run directory, or a part of one, with a durable name.

    ``fresh``: there is none yet; it goes again if there is no room for a record in it. Raises
    IobenchError.
    """
    made = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=not fresh)
        for folder in made:
            sync_names(folder.parent)
        if fresh:
            with TemporaryFile(dir=directory) as file:
                file.write(os.urandom(_ROOM_BYTES))
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        if directory in made:
            with suppress(OSError):
                directory.rmdir()
        link = next((each for each in reversed(made) if each.is_symlink()), None)
        why = error.strerror if link is None else f"what the link {link} points to is not there"
        raise IobenchError(
            f"cannot make the run directory {directory}: {why}",
            remedy="choose another with --results",
        ) from error


def storage_facts(storage: Storage) -> StorageFacts:
    """The storage's own description. Raises IobenchError if a plug-in's has a wrong type."""
    return fitting(f"the description of {storage.url}", StorageFacts, storage.facts())


def dataset_facts(manifest: Manifest, *, location: str, origin: str | None = None) -> DatasetFacts:
    """What a record says of a dataset, whose manifest is at ``location``."""
    dataset = ResolvedSpec.of(manifest)
    return DatasetFacts(
        spec=manifest.spec,
        location=location,
        origin=origin,
        id=manifest.header.id,
        samples=manifest.sample_count,
        shards=manifest.shard_count,
        stored_bytes=manifest.header.stored_bytes,
        sample_bytes_mean=manifest.mean_stored_bytes,
        blocks=dataset.blocks,
        cheaper_codecs=cheaper_codecs(dataset),
    )


def write_document(directory: Path, doc: RunRecord) -> None:
    """Write ``run.json`` atomically."""
    save_record(directory / RUN_FILE, doc)


MAX_VERSIONS = 20_000
"""Limit for the objects whose versions are compared; listing more takes too long."""


def _not_engine(plan: Plan) -> str:
    """Why threads read in the place of the engine that the workload names, or ''."""
    engine, storage = plan.workload.reader.engine, plan.storage
    if engine == "event_loop" and isinstance(storage, S3Storage):
        return storage.not_wired()
    return (refused() or "") if engine == "io_uring" else ""


def _local_cache(plan: Plan) -> LocalCacheFacts | None:
    """What is known of the local cache before it is used."""
    cache = plan.cache
    if cache is None:
        return None
    stored = plan.manifest.header.stored_bytes
    return LocalCacheFacts(
        directory=str(cache.files.root.parent),
        fs_type=describe_path(cache.files.root, write_probe=False).get("fs_type"),
        direct=cache.files.direct,
        share=min(1.0, cache.limit / stored) if stored else None,
        kept=str(cache.files.root) if cache.keep else "",
    )


def begin_record(
    plan: Plan, agent: HostAgent, *, run_id: str, command: Sequence[str], rules: str
) -> TrainingRecord:
    """The record before any measurement: complete specifications and fingerprints."""
    manifest, loading = plan.manifest, plan.workload.loader
    told = []  # (rule, evidence)
    if (
        not plan.uncached
        and plan.workload.reader.direct == "auto"
        and not plan.workload.reader.mmap
        and plan.workload.cache == "cold"
    ):
        why = (
            "the storage has no O_DIRECT"
            if not plan.subject.reads_itself
            else f"the loader '{loading.kind}' opens files without O_DIRECT"
        )
        told.append(("reader.buffered", f"{why}, so reads go through the page cache"))
    if why_not := _not_engine(plan):
        told.append(("reader.engine", f"{why_not}, so that threads read in its place"))
    if plan.engine_choice:
        told.append(("reader.engine", plan.engine_choice))
    if manifest.header.origin:
        where = f"the samples were read at {plan.storage.url}, by the manifest at {plan.data}"
        told.append(("data.origin", where))
    requests, ahead = _offer(plan)
    held = 0 if plan.held_out is None else int(manifest.shards["samples"][plan.held_out].sum())
    return new_record(
        TrainingRecord,
        run_id,
        command,
        rules=rules,
        findings=[Finding(rule=rule, level="info", evidence=text) for rule, text in told],
        hosts=agent.describe_all(),
        storage=storage_facts(plan.storage),
        job=TrainingRun(
            accelerators=plan.accelerators,
            local_cache=_local_cache(plan),
            workload=WorkloadFacts.model_validate(plan.workload.model_dump(mode="json")),
            dataset=dataset_facts(
                manifest, location=location_of(plan), origin=plan.origin
            ).model_copy(update={"held_out": held}),
            loader=LoaderFacts(
                direct=plan.direct,
                access="sequential" if plan.sequential else "random",
                kind=loading.kind,
                workers=loading.workers,
                transport=loading.transport,
                reads_ahead=reads_ahead(plan.workload.reader, manifest),
                requests_per_batch=requests,
                prefetched_samples=(
                    loading.workers * loading.prefetch_factor + max(1, loading.workers) * ahead
                )
                * plan.workload.batch_size,
            ),
        ),
    )


R = TypeVar("R", bound=RunRecord)


def new_record(
    kind: type[R],
    run_id: str,
    command: Sequence[str],
    *,
    hosts: list[Host],
    storage: StorageFacts,
    job: Job,
    created: str | None = None,
    rules: str = "quick",
    findings: Sequence[Finding] = (),
) -> R:
    """A record of a kind, in which nothing has gone wrong yet, and nothing is judged."""
    return kind(
        **head(command, created),
        run_id=run_id,
        status="ok",
        validity="unknown",
        rules=rules,
        findings=list(findings),
        hosts=hosts,
        storage=storage,
        job=job,
    )


@dataclass
class Ending:
    """How a run ended. ``failure`` is raised when its document is written."""

    failure: Exception | None = None

    def write(
        self,
        doc: R,
        directory: Path,
        *,
        files: Callable[[], dict[str, FileDigest]] = dict,
        explain: Callable[[Exception], Exception] = lambda failure: failure,
    ) -> R:
        """Conclude the record, and write it after the ``files`` that it names; return it.

        After a failure a further interrupt is dropped, and the failure is raised with what
        ``explain`` adds to it. A record whose files can't be written, or which can't be judged, is
        one that has failed. If it can't be written itself, that is told after the failure.
        """
        with defer_interrupts(discard=self.failure is not None):
            with failures_recorded(doc) as writing:
                doc.files = files()
            with failures_recorded(doc) as judging:
                doc = conclude(doc)
            failure = self.failure or writing.failure or judging.failure
            try:
                with told_after(failure):
                    write_document(directory, doc)
            except Exception as error:
                raise explain(error) from error.__cause__
        if failure is not None:
            if isinstance(failure, UnwrittenError):
                failure.record = doc
            raise kept_in(explain(failure), directory)
        return doc


@contextmanager
def failures_recorded(doc: RunRecord) -> Iterator[Ending]:
    """An interrupt or a failure of the body is written into the record, and goes no further.

    That includes exceptions that nobody expects, since what was measured is not to be lost.
    """
    ending = Ending()
    try:
        yield ending
    except KeyboardInterrupt:
        doc.status = "interrupted"
        ending.failure = InterruptedRun("interrupted")
    except Exception as error:
        doc.status, doc.error = "failed", failure_text(error)
        ending.failure = error


def with_figures(
    context: Repetition, events: Events, *, used: Used | None, subject: Subject, workers: int
) -> Repetition:
    """A repetition with all that follows from its events, its epochs and the host's counters."""
    found = context.model_copy(
        update={
            "throttled_s": used.throttled_s if used is not None else None,
            "nfs": used.nfs if used is not None else None,
            "resources": used.resources if used is not None else None,
            "residency_before": of_all(max, (each.residency_before for each in context.epochs)),
            "not_measured": uncounted_reads(subject) | context.not_measured,
        }
    )
    return repetition_metrics(events, found, round_steps=max(1, workers), subject=subject)


def add_plan(doc: TrainingRecord, plan: Plan, *, asked: Plan) -> None:
    """Record the workload of a plan that was fitted to a budget after the record was begun.

    ``asked``: the plan before that. What differs is the size of the sample, and no setting.
    """
    doc.job.workload = WorkloadFacts.model_validate(plan.workload.model_dump(mode="json"))
    steps, epochs = asked.workload.max_steps, asked.workload.epochs
    same = (steps, epochs) == (plan.workload.max_steps, plan.workload.epochs)
    doc.job.fitted = None if same else FittedFacts(asked_max_steps=steps, asked_epochs=epochs)


def _offer(plan: Plan) -> tuple[float, int]:
    """Requests of a batch that iobench's own reader issues at once, and batches it reads ahead.

    By a few batches of the first rank's first epoch; nothing is read.
    """
    reader = make_reader(plan.manifest, plan.storage, plan.workload.reader)
    shards = plan.manifest.shards
    order = epoch_order(
        shards["first"],
        shards["samples"],
        sequential=plan.sequential,
        shuffle=plan.workload.reader.shuffle,
        seed=plan.seed,
        epoch=0,
    )
    size = plan.workload.batch_size
    share = rank_share(
        order, rank=0, world=plan.accelerators, batch_size=size, tail=plan.workload.reader.tail
    )
    batches = BatchPlan(share, batch_size=size)
    streams = max(1, plan.workload.loader.workers)
    ahead = planned_ahead(reader, plan.workload.reader, batches, streams=streams)
    return offered(reader, batches)[1], 0 if plan.subject.reads_itself else ahead


def shard_versions(plan: Plan) -> dict[str, str] | str:
    """``versions_of`` all shards."""
    if plan.manifest.shard_count > MAX_VERSIONS:
        return f"more than {MAX_VERSIONS} objects"
    return versions_of(plan.keys, plan.storage, plan.manifest.folder())


def versions_of(keys: Iterable[str], storage: Storage, folder: str = "") -> dict[str, str] | str:
    """A token for each object that changes when it does; or the reason why there is none."""
    inner = innermost(storage)
    if not isinstance(inner, Versioned):
        return "this storage does not report versions of objects"
    try:
        found = inner.versions(folder)
    except StorageError as error:
        return error.what
    return {key: found.get(key, "") for key in keys}


def location_of(plan: Plan) -> str:
    """Location of the manifest, which does not depend on the current directory."""
    return rewrapped(plan.data, plan.home.url) if is_local(plan.data) else plan.data


def add_work(doc: TrainingRecord, spec: AcceleratorSpec) -> None:
    """Add what the trained model computes for a sample, once, when its device is known."""
    job = doc.job
    if job.trained is None or job.work is not None:
        return
    from ..accelerate.recording import work_of  # slow to import, and rarely needed

    device, ranks = job.trained.device, job.accelerators
    try:
        job.work = in_own_process(
            lambda: work_of(spec, device, ranks),
            failed=lambda code: IobenchError(f"the process that counted them ended with {code}"),
        )
    except IobenchError as error:
        why = f"the operations could not be counted: {error.what}"
        job.work = ModelWork(not_measured={"flops_per_sample": why})


def add_changes(
    doc: TrainingRecord | ServingRecord, plan: Plan, before: dict[str, str] | str
) -> None:
    """Add which shards have changed since their versions were ``before``, or why nobody knows."""
    update = changes_since(before, lambda: shard_versions(plan))
    doc.job.dataset = doc.job.dataset.model_copy(update=update)


def changes_since(
    before: dict[str, str] | str, look: Callable[[], dict[str, str] | str]
) -> dict[str, object]:
    """What a record says of objects whose versions were ``before``; ``look`` finds them now."""
    after = before if isinstance(before, str) else look()
    if isinstance(before, str) or isinstance(after, str):
        return {"changed": None, "changed_unknown": after}
    return {"changed": [key for key in before if before[key] != after[key]]}


_KEPT = (
    *("shared_samples", "compared_samples"),
    *("worker_shared_samples", "worker_compared_samples"),
)


def add_loader_facts(doc: TrainingRecord, found: LoaderFacts) -> None:
    """Add what a phase found out about the loader; a later phase replaces earlier facts."""
    facts = {name: getattr(found, name) for name in found.model_fields_set}
    before = doc.job.loader.user
    if before is not None and found.user is not None:
        # What was found out before the run, off the clock.
        kept = {key: getattr(before, key) for key in _KEPT}
        reasons = {key: why for key, why in found.user.not_measured.items() if key not in _KEPT}
        reasons |= {key: why for key, why in before.not_measured.items() if key in _KEPT}
        facts["user"] = found.user.model_copy(update={**kept, "not_measured": reasons})
    doc.job.loader = doc.job.loader.model_copy(update=facts)

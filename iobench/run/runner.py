"""The story of a run: plan, calibrate each stage alone, measure all stages together, find the maximum, conclude, write down.

Whatever happens on the way (a failing disk, a dead worker, Ctrl-C), what was recorded until then is written.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import __version__
from ..analyse.metrics import repetition_metrics
from ..analyse.rebuild import conclude
from ..errors import InterruptedRun, IobenchError
from ..load import make_reader
from ..measure import host, resources, timeline
from ..registry import FORMATS
from ..spec.result import Finding, Repetition, RunDocument
from ..storage.base import Files, Versioned
from ..storage.catalog import innermost
from . import calibrate
from .cache import prepare_cache
from .calibrate import Calibration, joined
from .findmax import find_max
from .plan import Plan
from .progress import Progress, Silent
from .ranks import Outcome, Phase, run_phase

RUN_FILE = "run.json"
EVENTS_FILE = "events.parquet"
MOST_VERSIONS = 20_000  # objects whose versions are compared: more take longer to list than that is worth


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run, beside what."""

    results: Path
    rules: str = "quick"
    command: tuple[str, ...] = ()
    calibration_s: float = 3.0  # for each ceiling; 0 leaves calibration out
    find_max: bool = False


def run(plan: Plan, options: Options, progress: Progress | None = None) -> tuple[RunDocument, Path]:
    """Run the plan; the concluded document and the run directory. Raises InterruptedRun or the failure, after both were written."""
    progress = progress or Silent()
    make_reader(plan.manifest, plan.storage, plan.workload.reader)  # refuses what the data can't give before anything is written
    directory = new_directory(options.results, plan.workload.name)
    doc = describe(plan, options, run_id=directory.name)
    calibration = Calibration()
    failure: IobenchError | None = None
    try:
        before = _versions(plan)
        if options.calibration_s > 0:
            _calibrate(plan, options, directory, calibration, doc, progress)
        for number in range(plan.repetitions):
            with _timed(doc, "measure", progress, f"repetition {number + 1} of {plan.repetitions}"):
                _repeat(plan, number, doc, calibration, progress)
        if options.find_max:
            with _timed(doc, "find_max", progress, "finding the largest number of accelerators"):
                doc.find_max = find_max(plan, doc, calibration, progress)
        _compare_versions(plan, before, doc)
    except KeyboardInterrupt as interrupt:
        with undisturbed():
            _keep_partial(interrupt, plan, doc, calibration)
        doc.status = "interrupted"
        failure = InterruptedRun(f"interrupted; what was measured until then is in {directory}")
    except IobenchError as error:
        doc.status = "failed"
        doc.error = str(error)
        failure = error
    doc.ceilings = calibration.ceilings
    doc.loader = {**doc.loader, **calibration.loader}
    with undisturbed():
        doc = conclude(doc)
        timeline.write_events(directory / EVENTS_FILE, calibration.parts)
        write_document(directory, doc)
    if failure is not None:
        raise failure
    return doc, directory


def _calibrate(plan: Plan, options: Options, directory: Path, calibration: Calibration, doc: RunDocument, progress: Progress) -> None:
    """The five ceilings, cheapest evidence first."""
    seconds = options.calibration_s
    with _timed(doc, "calibrate", progress, "ceiling: raw storage (fio)"):
        calibration.ceilings["storage_raw"] = calibrate.measure_raw(plan, directory, seconds=seconds)
    with _timed(doc, "calibrate", progress, "ceiling: fetch"):
        calibrate.measure_fetch(plan, calibration, seconds=seconds, tick=progress.steps)
    if not isinstance(plan.storage, Files):
        with _timed(doc, "calibrate", progress, "ceiling: raw storage (more reads in flight)"):
            calibrate.measure_parallel(plan, calibration, seconds=seconds, tick=progress.steps)
    with _timed(doc, "calibrate", progress, "ceiling: prep"):
        calibrate.measure_prep(plan, calibration, seconds=seconds, tick=progress.steps)
    with _timed(doc, "calibrate", progress, "ceiling: harness"):
        calibrate.measure_harness(plan, calibration, seconds=seconds, tick=progress.steps)
    with _timed(doc, "calibrate", progress, "ceiling: accelerator"):
        calibrate.measure_accelerator(plan, calibration, seconds=min(seconds, 2.0))


def _repeat(plan: Plan, number: int, doc: RunDocument, calibration: Calibration, progress: Progress) -> None:
    """One repetition: all stages together, with a seed of its own."""
    workload = plan.workload
    phase = Phase(
        name="measure",
        reader=make_reader(plan.manifest, plan.storage, workload.reader),
        reading=workload.reader,
        loading=workload.loader,
        accelerator=workload.accelerator,
        accelerators=plan.accelerators,
        batch_size=workload.batch_size,
        seed=plan.seed + number,
        repetition=number,
        epochs=workload.epochs,
        max_steps=workload.max_steps,
    )
    root = _local_root(plan.storage)
    before = resources.Snapshot.take(root)
    try:
        outcome = run_phase(phase, prepare=lambda epoch: prepare_cache(plan, epoch), tick=progress.steps)
    except KeyboardInterrupt as interrupt:
        interrupt.phase = phase  # type: ignore[attr-defined]
        raise
    used = resources.diff(before, resources.Snapshot.take(root))
    doc.loader = {**doc.loader, **outcome.loader}
    _record(plan, phase, outcome, doc, calibration, used)


def _local_root(storage: Any) -> Path | None:
    """The directory behind a storage and whatever wraps it; None where it is no directory of this host."""
    while hasattr(storage, "inner"):
        storage = storage.inner
    return getattr(storage, "root", None)


def _record(plan: Plan, phase: Phase, outcome: Outcome, doc: RunDocument, calibration: Calibration, used: dict[str, Any]) -> None:
    residencies = [epoch.residency_before for epoch in outcome.epochs]
    known = [value for value in residencies if value is not None]
    context = Repetition(
        seed=phase.seed,
        accelerators=phase.accelerators,
        epochs=outcome.epochs,
        complete=outcome.complete,
        cpu_s=outcome.cpu_s,
        throttled_s=used.get("throttled_s"),
        nfs=used.get("nfs"),
        residency_before=max(known) if known and len(known) == len(residencies) else None,
    )
    calibration.parts += [("measure", phase.repetition, rank, columns) for rank, columns in sorted(outcome.columns.items())]
    doc.repetitions.append(repetition_metrics(joined(outcome), context))


def _keep_partial(interrupt: KeyboardInterrupt, plan: Plan, doc: RunDocument, calibration: Calibration) -> None:
    """Ranks that were interrupted in the middle of a repetition have sent what they recorded."""
    outcome, phase = getattr(interrupt, "outcome", None), getattr(interrupt, "phase", None)
    if phase is not None and outcome is not None and outcome.columns:
        _record(plan, phase, outcome, doc, calibration, {})


def _versions(plan: Plan) -> dict[str, str] | str:
    """A token for each shard that changes when the shard does; or why there is none."""
    storage = innermost(plan.storage)
    if not isinstance(storage, Versioned):
        return "this storage tells no versions"
    if plan.manifest.shard_count > MOST_VERSIONS:
        return f"more than {MOST_VERSIONS} objects"
    found = storage.versions(plan.manifest.folder())
    return {key: found.get(key, "") for key in plan.keys}


def _compare_versions(plan: Plan, before: dict[str, str] | str, doc: RunDocument) -> None:
    if isinstance(before, str):
        doc.dataset |= {"changed": None, "changed_unknown": before}
        return
    after = _versions(plan)
    doc.dataset["changed"] = [key for key in before if before[key] != after[key]] if isinstance(after, dict) else None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without Ctrl-C: pressed once more, it must not cost what was measured."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets Ctrl-C, or may say what it does
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)


@contextmanager
def _timed(doc: RunDocument, name: str, progress: Progress, title: str) -> Iterator[None]:
    started = time.monotonic()
    progress.phase(title)
    try:
        yield
    finally:
        doc.timings[name] = doc.timings.get(name, 0.0) + time.monotonic() - started


def describe(plan: Plan, options: Options, *, run_id: str) -> RunDocument:
    """The document before anything was measured: complete specifications and fingerprints."""
    manifest, loading = plan.manifest, plan.workload.loader
    findings = []
    if not plan.uncached and plan.workload.reader.direct == "auto" and not plan.workload.reader.mmap and plan.workload.cache == "cold":
        findings.append(
            Finding(rule="reader.buffered", level="info", evidence="the storage has no O_DIRECT, so reads go through the page cache")
        )
    return RunDocument(
        iobench_version=__version__,
        run_id=run_id,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(options.command),
        status="ok",
        validity="unknown",
        rules=options.rules,
        accelerators=plan.accelerators,
        findings=findings,
        workload=plan.workload.model_dump(mode="json"),
        dataset={
            "spec": manifest.spec.model_dump(mode="json"),
            "id": manifest.header.id,
            "samples": manifest.sample_count,
            "shards": manifest.shard_count,
            "stored_bytes": manifest.header.stored_bytes,
            "sample_bytes_mean": manifest.mean_stored_bytes,
            "blocks": bool(getattr(FORMATS.load(manifest.spec.format), "blocks", False)),
        },
        host=host.fingerprint(),
        storage=plan.storage.describe(),
        loader={
            "direct": plan.direct,
            "access": "sequential" if plan.sequential else "random",
            "workers": loading.workers,
            "transport": loading.transport,
            "prefetched_samples": loading.workers * loading.prefetch_factor * plan.workload.batch_size,  # of one rank
        },
    )


def new_directory(results: Path, name: str) -> Path:
    """A fresh run directory; an existing one is never reused."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    directory = results / f"{name}-{stamp}-{secrets.token_hex(2)}"
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise IobenchError(
            f"cannot make the run directory {directory}: {error.strerror}", remedy="choose another with --results"
        ) from error
    return directory


def write_document(directory: Path, doc: RunDocument) -> None:
    """``run.json``, atomically."""
    path = directory / RUN_FILE
    part = directory / f".{RUN_FILE}.part"
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(doc.model_dump_json(indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise IobenchError(f"cannot write {path}: {error.strerror}") from error

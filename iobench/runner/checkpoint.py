"""The story of a checkpoint study: claim the target, build the states, save and save again, restore cold, conclude, write down.

Whatever happens on the way (a full disk, a rank that dies, Ctrl-C), what was measured until then is written, and the checkpoints that are
complete stay complete.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import __version__
from ..analyse.verdict.rebuild import conclude
from ..checkpoint.base import Job
from ..checkpoint.catalog import CheckpointRoot
from ..errors import InterruptedRun, IobenchError
from ..interrupts import undisturbed
from ..measure import host
from ..schema.checkpoint import Restore, Study
from ..schema.result import RunDocument
from ..storage.base import Cached
from ..storage.locks.lock import Lease
from ..storage.scratch import scratch
from .checkpoint_plan import StudyPlan
from .checkpoint_ranks import CheckpointRank
from .directory import new_directory, write_document
from .processes import Ranks
from .progress import Progress, Silent
from .savebook import HEAD_START_NS, SaveBook


def run_study(
    plan: StudyPlan,
    *,
    results: Path,
    rules: str = "quick",
    command: Sequence[str] = (),
    keep_data: bool = False,
    break_lock: bool = False,
    progress: Progress | None = None,
) -> tuple[RunDocument, Path]:
    """Run the plan; the concluded document and its directory.

    Steps are numbered on from the latest that is in the target. The study's own checkpoints are
    removed at the end, but for the last with ``keep_data``; others stay. Raises TargetRefusedError
    where the target is another's (TargetHeldError: another process works there), before anything is
    written; InterruptedRun or the failure after the document was, and complete checkpoints are then
    left, as a training's would be.
    """
    root = CheckpointRoot.open(plan.url)
    with root.held("checkpoint", break_lock=break_lock) as lease:
        return _study(
            plan,
            root,
            lease,
            results=results,
            rules=rules,
            command=command,
            keep_data=keep_data,
            progress=progress or Silent(),
        )


def _study(
    plan: StudyPlan,
    root: CheckpointRoot,
    lease: Lease,
    *,
    results: Path,
    rules: str,
    command: Sequence[str],
    keep_data: bool,
    progress: Progress,
) -> tuple[RunDocument, Path]:
    """The story itself, in a target that is held."""
    directory = new_directory(results, f"checkpoint-{plan.spec.model}")
    study = begin_study(plan)
    doc = RunDocument(
        iobench_version=__version__,
        run_id=directory.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(command),
        status="ok",
        validity="unknown",
        rules=rules,
        accelerators=plan.spec.ranks,
        workload={},
        dataset={},
        host=host.fingerprint(),
        storage=root.storage.facts(),
        checkpoint=study,
    )
    failure: IobenchError | None = None
    started = time.monotonic()
    before = root.last_number()
    conductor = Conductor(plan, root, study)
    try:
        try:
            conductor.start(progress)
            for number in range(1, plan.spec.count + 1):
                progress.phase(f"save {number} of {plan.spec.count}")
                lease.check()
                conductor.save(before + number)
            conductor.drain()
            doc.timings["save"] = time.monotonic() - started
            started = time.monotonic()
            for number in range(1, plan.spec.restore_count + 1):
                progress.phase(f"restore {number} of {plan.spec.restore_count}")
                lease.check()
                conductor.restore()
            doc.timings["restore"] = time.monotonic() - started
        finally:
            conductor.end()
    except KeyboardInterrupt:
        doc.status = "interrupted"
        failure = InterruptedRun(f"interrupted; what was measured until then is in {directory}")
    except IobenchError as error:
        doc.status, doc.error = "failed", str(error)
        failure = error
    with undisturbed(swallow=failure is not None):
        doc = conclude(doc)
        write_document(directory, doc)
    if failure is not None:
        raise with_leftovers(failure, root)
    if keep_data:
        root.keep(1, above=before)
    else:
        root.leave(above=before)
    return doc, directory


def begin_study(plan: StudyPlan) -> Study:
    """The record before anything was measured."""
    return Study(
        model=plan.spec.model,
        writer=plan.spec.writer,
        ranks=plan.spec.ranks,
        bytes=plan.bytes,
        full_bytes=plan.full.state_bytes,
        files=0,
        tensors=sum(share.tensors for share in plan.shares),
        bytes_per_rank=[share.nbytes for share in plan.shares],
        largest_rank_bytes=max(share.nbytes for share in plan.shares),
        scaling=plan.scaling,
        parallelism=asdict(plan.parallelism),
        spec=plan.spec.model_dump(mode="json"),
        meaning={"asked": plan.meaning},
    )


def with_leftovers(failure: IobenchError, root: CheckpointRoot) -> IobenchError:
    """``failure``, with what lies in the target now: the latest complete checkpoint, the partial ones, and how to remove them."""
    try:
        latest, partial = root.latest(), root.partial()
    except IobenchError:
        return failure  # the storage can't even tell: its own failure says more
    if latest is None and not partial:
        return failure
    left = [
        f"the latest complete checkpoint is {latest.folder}"
        if latest
        else "no checkpoint is complete"
    ]
    left += [f"partial: {', '.join(target.folder for target in partial)}"] if partial else []
    failure.remedy = "; ".join(
        filter(None, [failure.remedy, *left, f"remove them: iobench clean {root.url}"])
    )
    return failure


class Conductor:
    """Tells the ranks of a study what to do, and takes down what they report."""

    def __init__(self, plan: StudyPlan, root: CheckpointRoot, study: Study) -> None:
        self.plan, self.root, self.study = plan, root, study
        self.world = plan.spec.ranks
        self.book = SaveBook(root, plan.spec, study.saves)
        self._held = ExitStack()
        self._meeting = self._held.enter_context(scratch("ranks"))
        self._ranks = Ranks(self.world, self._body)
        self._overlaps: dict[int, list[dict[str, list[float]]]] = {}

    def _body(self, rank: int, pipe: Any) -> None:
        job = Job(rank=rank, world=self.world, rendezvous=f"file://{self._meeting}/meet")
        CheckpointRank(job, self.plan.spec, self.root, self.plan.builder(rank), pipe).run()

    def start(self, progress: Progress) -> None:
        progress.phase("building the state")
        self._ranks.start()
        self._until_ready()

    def save(self, step: int) -> None:
        """One save of all ranks, and the steps after it."""
        self._command("prepare", step)
        self._until_ready()
        self._command("save", step, self.book.begin(step))
        self._overlaps[step] = self._until_ready()

    def drain(self) -> None:
        """Wait for what an asynchronous writer is still doing, and say what its saves did to the steps beside them."""
        self._command("drain")
        self._until_ready()
        for save in self.study.saves:
            steps = self._overlaps.get(save.step, [])
            save.step_overlapped_s = _mean(
                second for rank in steps for second in rank["overlapped"]
            )
            save.step_alone_s = _mean(second for rank in steps for second in rank["alone"])

    def restore(self) -> None:
        """The latest checkpoint, cold, into wiped tensors."""
        step = self.book.committed[-1]
        residency, how = self._evict(step)
        self._command("restore", step, time.monotonic_ns() + HEAD_START_NS)
        parts = self._gather("restored")
        times = [part["wall_s"] for part in parts]
        cpu = [part["cpu_s"] for part in parts]
        self.study.restores.append(
            Restore(
                step=step,
                wall_s=max(times),
                first_done_s=min(times),
                bytes=sum(part["bytes"] for part in parts),
                cpu_s=None if None in cpu else sum(cpu),
                residency_before=residency,
                residency_how=how,
                verified=all(part["verified"] for part in parts),
                rank_s=times,
            )
        )

    def end(self) -> None:
        with undisturbed():
            self._ranks.end(("stop",))
            self._held.close()

    def _command(self, *message: Any) -> None:
        for rank in range(self.world):
            self._ranks.send(rank, message)

    def _until_ready(self) -> list[dict[str, list[float]]]:
        return [value for value in self._gather("ready") if value]

    def _gather(self, awaited: str) -> list[Any]:
        """One message of this kind from each rank; saves that become durable meanwhile are taken down."""
        answers: dict[int, Any] = {}
        while len(answers) < self.world:
            with undisturbed():  # what a rank has told is taken down
                for rank, (kind, value) in self._ranks.receive(
                    [rank for rank in range(self.world) if rank not in answers]
                ):
                    if kind == awaited:
                        answers[rank] = value
                    else:
                        self.book.take_down(rank, *value)
        return [answers[rank] for rank in sorted(answers)]

    def _evict(self, step: int) -> tuple[float | None, str]:
        storage, keys = self.root.storage, self.root.step(step).data_keys()
        if not isinstance(storage, Cached):
            return None, "not measured: this storage has no page cache on this host"
        storage.evict(keys)
        residency = storage.residency(keys)
        return residency.ratio, residency.how


def _mean(seconds: Iterable[float]) -> float | None:
    values = list(seconds)
    return sum(values) / len(values) if values else None

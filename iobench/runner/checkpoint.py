"""A checkpoint study: claim the target, build the states, save, restore cold, conclude, write.

Whatever happens on the way (a full disk, a rank that dies, Ctrl-C), what was measured until then is
written, and the checkpoints that are complete stay complete.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from .. import __version__
from ..analyse.verdict.rebuild import conclude
from ..checkpoint.catalog import CheckpointRoot
from ..errors import InterruptedRun, IobenchError, kept_in
from ..interrupts import defer_interrupts
from ..schema.checkpoint import Asked, CheckpointRun, Restore, Study, StudySpec
from ..schema.record import CheckpointRecord
from ..schema.tags import tags
from ..storage.locks.lock import Lease
from .agent import HostAgent
from .budget import Budget
from .checkpoint_plan import StudyPlan
from .conductor import Script, Scripted, conduct
from .facts import new_directory, storage_facts, write_document
from .messages import (
    Done,
    Drain,
    Last,
    Prepare,
    PrepareRestore,
    Report,
    Restored,
    RestoreNow,
    Saved,
    SaveNow,
)
from .progress import Progress, Silent, expect
from .study import RanksHere, SaveBook, StudyRanks


def run_study(
    plan: StudyPlan,
    *,
    results: Path,
    rules: str = "quick",
    command: Sequence[str] = (),
    keep_data: bool = False,
    break_lock: bool = False,
    progress: Progress | None = None,
    ranks: StudyRanks | None = None,
    budget: Budget | None = None,
) -> tuple[CheckpointRecord, Path]:
    """Run the plan; return the concluded document and its directory.

    ``budget``: no save or restore begins for which there is no time, but one of each is made.

    ``ranks``: by default they are processes of this host.

    Step numbers continue from the latest in the target. The study's own checkpoints are removed at
    the end, except the last one with ``keep_data``; others stay. Raises TargetRefusedError if the
    target belongs to somebody else (TargetHeldError: another process works there), before anything
    is written. Raises InterruptedRun or the failure after the document was written; complete
    checkpoints then stay, as those of a training would.
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
            ranks=ranks or RanksHere(),
            budget=budget or Budget(),
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
    ranks: StudyRanks,
    budget: Budget,
) -> tuple[CheckpointRecord, Path]:
    """Carry out the study in a target that is held."""
    directory = new_directory(results, f"checkpoint-{plan.spec.model}")
    study = begin_study(plan, CheckpointRun)
    study.budget_s = budget.seconds
    agent = ranks.agent(root)
    doc = CheckpointRecord(
        iobench_version=__version__,
        run_id=directory.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(command),
        tags=tags(),
        status="ok",
        validity="unknown",
        rules=rules,
        hosts=agent.describe_all(),
        storage=storage_facts(root.storage),
        job=study,
    )
    failure: IobenchError | None = None
    started = time.monotonic()
    before = root.last_number()
    job = StudyJob(plan, root, agent, doc.job, ranks)

    def begin(what: str, number: int, count: int, began: float) -> None:
        """Begin a save or a restore. Those to come should take as long as those so far."""
        if number > 1:
            each = (time.monotonic() - began) / (number - 1)
            restores = what == "save" and plan.spec.restore_count > 0
            expect(progress, each * (count - number + 1), more=restores)
        else:
            expect(progress, None)
        progress.phase(f"{what} {number} of {count}")

    def is_over(number: int, began: float, *, waiting: int) -> bool:
        """Whether a budget has no time for this save or restore, and ``waiting`` ones after it."""
        each = (time.monotonic() - began) / max(1, number - 1)
        return number > 1 and not budget.fits(each * (1 + waiting))

    def script() -> Script:
        saving = time.monotonic()
        half = min(plan.spec.restore_count, plan.spec.count)
        for number in range(1, plan.spec.count + 1):
            # As many restores as saves are asked for, and each should take about as long.
            if is_over(number, saving, waiting=min(half, number)):
                break
            begin("save", number, plan.spec.count, saving)
            lease.check()
            yield from job.save(before + number)
        yield from job.drain()
        saved = time.monotonic()
        doc.timings["save"] = saved - started
        for number in range(1, plan.spec.restore_count + 1):
            if is_over(number, saved, waiting=0):
                break
            begin("restore", number, plan.spec.restore_count, saved)
            lease.check()
            yield from job.restore()
        doc.timings["restore"] = time.monotonic() - saved

    try:
        ranks.begin(doc)
        ranks.check_place(plan, root)
        progress.phase("building the state")
        job.run(script())
    except KeyboardInterrupt:
        doc.status = "interrupted"
        failure = InterruptedRun(f"interrupted; what was measured until then is in {directory}")
    except IobenchError as error:
        doc.status, doc.error = "failed", str(error)
        failure = error
    ranks.end(doc)
    with defer_interrupts(discard=failure is not None):
        doc = conclude(doc)
        write_document(directory, doc)
    if failure is not None:
        raise kept_in(with_leftovers(failure, root), directory)
    if keep_data:
        root.keep(1, above=before)
    else:
        root.leave(above=before)
    return doc, directory


S = TypeVar("S", bound=Study)


def begin_study(plan: StudyPlan, kind: type[S]) -> S:
    """The record before anything was measured."""
    return kind(
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
        spec=StudySpec.model_validate(plan.spec.model_dump(mode="json")),
        meaning=Asked(asked=plan.training),
    )


def with_leftovers(failure: IobenchError, root: CheckpointRoot) -> IobenchError:
    """Return ``failure`` with a remedy that says what is in the target, and how to remove it.

    That is the latest complete checkpoint, and the incomplete ones.
    """
    try:
        latest, partial = root.latest(), root.partial()
    except IobenchError:
        return failure  # the storage fails here, too: the first failure says more
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


class StudyJob:
    """The commands for the ranks of a study, and the records of their reports.

    ``save``, ``drain`` and ``restore`` are parts of a script for ``run``. Saves that become durable
    while something else is going on are recorded, too.
    """

    def __init__(
        self,
        plan: StudyPlan,
        root: CheckpointRoot,
        agent: HostAgent,
        study: Study,
        ranks: StudyRanks | None = None,
    ) -> None:
        self.plan, self.root, self.agent, self.study = plan, root, agent, study
        self.ranks = ranks or RanksHere()
        self.book = SaveBook(root, plan.spec, study.saves)
        self._steps: dict[int, list[Done]] = {}  # by save: what the ranks did after it

    def run(self, script: Script) -> None:
        """Start the ranks, carry out the script, and end them. Raises as ``conduct`` does."""
        with self.ranks.crew(self.plan, self.root) as crew:
            self.book.head_start_ns = self.ranks.head_start_ns
            conduct(crew, _Study(script, self.book))

    def save(self, step: int) -> Script:
        """Let all ranks save, and then run the training steps until the next save."""
        yield lambda: Prepare(step)
        self.book.make_room()
        points = yield lambda: SaveNow(step, self.book.begin(step))
        self._steps[step] = [point for point in points if isinstance(point, Done)]

    def drain(self) -> Script:
        """Wait until asynchronous writers have finished.

        Then record for each save the mean step during it, and the mean step after its end.
        """
        yield Drain
        for save in self.study.saves:
            ranks = self._steps.get(save.step, [])
            save.step_overlapped_s = _mean(s for rank in ranks for s in rank.overlapped_s)
            save.step_alone_s = _mean(s for rank in ranks for s in rank.alone_s)

    def restore(self) -> Script:
        """Restore the latest checkpoint, cold, into wiped tensors; all ranks start together."""
        step = self.book.committed[-1]
        yield lambda: PrepareRestore(step)
        # Nobody reads now: the ranks have checked their files, and wait for the common start.
        cache = self.agent.empty_cache(self.root.step(step).data_keys())
        points = yield lambda: RestoreNow(time.monotonic_ns() + self.ranks.head_start_ns)
        parts = [point for point in points if isinstance(point, Restored)]
        times = [part.wall_s for part in parts]
        cpu = [part.cpu_s for part in parts if part.cpu_s is not None]
        verified = [part.verified for part in parts]
        self.study.restores.append(
            Restore(
                step=step,
                wall_s=max(times),
                first_done_s=min(times),
                bytes=sum(part.bytes for part in parts),
                cpu_s=sum(cpu) if len(cpu) == len(parts) else None,
                residency_before=cache.ratio,
                residency_how=cache.how,
                residencies=list(cache.hosts),
                verified=False if False in verified else None if None in verified else True,
                rank_s=times,
                rank_late_s=[part.late_s for part in parts],
                threads=max((part.threads for part in parts if part.threads), default=None),
            )
        )


class _Study(Scripted):
    """Carries out a study's script, and records the saves that ranks report meanwhile."""

    def __init__(self, script: Script, book: SaveBook) -> None:
        super().__init__(script)
        self._book = book

    def heard(self, rank: int, message: Report | Last) -> None:
        if isinstance(message, Saved):
            self._book.take_down(rank, message.step, message.part)


def _mean(seconds: Iterable[float]) -> float | None:
    values = list(seconds)
    return sum(values) / len(values) if values else None

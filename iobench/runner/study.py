"""The ranks that save checkpoints, in a study or beside a run, and the records of what they did.

When the last rank has reported its part of a checkpoint, the checkpoint is committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import partial
from typing import Protocol, TypeVar

from ..base.errors import IobenchError
from ..base.text import quoted
from ..checkpoint.base import Job
from ..checkpoint.catalog import CheckpointRoot
from ..checkpoint.manifest import BaseCheckpoint
from ..judge.statistics import of_all
from ..record.checkpoint import (
    AskedTraining,
    CheckpointSpec,
    RankSave,
    Restore,
    Save,
    Study,
    StudySpec,
)
from ..storage.base import Storage, address_of
from ..storage.scratch import scratch
from .agent import CacheState, HostAgent
from .checkpoint_plan import StudyPlan
from .conductor import Script, Scripted, conduct
from .crew import Crew
from .messages import (
    Done,
    Drain,
    Last,
    Link,
    PartRestored,
    PartSaved,
    Prepare,
    PrepareRestore,
    Report,
    RestoreNow,
    SaveNow,
)
from .tasks.checkpoint import CheckpointRank

HEAD_START_NS = 2_000_000
"""Time from a command to the common start, so that every rank has received it by then."""


class SaveRecords:
    """The checkpoints of one job, whose saves are added to ``study`` when they are complete.

    ``committed`` has the steps of those that still exist. ``base``: where saves have only what
    changes, the checkpoint of the whole state, which is the first one and stays.
    """

    def __init__(
        self,
        root: CheckpointRoot,
        spec: CheckpointSpec,
        study: Study,
        base: BaseCheckpoint | None = None,
    ) -> None:
        self.root, self.spec, self.study, self.base = root, spec, study, base
        self.committed: list[int] = []
        self.head_start_ns = HEAD_START_NS
        self._starts: dict[int, int] = {}
        self._parts: dict[int, dict[int, RankSave]] = {}

    def make_room(self) -> None:
        """Remove all checkpoints but the latest ``keep``; that takes time on some storages."""
        while len(self.committed) > self.spec.keep:
            self.root.remove(self.root.step(self.committed.pop(0)))

    def begin(self, step: int) -> int:
        """Return the common start of all ranks, on the monotonic clock in nanoseconds."""
        self._starts[step] = time.monotonic_ns() + self.head_start_ns
        return self._starts[step]

    def add(self, rank: int, step: int, part: RankSave) -> None:
        """Record that a rank's part is durable and published; commit after the last part."""
        parts = self._parts.setdefault(step, {})
        parts[rank] = part
        if len(parts) < self.spec.ranks:
            return
        manifest = self.root.step(step).commit(
            writer=self.spec.writer, world=self.spec.ranks, base=self.base
        )
        committed_s = (time.monotonic_ns() - self._starts[step]) / 1e9
        save = joined_save(step, [parts[rank] for rank in sorted(parts)], committed_s)
        if self.spec.changed_share < 1 and self.base is None:
            self.base, self.study.base = manifest.as_base(), save
        else:
            self.committed.append(step)
            self.study.saves.append(save)
        del self._parts[step]


def joined_save(step: int, parts: Sequence[RankSave], committed_s: float) -> Save:
    """Combine the ranks' saves to the job's: each of its times is that of the slowest rank."""

    def slowest(name: str) -> float | None:
        return of_all(max, (getattr(part, name) for part in parts))

    ends = [part.durable_s if part.durable_s is not None else part.accepted_s for part in parts]
    known = [end for end in ends if end is not None]
    return Save(
        step=step,
        blocked_s=max(part.blocked_s for part in parts),
        accepted_s=slowest("accepted_s"),
        durable_s=slowest("durable_s"),
        committed_s=committed_s,
        first_done_s=min(known, default=None),
        last_done_s=max(known, default=None),
        staged_s=slowest("staged_s"),
        waited_s=slowest("waited_s"),
        held_s=of_all(min, (part.held_s for part in parts)),
        persist_s=of_all(max, map(_persist_s, parts)),
        bytes=sum(part.bytes for part in parts),
        files=sum(part.files for part in parts),
        cpu_s=of_all(sum, (part.cpu_s for part in parts)),
        extra_memory_bytes=slowest("extra_memory_bytes"),  # type: ignore[arg-type]
        unwritten_bytes=of_all(sum, (part.unwritten_bytes for part in parts)),
        retries=sum(part.retries for part in parts),
        throttled=sum(part.throttled for part in parts),
        ranks=list(parts),
    )


def _persist_s(part: RankSave) -> float | None:
    """From a rank's copy until it is durable. The copy began after the wait for the save before."""
    if part.durable_s is None or part.staged_s is None:
        return None
    return part.durable_s - part.staged_s - (part.waited_s or 0.0)


class SavingHosts(Protocol):
    """What a study needs of ``Hosts``."""

    def agent(self, storage: Storage) -> HostAgent: ...

    def head_start_ns(self, least_ns: int) -> int: ...

    def saving(self, plan: StudyPlan, root: CheckpointRoot) -> AbstractContextManager[Crew]: ...


@contextmanager
def rank_maker(
    plan: StudyPlan, root: CheckpointRoot, rendezvous: str = ""
) -> Iterator[Callable[[Link], CheckpointRank]]:
    """Yield a function that makes a rank's part of the plan's job, in that rank's process.

    ``rendezvous``: where ranks that save together meet; by default in a file below a directory
    that exists as long as this.
    """
    with scratch("ranks") as meeting:

        def make(link: Link) -> CheckpointRank:
            where = rendezvous or f"file://{meeting}/meet"
            job = Job(rank=link.rank, world=link.world, rendezvous=where)
            changing = plan.saved[link.rank] if plan.partial else None
            return CheckpointRank(job, plan.spec, root, plan.builder(link.rank), link, changing)

        yield make


S = TypeVar("S", bound=Study)


def begin_study(plan: StudyPlan, kind: type[S]) -> S:
    """The record before anything was measured."""
    return kind(
        model=plan.spec.model,
        writer=plan.spec.writer,
        ranks=plan.spec.ranks,
        bytes=plan.saved_bytes,
        full_bytes=plan.full_saved_bytes,
        state_bytes=plan.bytes if plan.partial else None,
        files=0,
        tensors=sum(share.tensors for share in plan.saved),
        bytes_per_rank=[share.nbytes for share in plan.saved],
        largest_rank_bytes=max(share.nbytes for share in plan.saved),
        scaling=plan.scaling,
        parallelism=asdict(plan.parallelism),
        spec=StudySpec.model_validate(plan.spec.model_dump(mode="json")),
        meaning=AskedTraining(asked=plan.training),
    )


def with_leftovers(failure: Exception, root: CheckpointRoot) -> Exception:
    """Return ``failure`` with a remedy that says what is in the target, and how to remove it.

    That is the latest complete checkpoint, and the incomplete ones.
    """
    if not isinstance(failure, IobenchError):
        return failure
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
    remove = f"remove them: iobench clean {quoted(address_of(root.storage))}"
    failure.remedy = "; ".join(filter(None, [failure.remedy, *left, remove]))
    return failure


class StudyJob:
    """The commands for the ranks of a study, and the records of their reports.

    ``base``, ``save``, ``drain`` and ``restore`` are parts of a script for ``run``. Saves that
    become durable while something else is going on are recorded, too. ``after``: the number of the
    last step that the target has; those of this job follow it.
    """

    def __init__(
        self,
        plan: StudyPlan,
        root: CheckpointRoot,
        study: Study,
        hosts: SavingHosts,
        after: int,
    ) -> None:
        self.plan, self.root, self.study, self.hosts = plan, root, study, hosts
        self.step = after
        self.agent = hosts.agent(root.storage)
        self.head_start_ns = HEAD_START_NS
        self.records = SaveRecords(root, plan.spec, study)
        self._steps: dict[int, list[Done]] = {}  # by save: what the ranks did after it

    def run(self, script: Script) -> None:
        """Start the ranks, carry out the script, and end them. Raises as ``conduct`` does."""
        with self.hosts.saving(self.plan, self.root) as crew:
            self.records.head_start_ns = self.head_start_ns = self.hosts.head_start_ns(
                HEAD_START_NS
            )
            conduct(crew, _ScriptedStudy(script, self.records))

    def base(self) -> Script:
        """Save the whole state, and wait for it, where later saves have only what changes of it."""
        if self.plan.partial:
            yield from self.save()
            yield Drain

    def save(self) -> Script:
        """Let all ranks save, and then run the training steps until the next save."""
        self.step = step = self.step + 1
        yield lambda: Prepare(step)
        self.records.make_room()
        whole = self.records.base is None
        points = yield lambda: SaveNow(step, self.records.begin(step), whole)
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
        """Restore the latest checkpoint, cold, into wiped tensors; all ranks start together.

        Where it has only what changed, its base is read before it, in the same way.
        """
        step = self.records.committed[-1]
        caches: list[CacheState] = []
        reads: list[list[PartRestored]] = []
        for target in self.root.step(step).sources():
            yield partial(PrepareRestore, target.number)
            # Nobody reads now: the ranks have checked their files, and wait for the common start.
            caches.append(self.agent.empty_cache(target.data_keys()))
            points = yield lambda: RestoreNow(time.monotonic_ns() + self.head_start_ns)
            reads.append([point for point in points if isinstance(point, PartRestored)])
        self.study.restores.append(joined_restore(step, reads, caches))


def joined_restore(
    step: int, reads: Sequence[Sequence[PartRestored]], caches: Sequence[CacheState]
) -> Restore:
    """Combine what the ranks read, of one checkpoint after the other, to the job's restore.

    A rank's times are the sums of its own; the page cache held as much as in the worst case.
    """
    times = [sum(part.wall_s for part in rank) for rank in zip(*reads, strict=True)]
    parts = [part for read in reads for part in read]
    verified = [part.verified for part in parts]
    ratios = zip(*(cache.hosts for cache in caches), strict=True)
    return Restore(
        step=step,
        wall_s=max(times),
        first_done_s=min(times),
        bytes=sum(part.bytes for part in parts),
        cpu_s=of_all(sum, (part.cpu_s for part in parts)),
        residency_before=of_all(max, (cache.ratio for cache in caches)),
        residency_how=next((cache.how for cache in caches if cache.ratio is None), caches[0].how),
        residencies=[of_all(max, of_host) for of_host in ratios],
        verified=False if False in verified else None if None in verified else True,
        rank_s=times,
        rank_late_s=[sum(part.late_s for part in rank) for rank in zip(*reads, strict=True)],
        threads=max((part.threads for part in parts if part.threads), default=None),
        retries=sum(part.retries for part in parts),
        throttled=sum(part.throttled for part in parts),
    )


class _ScriptedStudy(Scripted):
    """Carries out a study's script, and records the saves that ranks report meanwhile."""

    def __init__(self, script: Script, records: SaveRecords) -> None:
        super().__init__(script)
        self._records = records

    def heard(self, rank: int, message: Report | Last) -> None:
        if isinstance(message, PartSaved):
            self._records.add(rank, message.step, message.part)


def _mean(seconds: Iterable[float]) -> float | None:
    values = list(seconds)
    return sum(values) / len(values) if values else None

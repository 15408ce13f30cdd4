"""Checkpoints during a run, so that saves and reads compete for the storage as in a training.

The state stays the same from save to save, so that its checksums need not be computed again
between two steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..checkpoint.catalog import CheckpointRoot
from ..errors import IobenchError
from ..schema.checkpoint import Study
from ..storage.locks.lock import Lease
from .checkpoint import StudyJob, begin_study, with_leftovers
from .checkpoint_plan import StudyPlan
from .conductor import Script
from .facts import storage_facts
from .phase import Saving
from .progress import Progress
from .study import RanksHere, SaveBook, StudyRanks, rank_maker

ALONE = 3
"""Saves while nothing else runs, for comparison."""

_STRIDE = 1_000_000
"""Distance between the numbers of the first saves of two phases."""


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """What to save, and how often.

    ``plan.spec.ranks`` is the run's number of accelerators: each holds its share of the state.
    """

    plan: StudyPlan
    every: int  # steps between two saves


@contextmanager
def saving_to(
    mixed: Mixed | None, *, break_lock: bool, ranks: StudyRanks | None = None
) -> Iterator[Saver | None]:
    """Claim the target of a run's checkpoints, and lock it exclusively; None without a target.

    ``ranks``: those that save, if they are not all on this host. Raises TargetRefusedError, also
    TargetHeldError if another process saves there.
    """
    if mixed is None:
        yield None
        return
    root = CheckpointRoot.open(mixed.plan.url)
    with root.held("run", break_lock=break_lock) as lease:
        yield Saver(mixed, root, lease, ranks or RanksHere())


class Saver:
    """The checkpoints of one run, in a target that the run holds (see ``saving_to``)."""

    def __init__(self, mixed: Mixed, root: CheckpointRoot, lease: Lease, ranks: StudyRanks) -> None:
        self.plan, self.every = mixed.plan, mixed.every
        self.root, self._lease, self.ranks = root, lease, ranks
        self._before = root.last_number()
        self._phases = 0
        self.study: Study = begin_study(mixed.plan, Study)
        self.study.every = mixed.every
        self.study.storage = storage_facts(root.storage)

    def alone(self, progress: Progress) -> None:
        """Save a few times while nothing else runs.

        Raises UsageError if the ranks' hosts do not all see the target.
        """
        self.ranks.check_place(self.plan, self.root)
        quiet = self.study.model_copy(update={"saves": []})
        job = StudyJob(self.plan, self.root, self.ranks.agent(self.root), quiet, self.ranks)

        def script() -> Script:
            for number in range(1, ALONE + 1):
                yield from job.save(self._before + number)
            yield from job.drain()

        progress.phase("building the state")
        try:
            job.run(script())
        finally:
            self.study.alone = quiet.saves

    @contextmanager
    def during(self, *, recorded: bool = True) -> Iterator[Saving]:
        """Provide the saves of one phase; those that are ``recorded`` are added to the study.

        Raises TargetLostError if another process has taken the target over.
        """
        self._lease.check()
        rendezvous = self.ranks.rendezvous()
        with rank_maker(self.plan, self.root, rendezvous) as make:
            book = SaveBook(self.root, self.plan.spec, self.study.saves if recorded else [])
            book.head_start_ns = self.ranks.head_start_ns
            self._phases += 1
            first = self._before + self._phases * _STRIDE
            yield Saving(
                every=self.every, first=first, book=book, saver=make, rendezvous=rendezvous
            )
            self.root.keep(self.plan.spec.keep, above=self._before)

    def end(self, failure: IobenchError | None) -> IobenchError | None:
        """Remove the run's checkpoints from the target; after a failure, report what is left."""
        if failure is not None:
            return with_leftovers(failure, self.root)
        self.root.leave(above=self._before)
        return None

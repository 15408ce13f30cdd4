"""Checkpoints while loading: what a run needs beside its own story, so that saves and reads compete as they do in a training.

The state stays the same from save to save, so that its checksums need not be taken again between two steps.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from ..checkpoint.base import Job
from ..checkpoint.catalog import CheckpointRoot
from ..errors import IobenchError
from ..spec.checkpoint import Study
from .checkpoint import Conductor, begin_study, with_leftovers
from .checkpoint_plan import StudyPlan
from .checkpoint_ranks import CheckpointRank
from .progress import Progress
from .ranks import Saving
from .savebook import SaveBook

ALONE = 3
"""Saves with nothing beside them, to compare with."""

_STRIDE = 1_000_000
"""Saves of repetition n are numbered from n times this on."""


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """``plan.spec.ranks`` is the run's number of accelerators: each holds its share of the state."""

    plan: StudyPlan
    every: int  # steps between two saves


class Saver:
    """The checkpoints of one run, from the target's claim to its clearing."""

    def __init__(self, mixed: Mixed) -> None:
        self.plan, self.every = mixed.plan, mixed.every
        self.root = CheckpointRoot.open(mixed.plan.url)
        self.root.claim()
        self.study: Study = begin_study(mixed.plan)

    def alone(self, progress: Progress) -> None:
        """A few saves with nothing beside them."""
        quiet = self.study.model_copy(update={"saves": []})
        conductor = Conductor(self.plan, self.root, quiet)
        try:
            conductor.start(progress)
            for number in range(1, ALONE + 1):
                conductor.save(number)
            conductor.drain()
        finally:
            conductor.end()
        self.study.alone = quiet.saves

    @contextmanager
    def beside(self, repetition: int) -> Iterator[Saving]:
        """Saving for one repetition."""
        meeting = Path(tempfile.mkdtemp(prefix="iobench-ranks-"))
        plan = self.plan

        def saver(rank: int, pipe: Connection) -> CheckpointRank:
            job = Job(rank=rank, world=plan.spec.ranks, rendezvous=f"file://{meeting}/meet")
            return CheckpointRank(job, plan.spec, self.root, plan.builder(rank), pipe)

        try:
            book = SaveBook(self.root, plan.spec, self.study.saves)
            yield Saving(every=self.every, first=(repetition + 1) * _STRIDE, book=book, saver=saver)
            self.root.keep(plan.spec.keep)
        finally:
            shutil.rmtree(meeting, ignore_errors=True)

    def end(self, failure: IobenchError | None) -> IobenchError | None:
        """Clear the target, or say what lies there after a failure."""
        if failure is not None:
            return with_leftovers(failure, self.root)
        self.root.clean()
        return None

"""The ranks of a checkpoint study: processes of this host, or what else there may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from ..checkpoint.base import Job
from ..checkpoint.catalog import CheckpointRoot
from ..schema.record import CheckpointRecord
from ..storage.scratch import scratch
from .agent import HostAgent
from .checkpoint_plan import StudyPlan
from .crew import Crew, ForkedCrew
from .savebook import HEAD_START_NS
from .task import Link
from .tasks.checkpoint import Checkpoint, CheckpointRank


class StudyRanks(Protocol):
    """How the ranks of a study come to be, and the agent of their hosts.

    ``head_start_ns``: from a command to the common start, so that every rank has it by then.
    """

    @property
    def head_start_ns(self) -> int: ...

    def agent(self, root: CheckpointRoot) -> HostAgent: ...

    def begin(self, doc: CheckpointRecord) -> None:
        """Add to the record what is known of the hosts, before anything is saved."""

    def end(self, doc: CheckpointRecord) -> None:
        """The same, when everything has been measured, or has failed."""

    def check_place(self, plan: StudyPlan, root: CheckpointRoot) -> None:
        """Raises UsageError if a host does not see what this one writes there."""

    def rendezvous(self) -> str:
        """Where ranks that save together meet; empty: in a file of this host."""

    def crew(self, plan: StudyPlan, root: CheckpointRoot) -> AbstractContextManager[Crew]:
        """The crew of all ranks, which has not been started."""


class RanksHere:
    """All ranks are processes of this host."""

    head_start_ns = HEAD_START_NS

    def agent(self, root: CheckpointRoot) -> HostAgent:
        return HostAgent(root.storage)

    def begin(self, doc: CheckpointRecord) -> None:
        return

    def end(self, doc: CheckpointRecord) -> None:
        return

    def check_place(self, plan: StudyPlan, root: CheckpointRoot) -> None:
        return

    def rendezvous(self) -> str:
        return ""

    @contextmanager
    def crew(self, plan: StudyPlan, root: CheckpointRoot) -> Iterator[Crew]:
        with rank_maker(plan, root) as make:
            yield ForkedCrew(plan.spec.ranks, Checkpoint(make))


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
            return CheckpointRank(job, plan.spec, root, plan.builder(link.rank), link)

        yield make

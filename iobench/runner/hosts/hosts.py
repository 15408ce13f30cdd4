"""The hosts of a job, which is all that a run, a study or a curve knows of them.

Also what ranks of another host are to do, as the first host tells it: JSON, and nothing of a
reader. Each host has the dataset, the place of the checkpoints or the model itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ...checkpoint.catalog import CheckpointRoot
from ...record.checkpoint import ShareText
from ...record.run import CheckpointRecord, ModelLoadRecord, TrainingRecord
from ...record.typed import OneOf
from ...storage.base import Storage
from ..agent import HostAgent
from ..checkpoint_plan import StudyPlan
from ..crew import Crew, ForkedCrew
from ..curve.places import Places
from ..curve.reader import HostReader, PlaceReader
from ..messages import Task
from ..phase import Phase, PhaseSettings
from ..plan import Plan
from ..study import rank_maker
from ..tasks.checkpoint import Checkpoint
from ..tasks.load import Load
from ..tasks.model_load import LoadOrder, LoadParts, ModelLoad


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseOrder:
    """A phase without what each host has itself.

    ``saves``: after how many steps the ranks save, and the number before that of the first save;
    their writers meet at ``rendezvous``. ``meeting``: the URL at which ranks meet that exchange
    gradients. ``in_step``: all hosts meet at each step.
    """

    phase: PhaseSettings
    saves: tuple[int, int] | None
    rendezvous: str
    meeting: str | None
    in_step: bool


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """Ranks that only save. ``rendezvous``: where their writers meet; ``scale``: of the model."""

    rendezvous: str
    scale: ShareText


Order = Annotated[PhaseOrder | SaveOrder | LoadOrder, OneOf(PhaseOrder, SaveOrder, LoadOrder)]
"""What ranks do: those of a phase, of a study, or of replicas of a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Begin:
    """Start your ranks: those from ``first`` on, ``count`` of the ``world``'s.

    ``offset_ns``: how far your clock is ahead of the first host's. ``number``: of these ranks in
    the run.
    """

    first: int
    count: int
    world: int
    offset_ns: int
    number: int
    order: Order


JobRecord = TrainingRecord | CheckpointRecord | ModelLoadRecord
"""The records of jobs that several hosts can do together."""


class Hosts:
    """One or more hosts. This is one alone, and each call a plain one; ``JobHosts`` are several.

    ``names``: for messages, where there are several.
    """

    names: Sequence[str] = ()

    @property
    def count(self) -> int:
        return max(1, len(self.names))

    def of(self, plan: Plan, held: ExitStack) -> Hosts:
        """The same hosts, which have made this plan as well, until ``held`` is closed.

        Raises UsageError for a plan that is another one on one of the hosts, and what the hosts
        raise while they make it.
        """
        return self

    def begin(self, doc: JobRecord, ranks: int) -> None:
        """Add to the record what is known of the hosts, before anything is measured."""

    def end(self, doc: JobRecord, ranks: int) -> None:
        """The same, when everything has been measured, or has failed."""

    def only_one(self, what: str, remedy: str) -> None:
        """Called before something that one host measures alone. Raises UsageError on several."""

    def share(self, ranks: int) -> Sequence[range]:
        """The ranks of each host, if there are so many in all; none where there is one host."""
        return ()

    def agent(self, storage: Storage, *, plans: bool = False) -> HostAgent:
        """The agents of all hosts as one. ``plans``: for the objects that a plan's loader reads."""
        return HostAgent(storage)

    def check(self) -> None:
        """Called from time to time while the other hosts have nothing to do.

        Raises HostLostError, and KeyboardInterrupt if one of them got Ctrl-C.
        """

    def whole(self, plan: Plan) -> Plan:
        """The plan with what the ranks of all hosts found out about the user's loader."""
        return plan

    def prepare(self) -> None:
        """Let the other hosts prepare what their loaders need, now that this one has it."""

    def head_start_ns(self, least_ns: int) -> int:
        """From a command to the common start, so that every rank has it by then."""
        return least_ns

    def crew(self, task: Task, ranks: int, order: Order) -> Crew:
        """The crew of so many ranks of all hosts, which has not been started.

        ``task``: of those of this host; ``order``: the same for the others.
        """
        return ForkedCrew(ranks, task)

    def loading(self, phase: Phase, meeting: str | None) -> tuple[Load, Crew]:
        """The task of a phase, and the crew of its ranks.

        ``meeting``: where ranks of one host meet that exchange gradients.
        """
        task = Load(phase, meeting=meeting)
        return task, ForkedCrew(phase.ranks, task)

    @contextmanager
    def saving(self, plan: StudyPlan, root: CheckpointRoot) -> Iterator[Crew]:
        """The crew of all ranks that save, which has not been started."""
        rendezvous = self.rendezvous()
        with rank_maker(plan, root, rendezvous) as make:
            yield self.crew(
                Checkpoint(make), plan.spec.ranks, SaveOrder(rendezvous, plan.spec.scale)
            )

    @contextmanager
    def replicas(
        self, parts: LoadParts, order: LoadOrder, *, alone: bool = False
    ) -> Iterator[Crew]:
        """The crew of the ranks of replicas, which has not been started.

        So many are on each host, or on this one ``alone``.
        """
        with parts.of(order) as found:
            task, here = ModelLoad(found), len(found)
            yield ForkedCrew(here, task) if alone else self.crew(task, here * self.count, order)

    def check_place(self, plan: StudyPlan, root: CheckpointRoot) -> None:
        """Raises UsageError if a host does not see what this one writes there."""

    def rendezvous(self) -> str:
        """Where ranks that save together meet; empty: in a file of this host."""
        return ""

    def reader(
        self,
        storage: Storage,
        places: Places,
        *,
        name: str,
        run_dir: Path,
        members: Sequence[int] | None = None,
    ) -> PlaceReader:
        """What reads the places of the curve ``name``: all hosts, or some by their numbers."""
        return HostReader(storage, max_bytes=places.max_bytes, once=places.once, run_dir=run_dir)

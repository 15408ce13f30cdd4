"""The agent of a host that is not the controller's: it does what the controller asks.

It makes the plans that are measured, starts the ranks of its host for each phase, passes on what
they and the controller tell each other, and empties or fills its page cache. If the controller is
lost, its ranks end with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from ...base.errors import HostLostError, IobenchError, WorkerError
from ...host.timeline import Array
from ...record.typed import OneOf
from ...storage import open_storage
from .. import messages
from ..agent import FetchCounter, HostAgent
from ..cache import cached_keys
from ..calibration.bench import Bench
from ..crew import ForkedCrew
from ..messages import Answer, Command, Last, Recorded, Stop, Task, Tried
from ..phase import Saving
from ..plan import Plan
from ..tasks.checkpoint import Checkpoint
from ..tasks.load import Load
from ..third_party import prepare_library
from .barrier import HostsBarrier, barrier_s
from .localreads import LocalReads, ReadingHost
from .meeting import Meeting
from .orders import Begin, SavesOrder, SavesThere, phase_of, text_at
from .plans import Permitted, PlanOrder, Same, same_of
from .records import with_part
from .store import set_interface
from .words import deed, refused

COUNTERS_S = 1.0
"""Time between two messages with the counters of the ranks."""

COLLECT_S = 3.0
"""How long the ranks have to say what they recorded, after the controller was lost."""


AnyCommand = Annotated[Command, OneOf(*Command.__subclasses__())]

FromRank = tuple[
    int,
    Annotated[
        Answer,
        OneOf(
            *messages.Point.__subclasses__(),
            *(messages.PartSaved, messages.Recorded, messages.Ended),
        ),
    ],
]
"""What a rank of another host says, with its number."""

Counted = tuple[int, Array]
"""What the ranks of a host have done so far, from a rank on: rows of ``runner.counters``."""

_TURN_S = 0.2
"""How long to wait for a message until the next turn."""


class StartedRanks:
    """The ranks of this host in one phase, or in a study."""

    def __init__(self, begin: Begin, task: Task, crew: ForkedCrew) -> None:
        self.order, self.task, self.crew = begin.order, task, crew
        self.working = list(range(crew.first, crew.first + begin.count))
        self.kept: dict[int, Recorded] = {}
        self.failed = False

    def heard(self, rank: int, answer: Answer) -> None:
        """Keep what a rank says with its last message."""
        if isinstance(answer, Last):
            self.working.remove(rank)
        if isinstance(answer, Recorded):
            self.kept[rank] = answer


class Agent(ReadingHost):
    """The agent of a host that has ranks. It has a bench for each plan that is measured.

    ``plan``: the one with number 0, which all hosts made before; a study, whose ranks only save
    (``saves``), has none. The first host asks for others, as far as ``permitted``. The ``parts`` of
    the benches have the events of the ranks of this host.
    """

    def __init__(
        self,
        meeting: Meeting,
        permitted: Permitted,
        results: Path,
        *,
        plan: Plan | None = None,
        saves: SavesThere | None = None,
        command: Sequence[str] = (),
        rules: str = "quick",
    ) -> None:
        storage = open_storage(str(results)) if saves is None else saves.root.storage
        super().__init__(meeting, LocalReads(storage, results))
        self.saves = saves
        self.ranks: StartedRanks | None = None
        self.permitted, self.results = permitted, results
        self.command, self.rules = command, rules
        self._held = ExitStack()
        self._plans: dict[int, tuple[Bench, LocalReads]] = {}
        self._used = 0
        self._counted = 0.0
        if plan is not None:
            self._add(0, plan)
            self.use(0)

    @property
    def bench(self) -> Bench:
        """Of the plan that is used now. Raises WorkerError if there is none."""
        if self._used not in self._plans:
            raise WorkerError(f"{self.wire.name} has not said what is measured")
        return self._plans[self._used][0]

    def _add(self, number: int, plan: Plan) -> None:
        bench = Bench(plan=plan, agent=HostAgent(plan.storage), directory=self.results, seconds=0.0)
        self._held.push(bench.held)
        folder = bench.held.enter_context(TemporaryDirectory(prefix="iobench-curve-"))
        self._plans[number] = bench, LocalReads(plan.storage, Path(folder))

    @deed
    def open(self, number: int, order: PlanOrder) -> Same:
        """Make a plan; what the first host has made must be the same."""
        self.permitted.check(order)
        plan = order.make()
        self._add(number, plan)
        return same_of(plan)

    @deed
    def use(self, number: int) -> None:
        """From now on, all is about this plan."""
        self._used = number
        self.agent = self.bench.agent
        self.reads = self._plans[number][1]

    @deed
    def forget(self, number: int) -> None:
        """This plan is measured no more."""
        if number in self._plans:
            bench, _ = self._plans.pop(number)
            bench.held.close()
            bench.plan.storage.close()

    def serve(self) -> int:
        """As ``Serving.serve``. What is measured when that ends early is kept in ``results``."""
        with self._held:
            try:
                return super().serve()
            except IobenchError as error:
                if self._used not in self._plans:
                    raise
                kept = self.bench, self.meeting, self.command, self.rules
                raise with_part(error, *kept) from None

    def task_of(self, begin: Begin) -> Task:
        """The task of the ranks that are to begin. Raises IobenchError."""
        order = begin.order
        if self._plans:
            self.reads.storage.close()  # the ranks inherit no file that a curve has opened
        if isinstance(order, SavesOrder):
            assert self.saves is not None
            return Checkpoint(self.saves.maker(order.rendezvous))
        saving = None
        if (saves := order.saves) is not None and self.saves is not None:
            make = self.saves.maker(saves.rendezvous)
            saving = Saving(every=saves.every, first=saves.first, records=None, saver=make)
        phase = phase_of(order, self.bench, saving)
        barrier = None
        if begin.barrier_port:
            barrier = HostsBarrier(
                self.meeting,
                begin.barrier_port,
                order.number,
                offset_ns=0 if order.meeting else begin.offset_ns,
                members=begin.count if order.meeting else 0,
            )
        if order.meeting is not None:
            set_interface(self.meeting.wires[0].connection)
        return Load(phase, barrier, meeting=order.meeting)

    def keep(self, ranks: StartedRanks) -> None:
        """Keep the events of a phase that has ended, for this host's part of the results."""
        order = ranks.order
        if isinstance(order, SavesOrder):
            return
        self.bench.parts += [
            (order.name, order.repetition, rank, recorded.columns)
            for rank, recorded in sorted(ranks.kept.items())
        ]

    def keys(self) -> Sequence[str]:
        return cached_keys(self.bench.plan)

    @deed
    def fetch_counter(self, direct: bool) -> FetchCounter:
        return self.agent.fetch_counter(self.bench.plan.keys, direct=direct)

    @deed
    def tried(self) -> list[Tried]:
        return list(self.bench.plan.tried)

    @deed
    def prepare(self) -> None:
        """Prepare what a loader library needs."""
        prepare_library(self.bench.plan, self.bench.held, proof=False)

    @deed
    def barrier(self, port: int) -> float:
        return barrier_s(self.meeting, port)

    # The ranks

    def close(self) -> None:
        if self.ranks is not None:
            self._collect(self.ranks)
            self.ranks.crew.end(1.0)
            self.keep(self.ranks)

    def _collect(self, ranks: StartedRanks) -> None:
        """Keep what the ranks have recorded, since the controller can't collect it any more."""
        began = time.monotonic()
        ranks.crew.stop()
        for rank in ranks.working:
            with suppress(IobenchError):
                ranks.crew.send(rank, Stop())  # at the next point at which it waits
        while ranks.working and (waited := time.monotonic() - began) < COLLECT_S:
            if waited > COLLECT_S / 2:
                ranks.crew.hurry(ranks.working)
            try:
                for rank, answer in ranks.crew.receive(list(ranks.working)):
                    ranks.heard(rank, answer)
            except IobenchError:
                ranks.working = [rank for rank in ranks.working if ranks.crew.is_alive(rank)]

    def wait(self) -> None:
        if self.ranks is None or self.ranks.failed:
            wait([self.wire.connection], timeout=_TURN_S)
            return
        crew = self.ranks.crew
        crew.wait([self.wire.connection, *map(crew.pipe, self.ranks.working)], _TURN_S)

    @deed
    def begin(self, begin: Begin) -> None:
        """Start the ranks of this host."""
        task = self.task_of(begin)
        crew = ForkedCrew(begin.count, task, first=begin.first, world=begin.order.accelerators)
        self.ranks = StartedRanks(begin, task, crew)
        crew.start()

    @deed
    def text(self, key: str) -> str:
        """A short text at the place of the checkpoints."""
        assert self.saves is not None
        return text_at(self.saves.plan.url, key)

    @deed
    def to_rank(self, rank: int, command: AnyCommand) -> None:
        """Send a command to a rank; its instants are on the clock of this host."""
        if self.ranks is not None:
            self._or_refused(lambda ranks: ranks.crew.send(rank, command))

    @deed
    def stop(self) -> None:
        """Set the flag ``stopped`` of the ranks."""
        if self.ranks is not None:
            self.ranks.crew.stop()

    @deed
    def hurry(self, ranks: list[int]) -> None:
        """Ask these ranks to send their last message now."""
        if self.ranks is not None:
            self.ranks.crew.hurry([rank for rank in ranks if rank in self.ranks.working])

    @deed
    def end_ranks(self, grace_s: float) -> None:
        """End all ranks within this time."""
        if self.ranks is not None:
            self.ranks.crew.stop()
            self.ranks.crew.end(grace_s)
            self.keep(self.ranks)
            self.ranks = None

    def turn(self) -> None:
        """Pass on what the ranks have sent, and from time to time what they have done."""
        if self.ranks is None:
            return
        if self.ranks.working and not self.ranks.failed:
            self._or_refused(self._listen)
        task, mine = self.ranks.task, self.ranks.crew.ranks
        if isinstance(task, Load) and (now := time.monotonic()) - self._counted >= COUNTERS_S:
            self._counted = now
            rows = task.counters.read()[mine.start : mine.stop]
            self.report("counted", (mine.start, rows), Counted)

    def _listen(self, ranks: StartedRanks) -> None:
        for rank, answer in ranks.crew.receive(list(ranks.working), 0.0):
            ranks.heard(rank, answer)
            self.report("rank", (rank, answer), FromRank)

    def _or_refused(self, act: Callable[[StartedRanks], None]) -> None:
        """Do this with the ranks; their failure is the controller's affair, that of the wire not.

        After a failure nothing more is heard from the ranks, until the controller ends them.
        """
        assert self.ranks is not None
        try:
            act(self.ranks)
        except HostLostError:
            raise
        except IobenchError as error:
            self.ranks.failed = True
            self.wire.send(refused(error))

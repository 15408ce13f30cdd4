"""The agent of a run, on a host that is not the controller's: it does what the controller asks.

It starts the ranks of its host for each phase, and empties or fills its page cache.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from ...base.errors import IobenchError, WorkerError
from ...storage import open_storage
from ..agent import FetchCounter, HostAgent
from ..cache import cached_keys
from ..calibration.bench import Bench
from ..messages import Task, Tried
from ..phase import Saving
from ..plan import Plan
from ..tasks.load import Load
from ..third_party import prepare_library
from .agreement import Same
from .barrier import HostsBarrier, barrier_s
from .interface import set_interface
from .localreads import LocalReads
from .meeting import Meeting
from .orders import Begin, SavesOrder, phase_of
from .part import with_part
from .place import SavesThere
from .plans import Permitted, PlanOrder, same_of
from .ranked import Counted, RankedAgent, StartedRanks
from .words import deed

COUNTERS_S = 1.0
"""Time between two messages with the counters of the ranks."""


class Agent(RankedAgent):
    """The agent of a run, or of trials. It has a bench for each plan that is measured.

    ``plan``: the one with number 0, which all hosts made before. The first host asks for others,
    as far as ``permitted``. The ``parts`` of the benches have the events of the ranks of this host.
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
        super().__init__(meeting, LocalReads(open_storage(str(results)), results), saves)
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
        order = begin.order
        self.bench.plan.storage.close()  # the ranks inherit no file that a curve has opened
        if isinstance(order, SavesOrder):
            return super().task_of(begin)
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
            set_interface(self.meeting)
        return Load(phase, barrier, meeting=order.meeting)

    def turn(self) -> None:
        """Also send the counters of the ranks from time to time."""
        super().turn()
        ranks = self.ranks
        if ranks is None or not isinstance(ranks.task, Load):
            return
        if (now := time.monotonic()) - self._counted >= COUNTERS_S:
            self._counted = now
            mine = ranks.crew.ranks
            rows = ranks.task.counters.read()[mine.start : mine.stop]
            self.report("counted", (mine.start, rows), Counted)

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

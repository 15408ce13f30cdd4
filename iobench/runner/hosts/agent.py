"""The agent of a run, on a host that is not the controller's: it does what the controller asks.

It starts the ranks of its host for each phase, and empties or fills its page cache.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ..agent import FetchCounter
from ..cache import cached_keys
from ..calibration.bench import Bench
from ..messages import Task, Tried
from ..phase import Saving
from ..tasks.load import Load
from ..third_party import prepare_library
from .barrier import HostsBarrier, barrier_s
from .interface import set_interface
from .localreads import LocalReads
from .meeting import Meeting
from .orders import Begin, SavesOrder, phase_of
from .place import SavesThere
from .ranked import Counted, RankedAgent, StartedRanks
from .words import deed

COUNTERS_S = 1.0
"""Time between two messages with the counters of the ranks."""


class Agent(RankedAgent):
    """The agent of a run. ``bench.parts`` then has the events of the ranks of this host."""

    def __init__(self, meeting: Meeting, bench: Bench, saves: SavesThere | None = None) -> None:
        folder = bench.held.enter_context(TemporaryDirectory(prefix="iobench-curve-"))
        super().__init__(meeting, LocalReads(bench.plan.storage, Path(folder)), saves)
        self.bench = bench
        self._counted = 0.0

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

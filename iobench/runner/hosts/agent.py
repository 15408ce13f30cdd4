"""The agent of a run, on a host that is not the controller's: it does what the controller asks.

It starts the ranks of its host for each phase, and empties or fills its page cache.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from ...host.nfs import MountStats
from ...host.resources import Snapshot
from ..agent import CacheState, FetchCounter, Used, change_cache
from ..cache import cached_keys
from ..calibration.bench import Bench
from ..messages import Tried
from ..phase import Saving
from ..tasks.checkpoint import Checkpoint
from ..tasks.load import Load
from ..third_party import prepare_library
from .barrier import HostsBarrier, barrier_s
from .interface import set_interface
from .localreads import LocalReads
from .meeting import Meeting
from .orders import Begin, SavesOrder, phase_of
from .ranked import Counted, RankedAgent, StartedRanks
from .saving import SavesThere
from .words import deed

COUNTERS_S = 1.0
"""Time between two messages with the counters of the ranks."""


class Agent(RankedAgent):
    """The agent of a run. ``bench.parts`` then has the events of the ranks of this host."""

    def __init__(self, meeting: Meeting, bench: Bench, saves: SavesThere | None = None) -> None:
        folder = bench.held.enter_context(TemporaryDirectory(prefix="iobench-curve-"))
        super().__init__(meeting, LocalReads(bench.plan.storage, Path(folder)))
        self.bench, self.saves = bench, saves
        self._counted = 0.0
        self._before: Snapshot | None = None

    def task_of(self, begin: Begin) -> Load | Checkpoint:
        order = begin.order
        self.bench.plan.storage.close()  # the ranks inherit no file that a curve has opened
        if isinstance(order, SavesOrder):
            return Checkpoint(self._saves.maker(order.rendezvous))
        saving = None
        if (saves := order.saves) is not None:
            make = self._saves.maker(saves.rendezvous)
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

    @property
    def _saves(self) -> SavesThere:
        assert self.saves is not None, "a run without checkpoints was agreed on"
        return self.saves

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

    @deed
    def cache(self, what: Literal["empty", "fill", "state"]) -> CacheState:
        """Bring the page cache into a state, for what the plan's loader reads."""
        return change_cache(self.bench.agent, what, cached_keys(self.bench.plan))

    @deed
    def fetch_counter(self, direct: bool) -> FetchCounter:
        return self.bench.agent.fetch_counter(self.bench.plan.keys, direct=direct)

    @deed
    def mount(self) -> MountStats | None:
        return self.bench.agent.mount_counters()

    @deed
    def snapshot(self) -> None:
        """Take one, and keep it."""
        self._before = self.bench.agent.snapshot()

    @deed
    def used(self) -> Used | None:
        """What this host did since the last snapshot."""
        return self.bench.agent.used_since(self._before) if self._before is not None else None

    @deed
    def tried(self) -> list[Tried]:
        return list(self.bench.plan.tried)

    @deed
    def prepare(self) -> None:
        """Prepare what a loader library needs."""
        prepare_library(self.bench.plan, self.bench.held, proof=False)

    @deed
    def text(self, key: str) -> str:
        """A short text at the place of the checkpoints."""
        return self._saves.text(key)

    @deed
    def barrier(self, port: int) -> float:
        return barrier_s(self.meeting, port)

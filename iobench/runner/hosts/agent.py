"""The agent of a run, on a host that is not the controller's: it does what the controller asks.

It starts the ranks of its host for each phase, and empties or fills its page cache.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ...measure.resources import Snapshot
from ..agent import CacheState, HostAgent
from ..cache import cached_keys
from ..calibration.bench import Bench
from ..tasks.load import Load
from .barrier import HostsBarrier, round_trip_s
from .localreads import LocalReads
from .meeting import Meeting
from .orders import phase_of
from .ranked import RankedAgent, Ranks
from .serving import Asked
from .words import Ask, Begin, Counted, PhaseOrder

COUNTERS_S = 1.0
"""Time between two messages with the counters of the ranks."""


class Agent(RankedAgent):
    """The agent of a run. ``bench.parts`` then has the events of the ranks of this host."""

    def __init__(self, meeting: Meeting, bench: Bench) -> None:
        folder = bench.held.enter_context(TemporaryDirectory(prefix="iobench-curve-"))
        super().__init__(meeting, LocalReads(bench.plan.storage, Path(folder)))
        self.bench = bench
        self._counted = 0.0
        self._asked = 0
        self._before: Snapshot | None = None

    def task_of(self, begin: Begin) -> Load:
        order = begin.order
        assert isinstance(order, PhaseOrder), "a run was agreed on"
        self.bench.plan.storage.close()  # the ranks inherit no file that a curve has opened
        phase = phase_of(order, self.bench)
        barrier = None
        if phase.in_step and len(begin.hosts) > 1:
            barrier = HostsBarrier(
                self.meeting.launch,
                str(order.number),
                me=self.meeting.launch.index,
                hosts=begin.hosts,
                offset_ns=begin.offset_ns,
            )
        return Load(phase, barrier)

    def turn(self) -> None:
        """Also send the counters of the ranks from time to time."""
        super().turn()
        ranks = self.ranks
        if ranks is None or not isinstance(ranks.task, Load):
            return
        if (now := time.monotonic()) - self._counted >= COUNTERS_S:
            self._counted = now
            rows: np.ndarray = ranks.task.counters.read()
            first = ranks.crew.first
            mine = range(first, first + len(ranks.crew.processes))
            self.wire.send(Counted({rank: rows[rank] for rank in mine}))

    def keep(self, ranks: Ranks) -> None:
        """Keep the events of a phase that has ended, for this host's part of the results."""
        order = ranks.order
        assert isinstance(order, PhaseOrder)
        self.bench.parts += [
            (order.name, order.repetition, rank, recorded.columns)
            for rank, recorded in sorted(ranks.kept.items())
        ]

    def told(self, ask: Asked) -> object:
        if not isinstance(ask, Ask):
            return super().told(ask)
        agent, plan = self.bench.agent, self.bench.plan
        match ask.what:
            case "counter":
                return agent.fetch_counter(plan.keys, direct=ask.direct)
            case "mount":
                return agent.mount_counters()
            case "host":
                return agent.describe()
            case "snapshot":
                self._before = agent.snapshot()
                return True
            case "used":
                return agent.used_since(self._before) if self._before is not None else None
            case "barrier":
                self._asked += 1
                return round_trip_s(
                    self.meeting.launch,
                    self.meeting.store,
                    f"rounds/{self._asked}",
                    hosts=range(self.meeting.launch.hosts),
                )
            case _:
                return change_cache(agent, ask.what, cached_keys(plan))


def change_cache(agent: HostAgent, what: str, keys: Sequence[str]) -> CacheState:
    """``empty``, ``fill``, or only look at the page cache of this host."""
    change = {"empty": agent.empty_cache, "fill": agent.fill_cache}.get(what, agent.cache_state)
    return change(keys)

"""The agent of a host that is not the controller's: it does what the controller asks.

It starts the ranks of its host for each phase, passes on what they and the controller tell each
other, and empties or fills its page cache. If the controller is lost, its ranks end with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ...errors import HostLostError, IobenchError
from ...measure.resources import Snapshot
from ..agent import CacheState, HostAgent
from ..cache import cached_keys
from ..calibration.bench import Bench
from ..crew import ForkedCrew
from ..messages import Last, Recorded, Stop
from ..tasks.load import Load
from .barrier import HostsBarrier, round_trip_s
from .localreads import LocalReads
from .meeting import Meeting
from .orders import phase_of
from .serving import Asked, Serving
from .words import (
    Ask,
    Begin,
    Begun,
    Counted,
    Ended,
    EndRanks,
    FromRank,
    HurryRanks,
    PhaseOrder,
    Refused,
    StopRanks,
    ToRank,
)

log = logging.getLogger(__name__)

COUNTERS_S = 1.0
"""Time between two messages with the counters of the ranks."""

COLLECT_S = 3.0
"""How long the ranks have to say what they recorded, after the controller was lost."""


class Ranks:
    """The ranks of this host in one phase."""

    def __init__(self, order: PhaseOrder, task: Load, crew: ForkedCrew, count: int) -> None:
        self.order, self.task, self.crew = order, task, crew
        self.working = list(range(crew.first, crew.first + count))
        self.kept: dict[int, Recorded] = {}
        self.failed = False


class Agent(Serving):
    """The agent of a run: it has ranks.

    ``bench.parts`` then has the events of the ranks of this host.
    """

    def __init__(self, meeting: Meeting, bench: Bench) -> None:
        folder = bench.held.enter_context(TemporaryDirectory(prefix="iobench-curve-"))
        super().__init__(meeting, LocalReads(bench.plan.storage, Path(folder)))
        self.bench = bench
        self.ranks: Ranks | None = None
        self._beaten = 0.0
        self._asked = 0
        self._before: Snapshot | None = None

    def close(self) -> None:
        if self.ranks is not None:
            self._collect(self.ranks)
            self.ranks.crew.end(1.0)
            self._keep()

    def _collect(self, ranks: Ranks) -> None:
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
                    if isinstance(answer, Last):
                        ranks.working.remove(rank)
                    if isinstance(answer, Recorded):
                        ranks.kept[rank] = answer
            except IobenchError:
                ranks.working = [rank for rank in ranks.working if ranks.crew.is_alive(rank)]

    def wait(self) -> None:
        pipes = []
        if self.ranks is not None and not self.ranks.failed:
            pipes = [self.ranks.crew.pipe(rank) for rank in self.ranks.working]
        wait([self.wire.connection, *pipes], timeout=0.2)

    def obey(self, message: object) -> None:
        match message:
            case Begin():
                self._begin(message)
            case ToRank(rank, command):
                if self.ranks is not None:
                    self._or_refused(lambda ranks: ranks.crew.send(rank, command))
            case StopRanks():
                if self.ranks is not None:
                    self.ranks.crew.stop()
            case HurryRanks(numbers):
                if self.ranks is not None:
                    self.ranks.crew.hurry([n for n in numbers if n in self.ranks.working])
            case EndRanks(grace_s):
                if self.ranks is not None:
                    self.ranks.crew.stop()
                    self.ranks.crew.end(grace_s)
                    self._keep()
                    self.ranks = None
                self.wire.send(Ended())
            case _:
                super().obey(message)

    def _begin(self, begin: Begin) -> None:
        order = begin.order
        self.bench.plan.storage.close()  # the ranks inherit no file that a curve has opened
        try:
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
            task = Load(phase, barrier)
            crew = ForkedCrew(begin.count, task, first=begin.first, world=order.accelerators)
            self.ranks = Ranks(order, task, crew, begin.count)
            crew.start()
        except IobenchError as error:
            self.wire.send(Refused(error))
            return
        self._beaten = time.monotonic()
        self.wire.send(Begun())

    def turn(self) -> None:
        """Pass on what the ranks have sent, and from time to time their counters."""
        ranks = self.ranks
        if ranks is None:
            return

        def listen(ranks: Ranks) -> None:
            for rank, answer in ranks.crew.receive(list(ranks.working), 0.0):
                if isinstance(answer, Last):
                    ranks.working.remove(rank)
                if isinstance(answer, Recorded):
                    ranks.kept[rank] = answer
                self.wire.send(FromRank(rank, answer))

        if ranks.working and not ranks.failed:
            self._or_refused(listen)
        if (now := time.monotonic()) - self._beaten >= COUNTERS_S:
            self._beaten = now
            rows: np.ndarray = ranks.task.counters.read()
            first = ranks.crew.first
            mine = range(first, first + len(ranks.crew.processes))
            self.wire.send(Counted({rank: rows[rank] for rank in mine}))

    def _or_refused(self, act: Callable[[Ranks], None]) -> None:
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
            self.wire.send(Refused(error, rank=self.ranks.crew.first))

    def _keep(self) -> None:
        """Keep the events of a phase that has ended, for this host's part of the results."""
        assert self.ranks is not None
        order = self.ranks.order
        self.bench.parts += [
            (order.name, order.repetition, rank, recorded.columns)
            for rank, recorded in sorted(self.ranks.kept.items())
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

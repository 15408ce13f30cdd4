"""How fast the work goes at this moment, from counters that are read a few times a second.

These figures are for watching a run alone. The figures of a result come from its events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..runner.counters import BUSY_NS, BYTES, RETRIES, STEPS, SYNC_NS, WALL_NS

WINDOW_S = 3.0
"""A rate is that of the last seconds: at least so many, and at least ``WINDOW_STEPS`` of a rank."""

WINDOW_STEPS = 4
MAX_WINDOW_S = 60.0
HISTORY_S = 1.0
"""Time between two values of a history."""

MAX_HISTORY = 60
NOTABLE = 1.05
"""A slowest rank is named if its steps take this many times those of the median rank."""

_LEVELS = {True: " ▁▂▃▄▅▆▇█", False: " .:-=+*%#"}


@dataclass(frozen=True)
class SlowRank:
    """The slowest rank: how many times the step of the median rank its steps take.

    ``times`` None: it has ended no step while others have.
    """

    rank: int
    times: float | None


@dataclass(frozen=True)
class Now:
    """Figures of the last seconds; None where they are not known.

    ``steps``: of each rank, on average. ``idle_s``: how long no rank has ended a step.
    """

    steps: int = 0
    bytes_per_s: float | None = None
    utilization: float | None = None
    slow: SlowRank | None = None
    retries: int = 0
    idle_s: float = 0.0


@dataclass(frozen=True)
class _CounterReading:
    at: float
    counts: npt.NDArray[np.int64]  # see runner.counters
    steps: int


class PhasePace:
    """Readings of the counters of one phase, and the histories of its rates."""

    def __init__(self, began: float) -> None:
        self._began = self._moved = began
        self._readings: deque[_CounterReading] = deque()
        self._kept = began
        self.rates: deque[float] = deque(maxlen=MAX_HISTORY)
        self.utilizations: deque[float] = deque(maxlen=MAX_HISTORY)

    def add(self, now: float, counts: npt.NDArray[np.int64]) -> Now:
        """Take a reading at the time ``now`` (monotonic), and return the figures."""
        readings = self._readings
        latest = _CounterReading(now, counts, int(counts[:, STEPS].sum()))
        if not readings or (counts != readings[-1].counts).any():
            self._moved = now
        readings.append(latest)
        while now - readings[0].at > MAX_WINDOW_S:
            readings.popleft()
        found = self._figures(self._start(latest), latest)
        if now - self._kept >= HISTORY_S:
            self._kept = now
            if found.bytes_per_s is not None:
                self.rates.append(found.bytes_per_s)
            if found.utilization is not None:
                self.utilizations.append(found.utilization)
        return found

    def _start(self, latest: _CounterReading) -> _CounterReading:
        """The reading with which the window begins."""
        enough = WINDOW_STEPS * len(latest.counts)
        for reading in reversed(self._readings):
            if latest.at - reading.at >= WINDOW_S and latest.steps - reading.steps >= enough:
                return reading
        return self._readings[0]

    def _figures(self, start: _CounterReading, latest: _CounterReading) -> Now:
        took, change = latest.at - start.at, latest.counts - start.counts
        wall, read = int(change[:, WALL_NS].sum()), int(change[:, BYTES].sum())
        busy, ever = (int(latest.counts[:, column].sum()) for column in (BUSY_NS, BYTES))
        return Now(
            steps=latest.steps // max(1, len(latest.counts)),
            # A reader without storage reads no bytes, and a null accelerator is never busy.
            bytes_per_s=read / took if ever and took >= HISTORY_S / 2 else None,
            utilization=min(1.0, change[:, BUSY_NS].sum() / wall) if wall > 0 and busy else None,
            slow=slowest(change),
            retries=int(latest.counts[:, RETRIES].sum()),
            idle_s=latest.at - self._moved,
        )


def slowest(change: npt.NDArray[np.int64]) -> SlowRank | None:
    """The slowest rank by what its counters have gained; None if no rank is notably slower.

    The time that a rank waits for others at the barrier is not its own.
    """
    steps = change[:, STEPS]
    if len(steps) < 2 or steps.max() < 2:
        return None
    if steps.min() == 0:
        return SlowRank(int(steps.argmin()), None)
    own = (change[:, WALL_NS] - change[:, SYNC_NS]) / steps
    median = float(np.median(own))
    rank = int(own.argmax())
    times = float(own[rank]) / median if median > 0 else 0.0
    return SlowRank(rank, times) if times >= NOTABLE else None


def history(values: Sequence[float], top: float, width: int, *, blocks: bool) -> str:
    """The last ``width`` values as one character each, from 0 to ``top``.

    ``blocks``: with block characters, otherwise in ASCII. Only 0 is a space.
    """
    levels = _LEVELS[blocks]
    last = len(levels) - 1

    def level(value: float) -> int:
        if not value > 0 or not top > 0:
            return 0
        return min(last, max(1, round(value / top * last)))

    return "".join(levels[level(value)] for value in list(values)[-width:] if width > 0)

"""The laws by which a job on many hosts scales.

They are the universal scalability law of a shared storage (``Scaling``), a closed queue for steps
that overlap with reads (``cycle_s``), the slowest of many ranks (``Steps``), and ``Barrier``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from ...judge.figures.instep import (
    MIN_BLOCKS,
    OwnStepTimes,
    Times,
    block_length,
    mean_largest,
    resampled,
)

Floats = npt.NDArray[np.float64]

Z95 = 1.959964
"""Standard deviations from the middle to an end of a 95 % interval."""


class Band(NamedTuple):
    """``low`` to ``high``: the 95 % interval. ``value`` is None if nothing tells where in it."""

    value: float | None
    low: float
    high: float

    def moved(self, change: Callable[[float], float]) -> Band:
        """The band of a figure that follows from this one, and that grows or falls with it."""
        ends = change(self.low), change(self.high)
        return Band(None if self.value is None else change(self.value), min(ends), max(ends))

    def drawn(self, normal: Floats) -> Floats:
        """The figure for each standard normal deviate, above 0; ``value`` must be known."""
        middle = (self.low + self.high) / 2 if self.value is None else self.value
        found: Floats = np.maximum(middle + normal * (self.high - self.low) / (2 * Z95), 1e-12)
        return found


def band(ways: Floats) -> Band:
    """The median of the ways, and the interval that has 95 % of them."""
    low, value, high = (float(each) for each in np.quantile(ways, (0.025, 0.5, 0.975)))
    return Band(value, low, high)


def either(worst: Floats, likely: Floats | None, best: Floats, *, same: float) -> Band:
    """From the low end of the worst case to the high end of the best one.

    The value is that of the likely case, whose interval is in it. Without one, it is the middle of
    both cases if they are the same within the share ``same``, and None otherwise.
    """
    one, other = band(worst), band(best)
    low, high = min(one.low, other.low), max(one.high, other.high)
    if likely is not None:
        middle = band(likely)
        return Band(middle.value, min(low, middle.low), max(high, middle.high))
    assert one.value is not None
    assert other.value is not None
    apart = abs(one.value - other.value) > same * max(abs(one.value), abs(other.value))
    return Band(None if apart else (one.value + other.value) / 2, low, high)


MIN_COUNTS = 3
"""Different numbers of hosts without which there is no fit of all three parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingLaw:
    """What many hosts get together: the universal scalability law.

    N. J. Gunther, "Guerrilla Capacity Planning" (2007): N hosts get
    X(N) = N x / (1 + a (N - 1) + b N (N - 1)), where x is the rate of one host (``one``), a the
    contention for what they share, and b the cost of keeping them coherent, both 0 or more.
    """

    one: float
    contention: float
    coherence: float

    def rate(self, hosts: float) -> float:
        """What so many hosts get together; past the peak it stays at the peak.

        Hosts that would make all of them slower need not be used.
        """
        number = min(hosts, max(1.0, self.peak))
        loss = self.contention * (number - 1) + self.coherence * number * (number - 1)
        return number * self.one / (1 + loss)

    @property
    def peak(self) -> float:
        """The number of hosts beyond which all of them together get less."""
        if self.coherence <= 0:
            return math.inf
        return math.sqrt(max(0.0, 1 - self.contention) / self.coherence)


def fit_scaling(hosts: Sequence[float], rates: Sequence[float]) -> ScalingLaw:
    """The law that is nearest to the measured ``rates`` of ``hosts``.

    It is linear in 1 / x, a / x and b / x, so the fit is least squares of relative errors.

    With two different numbers of hosts there is no coherence in it, and with one no contention.

    Raises ValueError unless there are as many rates as hosts, at least one, and all above 0.
    """
    number, rate = np.asarray(hosts, dtype=np.float64), np.asarray(rates, dtype=np.float64)
    if not len(number) or number.shape != rate.shape or not (number > 0).all() & (rate > 0).all():
        raise ValueError("a rate above 0 is needed for each number of hosts")
    # Of 1 / x, a / x and b / x, each row relative to what was measured.
    columns = np.stack([np.ones(len(number)), number - 1, number * (number - 1)], axis=1)
    rows = columns * (rate / number)[:, None]
    counts = len(np.unique(number))
    best, least = np.array([1.0 / np.max(rate / number), 0.0, 0.0]), math.inf
    for used in _choices(min(counts, MIN_COUNTS)):
        some = np.linalg.lstsq(rows[:, used], np.ones(len(number)), rcond=None)[0]
        found = np.zeros(3)
        found[list(used)] = some
        off = float(np.square(rows @ found - 1).sum())
        if found[0] > 0 and (found >= 0).all() and off < least - 1e-15:
            best, least = found, off
    one = 1 / float(best[0])
    return ScalingLaw(one=one, contention=float(best[1]) * one, coherence=float(best[2]) * one)


def _choices(parameters: int) -> list[tuple[int, ...]]:
    """Which parameters are not 0, the fewest first: the others are at their bound."""
    rest = range(1, parameters)
    return [(0, *some) for many in range(parameters) for some in combinations(rest, many)]


MIN_VARIATION = 1e-3
"""Less than this counts as this: the rate is then within 1e-3 of that of the slower station."""


def cycle_s(
    supply_s: Floats | float,
    step_s: Floats | float,
    *,
    tokens: float,
    variation: Floats | float = 1.0,
) -> Floats:
    """Seconds from one step to the next, on average: a closed queue of two stations.

    A job keeps ``tokens`` batches under way: one is being computed on, and the others are read, or
    wait until they are taken. So two stations hand a fixed number of tokens to each other. The rate
    is below that of the slower station, and most so where both are about as fast: the knee is
    round.

    For exponential times the rate is exact (J. P. Buzen, "Computational Algorithms for Closed
    Queueing Networks with Exponential Servers", CACM 16(9), 1973; two stations are the M/M/1 queue
    with room for K): with q the time of the faster station over that of the slower one, the slower
    one works the share (1 - q^K) / (1 - q^(K + 1)) of the time. Times that vary less have the knee
    of more tokens: 1 + (K - 1) / v, where v is the squared coefficient of variation. That is exact
    for one token, for v = 1, and for v = 0, where the rate is that of the slower station. Between,
    a simulation with gamma distributed times agrees within 1 % for five tokens and more; with two,
    the rule is up to 7 % too fast.

    ``supply_s``: seconds in which the storage delivers what a step takes, if nobody else is served;
    ``step_s``: seconds of a step whose batch is there. ``tokens``: at least 1. ``variation``: the
    squared coefficient of variation of both times, 0 to 1. Arrays are taken element by element.

    Raises ValueError for fewer than one token, or a time that is negative or not finite.
    """
    supply, step = np.asarray(supply_s, dtype=np.float64), np.asarray(step_s, dtype=np.float64)
    fine = np.isfinite(supply).all() and np.isfinite(step).all()
    if tokens < 1 or not fine or (supply < 0).any() or (step < 0).any():
        raise ValueError("a queue needs at least one token, and finite times of 0 or more")
    slow, fast = np.maximum(supply, step), np.minimum(supply, step)
    spread = np.clip(np.asarray(variation, dtype=np.float64), MIN_VARIATION, 1.0)
    places = 1 + (tokens - 1) / spread
    ratio = np.divide(fast, slow, out=np.zeros(np.broadcast(fast, slow).shape), where=slow > 0)
    found: Floats = slow / _busy(ratio, places)
    return found


def _busy(ratio: Floats, places: Floats) -> Floats:
    """(1 - q^K) / (1 - q^(K + 1)), which is K / (K + 1) for q = 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log(np.minimum(ratio, 1 - 1e-9))
        found: Floats = np.expm1(places * log) / np.expm1((places + 1) * log)
    return np.where(ratio > 0, found, 1.0)


MAX_BLOCKS = 512
"""Most blocks that are used, the last ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Blocks of recorded steps, which tell how long the slowest of many ranks takes.

    The slowest of N ranks takes as long as the largest of N step times, whose mean follows from the
    recorded steps (``figures.instep``). Ranks of one host share its cores and its path to the
    storage, so they are slow together. Therefore one host's ranks are one value: the slowest of
    them at a step. Of H such hosts, the largest of H values counts.

    ``own_s``: [blocks, ranks of a host, steps], in seconds.

    ``counts``: [ways, blocks], how often each way to draw them has each block; in the first way it
    is once. What follows from the steps is an array with a value for each way.
    """

    own_s: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    round_steps: int

    @property
    def together(self) -> int:
        """The ranks of one host, which are one value."""
        return int(self.own_s.shape[1])

    @property
    def seen(self) -> int:
        """The most ranks whose slowest one was seen: one value for each host, of each place."""
        return len(self.own_s) * int(self.own_s.shape[2] // self.round_steps) * self.together

    @property
    def mean_s(self) -> Times:
        """The mean step of one rank."""
        found: Times = self.counts @ self.own_s.mean(axis=(1, 2)) / self.counts.sum(axis=1)
        return found

    def slowest_s(self, ranks: float, *, over: int = 1) -> Times:
        """The mean step of the slowest of ``ranks``, whose hosts are like the recorded ones.

        ``over``: the slowest is that of so many consecutive steps together, at most of a block.
        """
        values, number = self.own_s.max(axis=1), ranks / self.together
        if over > 1:
            together = min(over, values.shape[1])
            means = sliding_window_view(values, together, axis=1).mean(axis=2)
            return mean_largest(means, self.counts, number)
        found: Times = np.mean(
            [
                mean_largest(values[:, place :: self.round_steps], self.counts, number)
                for place in range(self.round_steps)
            ],
            axis=0,
        )
        return found


def steps_of(series: Sequence[OwnStepTimes], *, hosts: int, round_steps: int) -> Steps | None:
    """The steps of ``hosts`` hosts; None if they are too few for an interval.

    ``series``: for example one entry for each epoch, with the ranks of one host beside each other.
    Where the ranks can't be divided evenly among the hosts, each rank is a value of its own, which
    errs towards too much time.
    """
    length = block_length(round_steps)
    found: list[npt.NDArray[np.float64]] = []
    for each in series:
        ranks, steps = each.own_s.shape
        together = ranks // hosts if ranks % hosts == 0 else 1
        count = steps // length
        cut = each.own_s[:, : count * length].reshape(ranks // together, together, count, length)
        found.extend(cut.transpose(2, 0, 1, 3).reshape(-1, together, length))
    if len(found) < MIN_BLOCKS or len({each.shape for each in found}) > 1:
        return None
    blocks = np.stack(found[-MAX_BLOCKS:])
    return Steps(own_s=blocks, counts=resampled(len(blocks)), round_steps=round_steps)


class Barrier(NamedTuple):
    """The cost of one barrier of n ranks: ``base_s + log_s ln(n)`` seconds, at least 0.

    Messages go through a tree, or round a ring whose parts overlap. It fits the published barriers
    of 1 to 60 ranks (docs/scale.md).
    """

    base_s: float
    log_s: float = 0.0

    def cost_s(self, ranks: float) -> float:
        return max(0.0, self.base_s + self.log_s * math.log(max(1.0, ranks)))


def fit_barrier(ranks: Sequence[int], costs_s: Sequence[float]) -> Barrier:
    """The barrier that is nearest to the measured costs, by least squares; none gets cheaper.

    Raises ValueError unless at least two different numbers of ranks were measured.
    """
    if len(set(ranks)) < 2 or len(ranks) != len(costs_s) or min(ranks) < 1:
        raise ValueError("the costs of at least two different numbers of ranks are needed")
    log_s, base_s = np.polyfit(np.log(np.asarray(ranks, dtype=np.float64)), costs_s, 1)
    if log_s < 0:
        return Barrier(float(np.mean(costs_s)), 0.0)
    return Barrier(float(base_s), float(log_s))

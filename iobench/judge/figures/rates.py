"""How the rate changes within a repetition: its bins, its steady state, and a lasting fall.

Burst credits that are spent, a drive that becomes too hot, and a cache that is full have one thing
in common: the storage is fast at first, and then slow for the rest of the time. The mean over a
repetition hides that, so ``rates_of`` computes the rate of each second. A training goes on for
longer than a burst. So the verdict, its promises and the accelerators that the storage feeds rest
on the rate that lasts (``lasting``).

Sources: SNIA, "Solid State Storage Performance Test Specification, Enterprise", definition of
steady state (a window of 5 rounds; here a round is a bin); B. Lausen and M. Schumacher, "Maximally
selected rank statistics", 1992 (the statistic of ``lasting_fall``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.units import MAX_SECONDS
from ...record.training import MAX_BINS, Rates, Repetition

Array = npt.NDArray[Any]

MIN_BIN_S = 1.0

WINDOW = 5
"""Bins of SNIA's measurement window."""

MAX_EXCURSION = 0.1
"""Largest distance of a bin of the window from the window's mean, as a share of that mean."""

MAX_SLOPE = 0.1
"""Largest change of the best linear fit within the window, as a share of the window's mean."""

MIN_BINS = 8
"""A repetition with fewer bins is too short for a statement about steady state or a fall."""

MIN_SIDE = 4
"""Bins on each side of a fall: a slow start, or a few slow seconds at the end, are no fall."""

MIN_FALL = 0.1
"""A smaller fall, as a share of the rate before it, is within the range of a steady state."""

FALSE_ALARMS = 0.01
"""Share of the repetitions without any change in which the permutation test finds a fall.

It is an upper bound where the blocks of bins are independent of each other, since a fall must also
be larger than MIN_FALL.
"""

_PERMUTATIONS = 999
_BLOCKS = ((45, 3), (20, 2), (0, 1))
"""From this number of bins on, blocks of so many neighbouring bins change places together.

Neighbouring seconds often resemble each other, and blocks keep that resemblance.
"""


class Track(NamedTuple):
    """What one rank had received by which time of an epoch.

    ``times_s`` has n + 1 times in seconds, which never decrease: from the first read of any worker
    on, without the time in which training stood still for checkpoints. ``samples`` and ``stored``
    (bytes) have the n amounts that arrived between them.
    """

    epoch: int
    times_s: Array
    samples: Array
    stored: Array
    steps: int


class Fall(NamedTuple):
    """A lasting fall of the rate: ``at_s`` seconds of loading after the first read.

    ``before`` and ``after`` are the median rates of the two sides, samples/s.
    """

    at_s: float
    before: float
    after: float

    @property
    def share(self) -> float:
        """The rate after the fall as a share of the rate before it, 0 to 1."""
        return self.after / self.before


def rates_of(tracks: Sequence[Track], *, round_steps: int = 1) -> Rates:
    """The rate of each bin of a repetition, summed over its ranks.

    The epochs follow each other without a gap. Of each epoch, the time counts in which all of its
    ranks load: it ends when the first of them has finished its share. A step's samples are spread
    evenly over the time of the step. A bin has at least MIN_BIN_S seconds, and is so long that
    there are at most MAX_BINS of them, and that a rank makes ``round_steps`` steps in it: batches
    of workers that started together arrive in rounds of as many (``ceiling_from_events``). The
    last part that fills no bin is left out.
    """
    epochs: dict[int, list[Track]] = {}
    for track in tracks:
        epochs.setdefault(track.epoch, []).append(track)
    lengths = {
        epoch: max(0.0, min(float(track.times_s[-1]) for track in group))
        for epoch, group in epochs.items()
    }
    total = sum(lengths.values())
    steps = len(epochs) * sum(track.steps for track in tracks) / max(1, len(tracks))  # of one rank
    round_s = round_steps * total / steps if steps else 0.0
    widest = max(MIN_BIN_S, total / MAX_BINS, min(round_s, total))
    bin_s = min(MAX_SECONDS, float(math.ceil(widest - 1e-9)))
    count = min(MAX_BINS, int(total / bin_s + 1e-9))
    edges = np.arange(count + 1) * bin_s
    samples, stored = np.zeros(count + 1), np.zeros(count + 1)
    begin = 0.0
    for epoch, group in sorted(epochs.items()):
        within = np.clip(edges - begin, 0.0, lengths[epoch])
        for track in group:
            samples += arrived_by(within, track.times_s, track.samples)
            stored += arrived_by(within, track.times_s, track.stored)
        begin += lengths[epoch]
    return Rates(
        bin_s=bin_s, samples_per_s=_rates(samples, bin_s), stored_bytes_per_s=_rates(stored, bin_s)
    )


def arrived_by(times_s: Array, known_s: Array, amounts: Array) -> Array:
    """How much of the amounts had arrived by each of these times."""
    arrived = np.concatenate([[0.0], np.cumsum(amounts, dtype=np.float64)])
    found: Array = np.interp(times_s, known_s, arrived)
    return found


def _rates(arrived: Array, bin_s: float) -> list[float]:
    """Rates per second with five significant digits, so that the record stays small.

    Damaged events may have negative amounts, which count as 0.
    """
    return [float(f"{max(0.0, rate):.5g}") for rate in (np.diff(arrived) / bin_s).tolist()]


def long_enough(rates: Rates) -> bool:
    """Whether there are enough bins for a statement about steady state or a fall."""
    return len(rates.samples_per_s) >= MIN_BINS


def steady_from(rates: Rates) -> float | None:
    """Seconds of loading until the first window of steady state; None if there is no such window.

    In a window, each of WINDOW successive bins is within MAX_EXCURSION of their mean, and the best
    linear fit rises or falls by at most MAX_SLOPE of it.
    """
    values = np.asarray(rates.samples_per_s, dtype=np.float64)
    for start in range(len(values) - WINDOW + 1):
        if _is_steady(values[start : start + WINDOW]):
            return start * rates.bin_s
    return None


def _is_steady(window: Array) -> bool:
    mean = float(window.mean())
    if mean <= 0 or float(np.abs(window - mean).max()) > MAX_EXCURSION * mean:
        return False
    position = np.arange(len(window)) - (len(window) - 1) / 2
    slope = float((position * window).sum() / (position**2).sum())
    return abs(slope) * (len(window) - 1) <= MAX_SLOPE * mean


def lasting_fall(rates: Rates) -> Fall | None:
    """The fall after which the rate stays low until the end; None if there is none.

    Each split into a first and a second part has a standardized difference of mean ranks, and the
    largest one says where the rate fell. It counts if at most FALSE_ALARMS of random orders of the
    bins (in a long repetition: of blocks of neighbouring bins) have one as large, and if the
    medians of the two parts differ by MIN_FALL, those of bytes as well: larger samples do not mean
    slower storage. Because of ranks and medians, single slow seconds have little effect.
    """
    values = np.asarray(rates.samples_per_s, dtype=np.float64)
    if not long_enough(rates):
        return None
    ranks = _ranks(values)
    statistic = _statistics(ranks[np.newaxis, :])[0]
    at = int(np.argmax(statistic)) + MIN_SIDE
    before, after = _medians(rates.samples_per_s, at)
    if before <= 0 or after > (1 - MIN_FALL) * before:
        return None
    stored_before, stored_after = _medians(rates.stored_bytes_per_s, at)
    if stored_before > 0 and stored_after > (1 - MIN_FALL) * stored_before:
        return None
    if _p_value(ranks, float(statistic.max())) > FALSE_ALARMS:
        return None
    return Fall(at * rates.bin_s, before, after)


def _medians(values: Sequence[float], at: int) -> tuple[float, float]:
    return median(values[:at]), median(values[at:])


def _ranks(values: Array) -> Array:
    """Ranks from 1; equal values share the mean of theirs."""
    ordered = np.sort(values)
    first = np.searchsorted(ordered, values, side="left")
    last = np.searchsorted(ordered, values, side="right")
    found: Array = (first + last + 1) / 2
    return found


def _statistics(ranks: Array) -> Array:
    """For each row and each split: by how much the first part is larger, in standard deviations."""
    count = ranks.shape[1]
    sizes = np.arange(MIN_SIDE, count - MIN_SIDE + 1)
    sums = np.cumsum(ranks, axis=1)[:, MIN_SIDE - 1 : count - MIN_SIDE]
    expected = sizes * (count + 1) / 2
    found: Array = (sums - expected) / np.sqrt(sizes * (count - sizes))
    return found


def _p_value(ranks: Array, observed: float) -> float:
    """Share of random orders, the observed one included, whose statistic is at least as large.

    The orders come from a fixed seed, so a report says the same each time.
    """
    count = len(ranks)
    blocks = np.arange(count) // next(size for least, size in _BLOCKS if count >= least)
    keys = np.random.default_rng(count).random((_PERMUTATIONS, int(blocks[-1]) + 1))
    orders = np.argsort(keys[:, blocks], axis=1, kind="stable")
    largest = _statistics(ranks[orders]).max(axis=1)
    return float(1 + np.count_nonzero(largest >= observed - 1e-9)) / (_PERMUTATIONS + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lasting:
    """Medians over the repetitions: when the rate falls, and the rates of both sides, samples/s.

    ``low`` and ``high``: the rates after the fall of the slowest and the fastest repetition.
    ``share``: the rate after the fall over the mean of the whole repetition.
    """

    at_s: float
    before: float
    after: float
    low: float
    high: float
    share: float


def lasting(repetitions: Sequence[Repetition]) -> Lasting | None:
    """What lasts, if all complete repetitions fall; None if one of them does not."""
    done = [each for each in repetitions if each.complete]
    found: list[tuple[Fall, float]] = []
    for each in done:
        fall = None if each.rates is None else _fall(each.rates)
        if each.rates is None or fall is None:
            return None
        found.append((fall, fmean(each.rates.samples_per_s)))
    if not found:
        return None
    after = [fall.after for fall, _ in found]
    return Lasting(
        at_s=median(fall.at_s for fall, _ in found),
        before=median(fall.before for fall, _ in found),
        after=median(after),
        low=min(after),
        high=max(after),
        share=median(fall.after / mean for fall, mean in found),
    )


def _fall(rates: Rates) -> Fall | None:
    return _found(rates.bin_s, tuple(rates.samples_per_s), tuple(rates.stored_bytes_per_s))


@lru_cache(maxsize=256)
def _found(bin_s: float, samples: tuple[float, ...], stored: tuple[float, ...]) -> Fall | None:
    """Many rules ask for the same repetition, and a permutation test takes a while."""
    return lasting_fall(
        Rates(bin_s=bin_s, samples_per_s=list(samples), stored_bytes_per_s=list(stored))
    )

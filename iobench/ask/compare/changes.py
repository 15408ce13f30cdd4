"""Where a sequence of runs changed its level, by permutation of the runs. One value for each run.

Two statistics are compared with their distribution over random orders of the runs:

- a split: the largest standardized difference between the runs before a position and those after
  it, at 3.5 %. It is made of logarithms, so that two runs at the end can tell a large change; the
  highest and the lowest are moved to the next ones, and all odd ones to 5 standard deviations, so
  that odd runs do not hide a change;
- a dip: the largest standardized rank sum of a stretch of runs among all runs around it (A. B.
  Olshen et al., "Circular binary segmentation for the analysis of array-based DNA copy number
  data", 2004), at 1.5 %.

Together they call a change in at most 5 % of the sequences that have none. A sequence is cut where
one of them is significant, and its parts are searched again (binary segmentation; A. J. Scott and
M. Knott, 1974). At least two runs lie on each side of a change: one run alone may be an odd hour.
A change below the noise threshold does not count, however significant it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ...judge.statistics import NOISE, ratio_interval

SPLIT_LEVEL = 0.035
DIP_LEVEL = 0.015

MIN_SIDE = 2
"""Smallest number of runs on each side of a change."""

MIN_RUNS = 8
"""Smallest number of runs that can tell a change.

With 4 before it and 4 after it the exact p of a perfect step is 2 / 70 = 2.9 %; with 7 runs the
best is 2 / 35 = 5.7 %.
"""

_MAX_DENSE = 32
"""Up to it a dip of every length is tried; above it, lengths that grow by 15 %."""

_SHUFFLED = 200_000
"""Number of runs in all random orders together. There are at least 500 and at most 20,000 orders,
which gives the levels a standard error of 0.1 to 0.8 %.
"""

_SEED = 20_040

_MAX_SPREADS = 5
"""Standard deviations from the median beyond which a run is taken for an odd one."""

_F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LevelChange:
    """The level changes at run number ``at``, with this p in the stretch where it was found."""

    at: int
    p: float


def can_tell(runs: int, after: int) -> bool:
    """Whether a perfect step is significant, with ``after`` of the ``runs`` behind it."""
    return (
        runs >= MIN_RUNS
        and min(after, runs - after) >= MIN_SIDE
        and 2 / math.comb(runs, after) < SPLIT_LEVEL
    )


def change_points(medians: Sequence[float], *, noise: float = NOISE) -> list[LevelChange]:
    """The changes of the level of positive ``medians``, the oldest run first, in order.

    ``noise``: the smallest change that counts, as a share (0.05: 5 %).
    """
    values = np.asarray(medians, dtype=np.float64)
    found = dict(_search(values, 0, len(values), noise))
    while found:
        bounds = [0, *sorted(found), len(values)]
        moved = {
            start + (_best_split(values[start:stop]) or at - start): found[at]
            for start, at, stop in zip(bounds, bounds[1:], bounds[2:], strict=False)
        }
        bounds = [0, *sorted(moved), len(values)]
        sizes = {
            at: abs(_ratio(values[start:at], values[at:stop]) - 1)
            for start, at, stop in zip(bounds, bounds[1:], bounds[2:], strict=False)
        }
        found = moved
        if min(sizes.values()) > noise:
            break
        del found[min(sizes, key=lambda at: sizes[at])]
    return [LevelChange(at, found[at]) for at in sorted(found)]


def _search(values: _F64, start: int, stop: int, noise: float) -> list[tuple[int, float]]:
    """(position, p) of the changes in runs ``[start, stop)``."""
    part = values[start:stop]
    if len(part) < MIN_RUNS:
        return []
    cuts: list[int] = []
    scores, p = _split(part)
    at = int(scores.argmax()) + MIN_SIDE
    if p < SPLIT_LEVEL and abs(_ratio(part[:at], part[at:]) - 1) > noise:
        cuts = [at]
    else:
        begin, end, p = _dip(part)
        around = np.concatenate([part[:begin], part[end:]])
        if p < DIP_LEVEL and abs(_ratio(around, part[begin:end]) - 1) > noise:
            cuts = [begin, end]
    found = [(start + cut, p) for cut in cuts]
    bounds = [0, *cuts, len(part)]
    for low, high in pairwise(bounds) if cuts else ():
        found += _search(values, start + low, start + high, noise)
    return found


def _ratio(before: _F64, after: _F64) -> float:
    return ratio_interval(after.tolist(), before.tolist())[0]


def _best_split(values: _F64) -> int | None:
    """The position at which two levels describe the logarithms best; None if there is none.

    That is the smallest sum of distances from the medians of both sides, which one odd run moves
    little.
    """
    logs = np.log(values)
    costs = {
        at: sum(float(np.abs(side - np.median(side)).sum()) for side in (logs[:at], logs[at:]))
        for at in range(MIN_SIDE, len(values) - MIN_SIDE + 1)
    }
    return min(costs, key=lambda at: costs[at]) if costs and len(set(costs.values())) > 1 else None


def _split(values: _F64) -> tuple[_F64, float]:
    """The score of each position of a split, and the p of the largest one."""
    logs = np.log(values)
    ordered = np.sort(logs)
    logs = np.clip(logs, ordered[1], ordered[-2])
    middle = np.median(logs)
    spread = 1.4826 * np.median(np.abs(logs - middle))  # of the normal distribution
    if spread:
        logs = np.clip(logs, middle - _MAX_SPREADS * spread, middle + _MAX_SPREADS * spread)
    standard = _standardized(logs)
    scores = _splits(standard[None, :])[0]
    null = _splits(_shuffled(standard)).max(axis=1)
    return scores, _p(float(scores.max()), np.sort(null))


def _dip(values: _F64) -> tuple[int, int, float]:
    """The stretch ``[begin, end)`` that differs most from the runs around it, and its p."""
    ranks = _standardized(_ranks(values))
    found = [
        (float(row.max()), int(row.argmax()) + MIN_SIDE, length)
        for length, row in _dips(ranks[None, :])
    ]
    score, begin, length = max(found)
    return begin, begin + length, _p(score, _null_of_dips(len(values)))


def _p(score: float, null: _F64) -> float:
    """The share of orders, the recorded one included, whose score is at least as large."""
    larger = len(null) - int(np.searchsorted(null, score * (1 - 1e-9)))
    return (1 + larger) / (1 + len(null))


@lru_cache(maxsize=512)
def _null_of_dips(runs: int) -> _F64:
    """The sorted scores of the largest dips in random orders of so many different values."""
    orders = _shuffled(_standardized(np.arange(runs, dtype=np.float64)))
    best = np.zeros(len(orders))
    for _, row in _dips(orders):
        np.maximum(best, row.max(axis=1), out=best)
    return np.sort(best)


def _shuffled(values: _F64) -> _F64:
    """Random orders of the values, [orders, runs]: the same ones each time."""
    orders = min(20_000, max(500, _SHUFFLED // len(values)))
    chance = np.random.default_rng(_SEED)
    return chance.permuted(np.tile(values, (orders, 1)), axis=1)


def _ranks(values: _F64) -> _F64:
    """Ranks from 1; ties share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse])


def _standardized(values: _F64) -> _F64:
    """With mean 0 and variance 1; all 0 if the values are the same."""
    apart = values - values.mean()
    spread = float(apart.std())
    return apart / spread if spread > 1e-12 else np.zeros(len(values))


def _splits(standard: _F64) -> _F64:
    """Squared standard scores [orders, position] of [orders, runs]; from ``MIN_SIDE`` on.

    Under random orders the sum of k of n standardized values has the mean 0 and the variance
    k (n - k) / (n - 1).
    """
    runs = standard.shape[1]
    position = np.arange(MIN_SIDE, runs - MIN_SIDE + 1)
    sums = standard.cumsum(axis=1)[:, position - 1]
    return np.asarray(sums**2 * ((runs - 1) / (position * (runs - position))))


def _dips(standard: _F64) -> Iterator[tuple[int, _F64]]:
    """(length, squared standard scores [orders, position]) of each length of a dip."""
    orders, runs = standard.shape
    sums = np.concatenate([np.zeros((orders, 1)), standard.cumsum(axis=1)], axis=1)
    inside = sums[:, MIN_SIDE : runs - MIN_SIDE + 1]
    for length in _lengths(runs):
        apart = inside[:, length:] - inside[:, :-length]
        yield length, apart**2 * ((runs - 1) / (length * (runs - length)))


def _lengths(runs: int) -> list[int]:
    """The lengths of dips that are tried: ``MIN_SIDE`` runs of the level around it on each side."""
    longest = runs - 2 * MIN_SIDE
    found = list(range(MIN_SIDE, min(longest, _MAX_DENSE) + 1))
    while found and found[-1] * 1.15 < longest and longest > _MAX_DENSE:
        found.append(int(found[-1] * 1.15) + 1)
    return found

"""Do two groups of values differ, by how much, and how certain is that?

The tests are exact, because the groups are small. They need only Python and numpy. Student's t has
any whole number of degrees of freedom, and its probability is a finite series, which is exact.

Sources: M. Abramowitz and I. A. Stegun, "Handbook of Mathematical Functions", 1964, 26.7.3 and
26.7.4 (Student's t); H. B. Mann and D. R. Whitney, "On a test of whether one of two random
variables is stochastically larger than the other", 1947; J. L. Hodges and E. L. Lehmann, "Estimates
of location based on rank tests", 1963; A. Vargha and H. D. Delaney, "A critique and improvement of
the CL common language effect size statistics", 2000 (A12).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import product
from statistics import NormalDist, fmean, stdev
from typing import TypeVar

import numpy as np

from ..record.verdict import Estimate

MAX_DEGREES = 500
"""Above it the normal distribution is used, with the approximation 26.7.8."""


def t_two_sided_p(t: float, degrees: int) -> float:
    """The probability of a value beyond -``t`` or ``t``. ``degrees``: at least 1."""
    if math.isinf(t):
        return 0.0
    if degrees > MAX_DEGREES:
        # the normal value that is about as probable
        normal = t * (1 - 1 / (4 * degrees)) / math.sqrt(1 + t * t / (2 * degrees))
        return math.erfc(abs(normal) / math.sqrt(2))
    angle = math.atan(abs(t) / math.sqrt(degrees))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total, factor = 0.0, 1 + odd
    for _ in range(degrees // 2):
        total += term
        term *= square * factor / (factor + 1)
        factor += 2
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1 - within))


@lru_cache(maxsize=1024)
def t_quantile(degrees: int, level: float = 0.05) -> float:
    """The t beyond which, on both sides together, the probability is ``level``."""
    low, high = 0.0, 1.0
    while t_two_sided_p(high, degrees) > level:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_two_sided_p(middle, degrees) > level else (low, middle)
    return high


SIGNIFICANT = 0.05
NOISE = 0.05
"""Rates that differ by less count as equal, however significant the difference is.

Machines drift by as much within hours. It is also MLPerf Storage's bound for replicated runs.
"""

MAX_EXACT = 80
"""Largest number of values of both sides together for which p is exact.

Above it the normal approximation with the correction for ties is used.
"""

MAX_SMALL_SIDE = 8
"""Size of the smaller side up to which the interval is exact, however large the other side is.

Its orders are then counted in less time than the ratios are sorted in. The normal approximation
would even be wrong for a side of one value: it would leave out more than half of the ratios at
each end.
"""

_MAX_LOG = math.log(1e30)


def mean_interval(values: Sequence[float], *, level: float = SIGNIFICANT) -> tuple[float, float]:
    """The interval [low, high] of the mean of at least two values (Student's t).

    It misses the mean with a probability of ``level``.
    """
    half = t_quantile(len(values) - 1, level) * stdev(values) / math.sqrt(len(values))
    middle = fmean(values)
    return middle - half, middle + half


def mean_estimate(values: Iterable[float | None], middle: float | None = None) -> Estimate | None:
    """The mean of figures of 0 or more, with an interval from 0 on; None: no value is known.

    ``middle`` is the estimate where another figure than the mean is: the interval reaches to it.
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    value = fmean(known) if middle is None else middle
    if len(known) == 1:
        return Estimate(value=value)
    low, high = mean_interval(known)
    low, high = max(0.0, min(low, value)), max(high, value)
    return Estimate(value=value, low=low, high=high, n=len(known))


def a12(one: Sequence[float], other: Sequence[float]) -> float:
    """Share of pairs in which the value of ``one`` is larger, with ties counted half."""
    wins = sum((a > b) + 0.5 * (a == b) for a, b in product(one, other))
    return wins / (len(one) * len(other))


def mann_whitney_p(one: Sequence[float], other: Sequence[float]) -> float:
    """Two-sided p of the rank sum of ``one`` among all choices of as many values.

    Ties share their mean rank.
    """
    values = np.concatenate(
        [np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)]
    )
    total, chosen = len(values), len(one)
    order = np.argsort(values, kind="stable")
    ranks = np.empty(total, dtype=np.int64)
    start = 0
    while start < total:
        stop = start + 1
        while stop < total and values[order[stop]] == values[order[start]]:
            stop += 1
        # twice the mean of the ranks start + 1 ... stop
        ranks[order[start:stop]] = start + 1 + stop
        start = stop
    observed, mean = int(ranks[:chosen].sum()), chosen * (total + 1)  # both doubled
    if total > MAX_EXACT:
        spread = (
            chosen
            * (total - chosen)
            / total
            / (total - 1)
            * float(((ranks - (total + 1)) ** 2).sum())
        )
        return (
            math.erfc(max(0.0, abs(observed - mean) - 1) / math.sqrt(2 * spread)) if spread else 1.0
        )
    # counts[k][s]: number of ways to choose k of the values so that their doubled ranks sum to s
    counts = np.zeros((chosen + 1, int(np.sort(ranks)[-chosen:].sum()) + 1))
    counts[0, 0] = 1
    for rank in ranks.tolist():
        counts[1:, rank:] += counts[:-1, : counts.shape[1] - rank].copy()
    sums = np.arange(counts.shape[1])
    extreme = counts[chosen][np.abs(sums - mean) >= abs(observed - mean)].sum()
    return min(1.0, float(extreme / counts[chosen].sum()))


MIN_COVERAGE = 0.5
"""An interval that covers less tells nothing."""


def ratio_interval(
    rates: Sequence[float],
    base: Sequence[float],
    *,
    level: float = SIGNIFICANT,
    among: int = 1,
) -> tuple[float, float, float, float]:
    """(ratio, low, high, coverage) of two groups of independent values above 0.

    The ratio is the Hodges-Lehmann estimate; [low, high] is the interval of the exact Mann-Whitney
    test at ``level``. Above ``MAX_SMALL_SIDE`` and ``MAX_EXACT`` values it is that of the normal
    approximation. Where the values are too few for the level (``reaches``), the interval is that of
    all ratios and covers less, so its coverage is returned too.

    ``among``: the first group was chosen, by what it measured, from so many that were compared with
    the base. The interval is then one that holds for all of them together (Bonferroni), and so is
    its coverage.
    """
    if among > 1:
        *found, each = ratio_interval(rates, base, level=level / among)
        return found[0], found[1], found[2], max(0.0, 1 - among * (1 - each))
    ratios = sorted(one / other for one, other in product(rates, base))
    half, odd = divmod(len(ratios), 2)
    # the geometric mean of the two in the middle: it is inverted if the groups change places
    below = ratios[half if odd else half - 1]
    middle = below * math.sqrt(ratios[half] / below) if 0 < below < math.inf else below
    few, many = sorted((len(rates), len(base)))
    if few > MAX_SMALL_SIDE and len(ratios) > MAX_EXACT * MAX_EXACT // 4:
        spread = math.sqrt(len(ratios) * (len(rates) + len(base) + 1) / 12)
        cut = int(len(ratios) / 2 - NormalDist().inv_cdf(1 - level / 2) * spread)
        return middle, ratios[cut], ratios[-cut - 1], 1 - level
    counts = _orders(few, many)
    total, tail, cut = sum(counts), 0, 0
    while cut < half and 2 * (tail + counts[cut]) <= level * total:
        tail += counts[cut]
        cut += 1
    if cut == 0:
        return middle, ratios[0], ratios[-1], 1 - 2 * counts[0] / total
    return middle, ratios[cut - 1], ratios[-cut], 1 - 2 * tail / total


def reaches(one: int, other: int, level: float = SIGNIFICANT) -> bool:
    """Whether the exact test of groups of these sizes can have a p of at most ``level``."""
    return level * math.comb(one + other, one) >= 2


def _orders(n: int, m: int) -> list[int]:
    """Number of orders of n and m values that have U = 0, 1, ... n m.

    This is Mann and Whitney's recursion, computed as a product of q-binomials.
    """
    counts = [1] + [0] * (n * m)
    for factor in range(1, n + 1):
        for position in range(n * m, m + factor - 1, -1):  # multiply by (1 - q^(m + factor))
            counts[position] -= counts[position - m - factor]
        for position in range(factor, n * m + 1):  # divide by (1 - q^factor)
            counts[position] += counts[position - factor]
    return counts


def ratio_estimate(
    pairs: Sequence[tuple[float, float]], *, level: float = SIGNIFICANT, ample: float = math.inf
) -> Estimate | None:
    """The factor between the two rates of each pair (changed, base), which were measured in turns.

    It is the geometric mean of the ratios, with Student's t interval of their logarithms: what
    changes from one turn to the next affects both rates of a pair and cancels. The interval
    misses the factor with a probability of ``level``; one pair has none. Pairs with a rate of 0
    tell no ratio and are left out; None if no pair is left. ``ample``: for the low end of the
    interval, a larger ratio counts as this one: that one ratio is far larger than another makes it
    no less certain that both are large.
    """
    logs = [math.log(changed / base) for changed, base in pairs if changed > 0 and base > 0]
    if not logs:
        return None
    if len(logs) == 1:
        return Estimate(value=factor_of(logs[0]))
    low, high = mean_interval(logs, level=level)
    low = max(low, mean_interval([min(log, math.log(ample)) for log in logs], level=level)[0])
    return Estimate(
        value=factor_of(fmean(logs)), low=factor_of(low), high=factor_of(high), n=len(logs)
    )


T = TypeVar("T")
R = TypeVar("R")


def of_all(figure: Callable[[list[T]], R], values: Iterable[T | None]) -> R | None:
    """A figure of all values, such as their sum; None if one is not known, or if there is none."""
    given = list(values)
    known = [value for value in given if value is not None]
    return figure(known) if known and len(known) == len(given) else None


def factor_of(log: float) -> float:
    """The factor of a logarithm, cut at 1e30: a record of somebody else may hold any rates."""
    return math.exp(max(-_MAX_LOG, min(log, _MAX_LOG)))

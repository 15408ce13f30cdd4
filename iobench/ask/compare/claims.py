"""What may be said about two groups of runs: different, equal within a threshold, or inconclusive.

The values are one for each run: the median of its repetitions. With ``MIN_RUNS`` or more runs on
each side, the interval of the ratio is that of the exact permutation test of rank sums
(``statistics.ratio_interval``; for 4 to 8 runs and normal values it has 0.72 to 0.98 of the power
of Student's t, and it is right for any distribution). With fewer runs it is Student's t interval of
the difference of mean logarithms. The variance between runs is then pooled from the sides
themselves, where they have several runs, and from earlier runs of the same host and storage
(``Drift``).

Sources: D. J. Schuirmann, "A comparison of the two one-sided tests procedure and the power approach
for assessing the equivalence of average bioavailability", 1987 (equal: the interval lies within the
threshold; a 95 % interval makes it stricter than his); S. Holm, "A simple sequentially rejective
multiple test procedure", 1979 (``claims_at_once``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from ...judge.statistics import (
    NOISE,
    SIGNIFICANT,
    a12,
    factor_of,
    mann_whitney_p,
    ratio_interval,
    reaches,
    t_quantile,
    t_two_sided_p,
)
from ...record.ab import Answer, Claim, Drift
from ...record.verdict import Estimate

MIN_RUNS = 4
"""Smallest number of runs on each side for the permutation test. With 3 and 3 no p is below 0.05.
"""

MIN_DEGREES = 3
"""Fewest degrees of freedom of the variance between runs with which an interval is given."""

MAX_MORE = 100
"""Largest number of further runs that is computed; it stands for all larger ones."""

POWER = 0.8
"""The probability with which the further runs would tell, if the ratio is as estimated."""

UNKNOWN_DRIFT = "drift between runs is not known: run `iobench ab`"

MIN_RATIO = 1e-30


@dataclass(frozen=True, kw_only=True, slots=True)
class Sides:
    """One metric of both groups: a value for each run. ``drift``: known from earlier runs."""

    candidate: Sequence[float]
    baseline: Sequence[float]
    higher_is_better: bool = True
    drift: Drift | None = None


def answer_of(low: float, high: float, threshold: float) -> Answer:
    """The answer that the interval [low, high] of a ratio gives."""
    if 1 / (1 + threshold) <= low and high <= 1 + threshold:
        return "equal"
    return "different" if low > 1 or high < 1 else "inconclusive"


def claim(
    metric: str, sides: Sides, *, threshold: float = NOISE, level: float = SIGNIFICANT
) -> Claim:
    """What may be said about the ratio of candidate to baseline.

    The interval covers 1 - ``level``. The drift of earlier runs is used only where a side has fewer
    than ``MIN_RUNS`` runs.
    """
    candidate, baseline = sides.candidate, sides.baseline
    runs = len(candidate), len(baseline)
    earlier = sides.drift if min(runs) < MIN_RUNS else None

    told = partial(
        Claim,
        metric=metric,
        threshold=min(1.0, threshold),
        confidence=1 - level,
        baseline_runs=len(baseline),
        candidate_runs=len(candidate),
    )
    if not min(runs):
        missing = [side for side, n in zip(("candidate", "baseline"), runs, strict=True) if not n]
        why = f"it was not measured by the {' and the '.join(missing)}"
        return told(answer="inconclusive", why=why)
    ranks = min(runs) >= MIN_RUNS and reaches(*runs, level)
    if min(*candidate, *baseline) <= 0:
        p = mann_whitney_p(candidate, baseline) if ranks else None
        if p is None or p > level:
            why = "a value is 0, so that there is no ratio"
            return told(answer="inconclusive", why=why, p=p)
        better = (a12(candidate, baseline) > 0.5) == sides.higher_is_better
        return told(answer="different", better=better, p=p, basis="runs", method="ranks")
    one, other = ([math.log(value) for value in side] for side in (candidate, baseline))
    spread, degrees = spread_of([one, other], earlier)
    if ranks:
        ratio, low, high, _ = ratio_interval(candidate, baseline, level=level)
        middle, *bounds = (math.log(max(each, MIN_RATIO)) for each in (ratio, low, high))
        p = mann_whitney_p(candidate, baseline)
    else:
        middle = fmean(one) - fmean(other)
        if degrees < MIN_DEGREES:
            found = Estimate(value=factor_of(middle), n=min(runs))
            return told(answer="inconclusive", why=UNKNOWN_DRIFT, ratio=found)
        error = spread * math.sqrt(1 / runs[0] + 1 / runs[1])
        half = t_quantile(degrees, level) * error
        bounds = [middle - half, middle + half]
        p = t_two_sided_p(middle / error if error else math.inf if middle else 0.0, degrees)
    low, high = (factor_of(bound) for bound in bounds)
    answer = answer_of(low, high, threshold)
    inconclusive = answer == "inconclusive"
    limit = f"{threshold * 100:.3g} %"
    return told(
        answer=answer,
        better=(middle > 0) == sides.higher_is_better if answer == "different" else None,
        ratio=Estimate(value=factor_of(middle), low=low, high=high, n=min(runs)),
        p=p,
        basis="drift" if earlier else "runs",
        method="ranks" if ranks else "t",
        more=_more(runs, middle, spread, degrees, threshold, level) if inconclusive else None,
        why=f"the interval holds no change and one above {limit}" if inconclusive else "",
    )


def claims_at_once(sides: Mapping[str, Sides], threshold: float = NOISE) -> dict[str, Claim]:
    """The claims for several metrics by Holm's procedure.

    All of them together call equal sides different in at most 5 % of comparisons. ``confidence`` of
    each claim is that of its interval. One metric alone is not corrected.
    """
    done: dict[str, Claim] = {}
    while True:
        level = SIGNIFICANT / max(1, len(sides) - len(done))
        rest = {
            metric: claim(metric, each, threshold=threshold, level=level)
            for metric, each in sides.items()
            if metric not in done
        }
        sure = [metric for metric, found in rest.items() if excludes_1(found)]
        if not sure:
            return {metric: done.get(metric) or rest[metric] for metric in sides}
        surest = min(sure, key=lambda metric: rest[metric].p or 0.0)
        done[surest] = rest[surest]


def excludes_1(found: Claim) -> bool:
    """Whether the interval of the ratio excludes 1: also where it lies within the threshold."""
    ratio = found.ratio
    return (
        ratio is not None
        and ratio.low is not None
        and ratio.high is not None
        and (ratio.low > 1 or ratio.high < 1)
    )


def spread_of(sides: Sequence[Sequence[float]], drift: Drift | None = None) -> tuple[float, int]:
    """(standard deviation between runs, degrees of freedom): within all sides and earlier runs.

    The deviation means nothing where there are no degrees of freedom.
    """
    squares, degrees = 0.0, 0
    for side in sides:
        middle = fmean(side)
        squares += sum((value - middle) ** 2 for value in side)
        degrees += len(side) - 1
    if drift is not None:
        squares += drift.sd**2 * drift.degrees
        degrees += drift.degrees
    return math.sqrt(squares / max(1, degrees)), degrees


def _more(
    runs: tuple[int, int],
    middle: float,
    spread: float,
    degrees: int,
    threshold: float,
    level: float,
) -> int:
    """How many further runs on each side would tell, with probability ``POWER``.

    ``MAX_MORE`` stands for all larger numbers. To tell a difference, the interval must exclude 1;
    to tell that the two are equal, it must lie within the threshold: the one that takes fewer runs
    counts.
    """
    room = max(abs(middle), math.log1p(threshold) - abs(middle))
    for more in range(1, MAX_MORE):
        one, other = runs[0] + more, runs[1] + more
        freedom = degrees + 2 * more
        if min(one, other) >= MIN_RUNS and not reaches(one, other, level):
            continue
        needed = t_quantile(freedom, level) + t_quantile(freedom, 2 * (1 - POWER))
        if needed * spread * math.sqrt(1 / one + 1 / other) <= room:
            return more
    return MAX_MORE

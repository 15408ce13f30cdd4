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

How much equal runs differ from one another: the drift of one host and storage.

Machines, neighbours and caches change from hour to hour, so the medians of equal runs differ by
more than the noise within a run tells. ``drift_of`` estimates by how much, from recorded runs. A
comparison of few runs takes it from earlier runs at the places of both sides that ask the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

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
from ...record.run import RunRecord
from ...record.verdict import Estimate
from .identity import identity, place, role_of
from .runs import Group, any_cut, question, values_of

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
IN_TURNS = "one `iobench ab` measured both in turns: `iobench report` of its directory tells"

MIN_RATIO = 1e-30


@dataclass(frozen=True, kw_only=True, slots=True)
class Sides:
    """One metric of both groups: a value for each run. ``drift``: known from earlier runs.

    ``in_turns``: the two are the variants of one A/B comparison, whose rounds tell more.
    """

    candidate: Sequence[float]
    baseline: Sequence[float]
    higher_is_better: bool = True
    drift: Drift | None = None
    in_turns: bool = False


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
            why = IN_TURNS if sides.in_turns else UNKNOWN_DRIFT
            return told(answer="inconclusive", why=why, ratio=found)
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


MIN_DRIFT_RUNS = 4
"""Smallest number of runs that a drift is computed from."""


@dataclass(frozen=True, slots=True)
class Day:
    """The runs of one day (UTC): the median, the lowest and the highest of their medians."""

    date: str  # ISO 8601
    runs: int
    median: float
    low: float
    high: float


def median_of(doc: RunRecord, metric: str, *, after_fill: bool = False) -> float | None:
    """The run's value of a metric: the median of its repetitions; None if it has none."""
    values = values_of(doc, metric, after_fill=after_fill)
    return median(values) if values else None


def drift_of(runs: Sequence[RunRecord], metric: str) -> Drift | None:
    """The standard deviation of the logarithm of equal runs' medians.

    ``runs`` are of one place (``identity.place``) and one workload, in any order; others must be
    left out before (``like``). Only runs of the same identity are compared with one another. A
    change of the level while nothing of the identity changed is a part of the drift: nobody can
    tell whether the next two runs lie on its two sides. The variances of all these groups are
    pooled. If they have fewer than ``MIN_RUNS`` runs together, runs of different
    versions of software count as equal, which makes the drift larger rather than smaller. None if
    these are too few, too. INVALID runs and medians of 0 do not count.
    """
    cut = any_cut(runs)
    valid = [doc for doc in runs if doc.validity != "invalid"]
    counted = [
        (doc.created, value, identity(doc))
        for doc in sorted(valid, key=lambda doc: (doc.created, doc.run_id))
        if (value := median_of(doc, metric, after_fill=cut)) is not None and value > 0
    ]
    for ignored in (frozenset[str](), frozenset({"version"})):
        groups: dict[tuple[tuple[str, str], ...], list[tuple[str, float]]] = {}
        for created, value, facts in counted:
            key = tuple((k, facts[k]) for k in sorted(facts) if role_of(k) not in ignored)
            groups.setdefault(key, []).append((created, value))
        if (found := _pooled(metric, groups.values())) is not None:
            return found
    return None


def _pooled(metric: str, groups: Iterable[Sequence[tuple[str, float]]]) -> Drift | None:
    """The drift within groups of (created, median), each in the order of time."""
    several = [group for group in groups if len(group) > 1]
    times = [created for group in several for created, _ in group]
    if len(times) < MIN_DRIFT_RUNS:
        return None
    sd, degrees = spread_of([[math.log(value) for _, value in group] for group in several])
    return Drift(
        metric=metric,
        sd=sd,
        degrees=degrees,
        runs=len(times),
        first=min(times),
        last=max(times),
    )


def like(doc: RunRecord, runs: Iterable[RunRecord]) -> list[RunRecord]:
    """The runs that ask the same as ``doc`` at the same place: those whose drift is its drift."""
    wanted, here = question(doc), place(doc)
    return [other for other in runs if question(other) == wanted and place(other) == here]


def calendar(runs: Sequence[RunRecord], metric: str) -> tuple[Day, ...]:
    """The medians of each day's runs, the oldest day first. INVALID runs do not count."""
    days: dict[str, list[float]] = {}
    cut, valid = any_cut(runs), [doc for doc in runs if doc.validity != "invalid"]
    for doc in sorted(valid, key=lambda doc: doc.created):
        if (value := median_of(doc, metric, after_fill=cut)) is not None:
            days.setdefault(doc.created[:10], []).append(value)
    return tuple(
        Day(date, len(values), median(values), min(values), max(values))
        for date, values in days.items()
    )


def needs_drift(baseline: Group, candidate: Group) -> bool:
    """Whether the runs of a comparison are too few to be told apart by themselves."""
    return min(len(baseline.runs), len(candidate.runs)) < MIN_RUNS


def in_turns(runs: Sequence[RunRecord]) -> bool:
    """Whether all are of one A/B comparison, whose runs have its command and its time."""
    begun = {(doc.created, *doc.command) for doc in runs}
    return len(begun) == 1 and list(runs[0].command[1:2]) == ["ab"]


def drifts_of(
    baseline: Group, candidate: Group, earlier: Sequence[RunRecord], metrics: Sequence[str]
) -> dict[str, Drift]:
    """The drift of each metric, as far as earlier runs tell it.

    The compared runs themselves are left out of ``earlier``. A metric is missing if its drift is
    not known at the place of each side: that of one storage tells nothing about another one.
    """
    compared = [doc for group in (baseline, candidate) for doc in group.runs]
    ids = {doc.run_id for doc in compared}
    others = [doc for doc in earlier if doc.run_id not in ids]
    series = [like(doc, others) for doc in {place(doc): doc for doc in compared}.values()]
    found = {}
    for metric in metrics:
        known = [drift for runs in series if (drift := drift_of(runs, metric))]
        if known and len(known) == len(series):
            found[metric] = combined(known)
    return found


def combined(drifts: Sequence[Drift]) -> Drift:
    """One drift for a comparison of the places that these drifts belong to, at least one.

    The variance of the ratio of two runs is the sum of those of both places, however many runs are
    known of each: so the variances are averaged, not pooled by their degrees of freedom. The
    degrees are those of B. L. Welch, "The generalization of 'Student's' problem when several
    different population variances are involved", 1947.
    """
    variances = [drift.sd**2 for drift in drifts]
    total = sum(variances)
    spread = sum(
        variance**2 / max(1, drift.degrees)
        for variance, drift in zip(variances, drifts, strict=True)
    )
    degrees = total**2 / spread if spread else sum(drift.degrees for drift in drifts)
    return Drift(
        metric=drifts[0].metric,
        sd=math.sqrt(total / len(drifts)),
        degrees=max(1, int(degrees + 1e-9)),
        runs=sum(drift.runs for drift in drifts),
        first=min(drift.first for drift in drifts),
        last=max(drift.last for drift in drifts),
    )

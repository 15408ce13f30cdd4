"""How much equal runs differ from one another: the drift of one host and storage.

Machines, neighbours and caches change from hour to hour, so the medians of equal runs differ by
more than the noise within a run tells. ``drift_of`` estimates by how much, from recorded runs. A
comparison of few runs takes it from earlier runs at the places of both sides that ask the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from ...record.ab import Drift
from ...record.run import RunRecord
from .claims import MIN_RUNS, spread_of
from .identity import identity, place, role_of
from .runs import Group, any_cut, question, values_of

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

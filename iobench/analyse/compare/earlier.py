"""The drift between runs that a comparison of few runs needs, from earlier runs.

Drift belongs to a host and storage (``identity.place``): it is taken from earlier runs at the
places of both sides that ask the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...schema.claim import Drift
from ...schema.record import RunRecord
from .claims import MIN_RUNS
from .drift import drift_of, like
from .identity import place
from .runs import Group


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

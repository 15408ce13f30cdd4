"""Whether a change may pass: a gate that no inconclusive answer passes.

A metric fails where the candidate is told worse, and passes where the interval of the ratio
excludes a loss of the threshold: the two are equal, or the candidate is better, or not worse by as
much. Everything else is inconclusive: an interval that allows for both, a metric that one side
lacks, INVALID runs, runs that are not comparable. For the test of no loss see J. D'Agostino, J.
Massaro and L. Sullivan, "Non-inferiority trials: design concepts and issues", 2003.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...base.units import format_factor
from ...record.ab import Claim
from ...record.metrics import COMPARED
from .comparison import ComparedMetric, Comparison
from .runs import PRIMARY, Group

Outcome = Literal["passed", "failed", "inconclusive"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gated:
    """The outcome for one metric of one comparison, with its reason in one line."""

    workload: str
    baseline: str
    candidate: str
    metric: str
    outcome: Outcome
    why: str


def outcome_of(found: Claim, *, higher_is_better: bool) -> Outcome:
    """What a claim means for a gate at its threshold."""
    if found.answer == "different":
        return "passed" if found.better else "failed"
    ratio = found.ratio
    if ratio is None or ratio.low is None or ratio.high is None:
        return "inconclusive"
    no_loss = (
        ratio.low >= 1 / (1 + found.threshold)
        if higher_is_better
        else ratio.high <= 1 + found.threshold
    )
    return "passed" if no_loss else "inconclusive"


def gate(compared: Sequence[Comparison], metrics: Sequence[str] = ()) -> list[Gated]:
    """The outcomes for the named metrics, or for the primary one, of each comparison."""
    return [
        _gated(each, metric)
        for each in compared
        for metric in metrics or (primary_of(*each.sides),)
    ]


def line_of(gated: Gated) -> str:
    """The outcome in one line: metric, workload, reason and candidate."""
    return f"{gated.metric} of {gated.workload} is {gated.why}: {gated.candidate}"


def primary_of(baseline: Group, candidate: Group) -> str:
    """The most important metric that a side has measured, even if the other one has not."""
    return next(
        (name for name in PRIMARY if baseline.values(name) or candidate.values(name)), PRIMARY[0]
    )


def _gated(each: Comparison, metric: str) -> Gated:
    outcome, why = _outcome(each, metric)
    return Gated(
        workload=each.workload,
        baseline=each.baseline,
        candidate=each.candidate,
        metric=metric,
        outcome=outcome,
        why=why,
    )


def _outcome(each: Comparison, metric: str) -> tuple[Outcome, str]:
    row = next((row for row in each.rows if row.metric == metric), None)
    told: Outcome = "inconclusive"
    if row is not None and not row.negligible:
        told = outcome_of(row.claim, higher_is_better=COMPARED[metric].better == "more")
    if row is not None and told == "failed":
        return told, f"worse: {shown(row)}"
    invalid = [
        doc.run_id for group in each.sides for doc in group.runs if doc.validity == "invalid"
    ]
    if each.obstacles:
        return "inconclusive", f"not comparable: {each.obstacles[0]}"
    if invalid:
        return "inconclusive", f"{invalid[0]} is INVALID"
    if row is None:
        missing = (line for line in each.missing if line.startswith(f"{metric} "))
        return "inconclusive", next(missing, f"{metric} was not measured")
    if row.negligible:
        return "passed", row.negligible
    if told == "passed":
        inconclusive = row.claim.answer == "inconclusive"
        excluded = f", which excludes a loss of {row.claim.threshold * 100:.3g} %"
        return told, shown(row) + (excluded if inconclusive else "")
    return told, f"{shown(row)}: {row.claim.why or 'a loss of the threshold is not excluded'}"


def shown(row: ComparedMetric) -> str:
    """The ratio with its interval: ``0.97 x [0.93, 1.02]``."""
    ratio = row.claim.ratio
    if ratio is None:
        return "no ratio"
    if ratio.low is None or ratio.high is None:
        return format_factor(ratio.value)
    return f"{format_factor(ratio.value)} [{_end(ratio.low)}, {_end(ratio.high)}]"


def _end(value: float) -> str:
    """Three digits, and more for an end near 1: what excludes 1 must not be shown as 1."""
    texts = (f"{value:.{digits}g}" for digits in range(3, 17))
    return next((text for text in texts if value == 1 or float(text) != 1), "1")

"""Conditions on a run's medians, for scripts and CI.

An example is ``--fail-on 'accelerator_utilization_sustained<0.9'``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...errors import SpecError, nearest
from ...schema.metrics import BY_NAME, METRICS
from ...schema.record import RunRecord, TrainingRecord

KNOWN = tuple(dict.fromkeys(each.name for each in METRICS if each.median or each.of == "verdict"))
"""Metrics that a condition can name: those with one figure in a run document."""

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_EXPRESSION = re.compile(
    r"^\s*([A-Za-z_][A-Za-z0-9_]*)\s*(<=|>=|==|!=|<|>)\s*"
    r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(%?)\s*$"
)


class Threshold(NamedTuple):
    metric: str
    comparison: str
    value: float

    def __str__(self) -> str:
        return f"{self.metric}{self.comparison}{self.value:g}"


def parse(expression: str) -> Threshold:
    """Parse ``metric op number`` (``90%`` is 0.9).

    Raises SpecError for anything else; for an unknown metric it names the nearest known ones.
    """
    match = _EXPRESSION.match(expression)
    if match is None:
        raise SpecError(
            f"'{expression}' is not a condition",
            remedy=(
                "write it like 'accelerator_utilization_sustained<0.9' (in base units: bytes, "
                "seconds, 0 to 1)"
            ),
        )
    metric, comparison, number, percent = match.groups()
    if metric not in KNOWN:
        near = nearest(metric, KNOWN)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(KNOWN)}"
        raise SpecError(f"unknown metric '{metric}' in '{expression}': {hint}")
    return Threshold(metric, comparison, float(number) / 100 if percent else float(number))


def value_of(doc: RunRecord, metric: str) -> float | None:
    """The median over repetitions, or the verdict's figure; None if it was not measured."""
    if BY_NAME[metric].of == "verdict":
        verdict = doc.job.verdict if isinstance(doc, TrainingRecord) else None
        found = getattr(verdict, metric) if verdict else None
        return None if found is None else float(found)
    summary = doc.metrics.get(metric)
    return summary.median if summary else None


def violations(doc: RunRecord, expressions: Sequence[str]) -> list[str]:
    """One line for each condition that holds.

    A condition whose metric was not measured cannot be decided, and counts as well.
    """
    lines = []
    for threshold in [parse(expression) for expression in expressions]:
        value = value_of(doc, threshold.metric)
        if value is None:
            lines.append(
                f"{threshold}: {threshold.metric} was not measured{_reason(doc, threshold.metric)}"
            )
        elif COMPARISONS[threshold.comparison](value, threshold.value):
            lines.append(f"{threshold}: {threshold.metric} is {value:.6g}")
    return lines


def _reason(doc: RunRecord, metric: str) -> str:
    sources: list[dict[str, str]] = []
    if isinstance(doc, TrainingRecord):
        sources += [doc.job.verdict.not_measured] if doc.job.verdict else []
        sources += [repetition.not_measured for repetition in doc.job.repetitions]
    sources += [doc.checkpoints.not_measured] if doc.checkpoints else []
    reason = next((source[metric] for source in sources if metric in source), "")
    return f" ({reason})" if reason else ""

"""What two sides that took turns tell: the claims of a comparison, from its record alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ...schema.ab import AbRecord, Turn
from ...schema.claim import Claim
from ...schema.metrics import BY_NAME, COMPARED, Metric
from ...schema.training import Repetition
from .identity import differences, role_of
from .sequential import MIN_TURNS, Sequential, log_ratio

METRICS: tuple[Metric, ...] = tuple(each for each in COMPARED.values() if each.of == "repetition")
"""The metrics of repetitions by which two sides are compared."""

Verdict = Literal["better", "worse", "equal", "not told"]


def figures_of(repetition: Repetition) -> dict[str, float]:
    """The metrics of a repetition by which sides are compared; one that is missing has no key.

    A loader library's read bandwidth is left out: it is computed from stored bytes, which is not
    comparable with bytes that were read.
    """
    found: dict[str, float] = {}
    for metric in METRICS:
        value = getattr(repetition, metric.name)
        counted = metric.name != "read_bytes_per_s" or repetition.bytes_read is not None
        if value is not None and counted:
            found[metric.name] = float(value)
    return found


def sequential_of(record: AbRecord) -> Sequential:
    """The sequential test of the comparison, with as many turns as were planned."""
    planned = record.planned_turns or record.max_turns
    return Sequential(max(MIN_TURNS, planned), record.threshold)


def logs_of(turns: Sequence[Turn], metric: str) -> list[float]:
    """The logarithm of B over A in each turn in which both are known and above 0."""
    logs = (log_ratio(each.b.figures.get(metric), each.a.figures.get(metric)) for each in turns)
    return [log for log in logs if log is not None]


def claims_of(record: AbRecord) -> list[Claim]:
    """A claim for each metric that a turn has measured, that of the record's metric first.

    A metric that is missing in a turn is not told, because the turns that have it are a selection.
    """
    test = sequential_of(record)
    names = [record.metric, *(each.name for each in METRICS if each.name != record.metric)]
    claims = []
    for name in names:
        figures: list[Mapping[str, float]] = [
            side.figures for turn in record.turns for side in (turn.a, turn.b)
        ]
        if name != record.metric and not any(name in each for each in figures):
            continue
        logs = logs_of(record.turns, name)
        found = test.claim(name, logs, higher_is_better=BY_NAME[name].better == "more")
        if len(logs) < len(record.turns):
            why = f"it is missing or 0 in {len(record.turns) - len(logs)} of the turns"
            found = found.model_copy(
                update={"answer": "not told", "better": None, "more": None, "why": why}
            )
        claims.append(found)
    return claims


def measured(record: AbRecord, claim: Claim) -> bool:
    """Whether every turn has a ratio of the claim's metric."""
    return len(logs_of(record.turns, claim.metric)) == len(record.turns)


def primary(record: AbRecord) -> Claim:
    """The claim of the metric by which the comparison is decided."""
    return claims_of(record)[0]


def verdict(claim: Claim) -> Verdict:
    """B by A, in one word."""
    if claim.answer == "different":
        return "better" if claim.better else "worse"
    return "equal" if claim.answer == "equal" else "not told"


def differs(record: AbRecord) -> tuple[str, ...]:
    """What differs between the sides, as ``key: A -> B``; what they are asked for comes first."""
    lines = differences(record.a.identity, record.b.identity)
    return tuple(sorted(lines, key=lambda line: role_of(line.partition(":")[0]) != "asked"))


def other_work(record: AbRecord) -> tuple[str, ...]:
    """Settings by which the two do different work; how the same samples are stored is none."""
    keys = (line.partition(":")[0] for line in differs(record))
    return tuple(key for key in keys if role_of(key) == "asked" and not key.startswith("dataset."))

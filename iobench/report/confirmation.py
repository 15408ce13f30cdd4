"""``iobench sweep --confirm``: what was advised, and what fresh runs measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..analyse.compare.comparison import ComparedMetric
from ..analyse.tuning.confirmation import Confirmation
from ..analyse.tuning.recommend import Recommendation
from ..schema.verdict import Answer, Estimate
from . import compare
from .sections import Fact, Facts, Headline, Section
from .tried import ANSWERS, interval


def sections(found: Confirmation) -> list[Section]:
    """Whether the advice is confirmed, and the comparison of fresh runs behind it."""
    advice = found.advice
    row = next(row for row in found.comparison.rows if row.metric == "samples_per_s")
    promised = "an unknown gain" if found.promised is None else interval(found.promised)
    measured = "an unknown gain" if found.found is None else interval(found.found)
    p = "" if row.claim.p is None else f", p = {row.claim.p:.2g}"
    changes = ", ".join(f"{key}={value}" for key, value in advice.changes.items())
    title = (
        f"{'confirmed' if found.confirmed else 'NOT confirmed'}: {ANSWERS[found.answer]}: with "
        f"{changes} fresh runs with other seeds do {measured} today's samples/s{p}; the sweep "
        f"promised {promised}"
    )
    return [
        Headline(id="confirmation", title=title, tone="good" if found.confirmed else "plain"),
        *compare.sections([found.comparison], found.notes),
        Facts(
            id="runs",
            title="Fresh runs",
            facts=(Fact(label="results", text=found.directory),),
        ),
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfirmationDocument:
    """The JSON document of ``iobench sweep --confirm``."""

    confirmed: bool
    answer: Answer
    promised: Estimate | None
    found: Estimate | None
    advice: Recommendation
    comparison: Sequence[ComparedMetric]
    directory: str
    left_out: tuple[str, ...]


def document(found: Confirmation) -> ConfirmationDocument:
    """The advice, and the comparison by which it is confirmed or not."""
    return ConfirmationDocument(
        confirmed=found.confirmed,
        answer=found.answer,
        promised=found.promised,
        found=found.found,
        advice=found.advice,
        comparison=found.comparison.rows,
        directory=found.directory,
        left_out=found.notes,
    )

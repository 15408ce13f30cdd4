"""``iobench sweep --confirm``: what was advised, and what fresh runs measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..analyse.compare.runs import Row
from ..analyse.tuning.confirmation import Confirmation
from ..analyse.tuning.recommend import Recommendation
from . import compare
from .sections import Fact, Facts, Headline, Section


def sections(found: Confirmation) -> list[Section]:
    """Whether the advice is confirmed, and the comparison of fresh runs behind it."""
    advice = found.advice
    row = next(row for row in found.comparison.rows if row.metric == "samples_per_s")
    judged = row.judgement
    promised = f"{advice.gain:.2f} x" if advice.gain is not None else "an unknown gain"
    if advice.gain_low is not None and advice.gain_high is not None:
        promised += f" [{advice.gain_low:.2f}, {advice.gain_high:.2f}]"
    measured = f"{judged.ratio:.2f} x" if judged.ratio is not None else "an unknown gain"
    if judged.low is not None and judged.high is not None:
        measured += f" [{judged.low:.2f}, {judged.high:.2f}]"
    answer = (
        "NOT confirmed"
        if not found.confirmed
        else "confirmed"
        if found.better
        else "confirmed as no slower"
    )
    p = "" if judged.p is None else f", p = {judged.p:.2g}"
    changes = ", ".join(f"{key}={value}" for key, value in advice.changes.items())
    title = (
        f"{answer}: with {changes} fresh runs with other seeds do {measured} today's "
        f"samples/s{p}; the sweep promised {promised}"
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
class Document:
    """The JSON document of ``iobench sweep --confirm``."""

    confirmed: bool
    advice: Recommendation
    comparison: Sequence[Row]
    directory: str
    left_out: tuple[str, ...]


def document(found: Confirmation) -> Document:
    """The advice, and the comparison by which it is confirmed or not."""
    return Document(
        confirmed=found.confirmed,
        advice=found.advice,
        comparison=found.comparison.rows,
        directory=found.directory,
        left_out=found.notes,
    )

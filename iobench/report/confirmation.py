"""``iobench sweep --confirm``: what was advised, and what fresh runs measured."""

from __future__ import annotations

from ..analyse.tuning.recommend import SweepConfirmation
from . import compare
from .sections import Fact, Facts, Headline, Section
from .tried import ANSWERS, interval


def sections(found: SweepConfirmation) -> list[Section]:
    """Whether the advice is confirmed, and the comparison of fresh runs behind it."""
    advice = found.advice
    row = next(row for row in found.comparison if row.metric == "samples_per_s")
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
        *compare.sections([found.compared], found.left_out),
        Facts(
            id="runs",
            title="Fresh runs",
            facts=(Fact(label="results", text=found.directory),),
        ),
    ]

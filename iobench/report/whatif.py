"""``iobench whatif``: changes, ceilings before and after, verdict, error of the model."""

from __future__ import annotations

from ..analyse.capacity.whatif import Prediction
from ..analyse.verdict.evidence import Evidence
from ..analyse.verdict.judged import judge
from ..analyse.verdict.promise import in_headline
from ..units import format_count, format_percent
from .figures import BLANK, figure, word
from .glance import bottleneck_text
from .sections import Column, Headline, Item, Items, Prose, Row, Section, Table
from .stages import LABELS

TRUSTED = 0.2
"""A larger error on the recorded run is a violation of the rule ``verdict.gap``.

Stages compete, or a ceiling was measured under other conditions than those of the run.
"""

_CEILINGS = tuple(
    zip(LABELS, ("raw", "fetch", "prep", "loader", "cpu", "accelerator"), strict=True)
)
"""Names of the ceilings, and of their attributes in the evidence."""


def sections(found: Prediction) -> list[Section]:
    """The predicted verdict, the ceilings on both sides, and how far the model can be trusted."""
    before, after = judge(found.before).evidence, judge(found.what_if).evidence
    verdict = found.what_if.job.verdict
    title = f"Run {found.run_id} with {'; '.join(found.changes)}"
    sentences = (
        ()
        if verdict is None
        else (f"Predicted verdict: {bottleneck_text(verdict)}", verdict.sentence)
    )
    parts: list[Section] = [
        Headline(id="what-if", title=title, sentences=sentences),
        _ceilings(before, after),
        Prose(id="error", paragraphs=(_error(found, before),)),
    ]
    if found.bases:
        parts.append(Items(id="bases", items=tuple(Item(text=basis) for basis in found.bases)))
    if verdict is not None and verdict.advice and verdict.bottleneck != "accelerator":
        first = verdict.advice[0]
        promise = in_headline(first)
        gain = f" ({promise})" if promise else ""
        parts.append(Prose(id="next", paragraphs=(f"Then the next change: {first.change}{gain}",)))
    return parts


def _ceilings(before: Evidence, after: Evidence) -> Table:
    rates = [
        (name, LABELS[name], getattr(before, key), getattr(after, key)) for name, key in _CEILINGS
    ]
    rates.append(("predicted", "predicted", before.predicted, after.predicted))
    rates.append(("measured", "measured", before.measured, None))
    rows = []
    for name, label, old, new in rates:
        moved = old is not None and new is not None and abs(new / old - 1) >= 1e-9
        ratio = figure(new / old, lambda ratio: f"{ratio:.2f} x") if moved else BLANK
        cells = (word(label, name), figure(old, format_count), figure(new, format_count), ratio)
        rows.append(Row(cells=cells))
    rate = "samples/s"
    return Table(
        id="ceilings",
        title="Ceilings, samples/s",
        columns=(
            Column(name="ceiling"),
            Column(name="recorded_samples_per_s", label="recorded", unit=rate, align="right"),
            Column(name="what_if_samples_per_s", label="what if", unit=rate, align="right"),
            Column(name="ratio", unit="ratio", align="right"),
        ),
        rows=tuple(rows),
    )


def _error(found: Prediction, before: Evidence) -> str:
    """The error of the model on the recorded run, whose rate is known."""
    if found.model_error is None or before.predicted is None or before.measured is None:
        return "The model's error is not known: the run has no complete repetition."
    sign = "+" if found.model_error >= 0 else "-"
    told = (
        f"The model's error on the recorded run: {format_count(before.predicted)} predicted, "
        f"{format_count(before.measured)} measured "
        f"({sign}{format_percent(abs(found.model_error))})."
    )
    if found.corrected_samples_per_s is not None:
        told += (
            " If it errs as much here, the rate will be "
            f"{format_count(found.corrected_samples_per_s)} samples/s."
        )
    else:
        told += " Another stage is the limit after the change, so this error says nothing about it."
    if abs(found.model_error) > TRUSTED:
        told += " That is too much to be trusted: see the run's findings (verdict.gap)."
    return told

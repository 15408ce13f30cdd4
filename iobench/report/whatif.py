"""Output of ``iobench whatif``: changes, ceilings before and after, verdict, error of the model."""

from __future__ import annotations

from ..analyse.capacity.whatif import Prediction
from ..analyse.verdict.evidence import gather
from ..text import printable, renders
from ..units import format_count, format_percent
from .lines import wrapped
from .text import LABELS

TRUSTED = 0.2
"""A larger error on the recorded run is a violation of the rule ``verdict.gap``.

Stages compete, or a ceiling was measured under other conditions than those of the run.
"""


@renders(printable)
def render_whatif(found: Prediction, width: int = 100) -> str:
    """Lines of at most ``width`` columns."""
    before, after = gather(found.recorded), gather(found.document)
    lines = wrapped(f"Run {found.recorded.run_id} with {'; '.join(found.changes)}", width, "", "  ")
    verdict = found.document.job.verdict
    if verdict is not None:
        binds = (
            "what binds is undecided" if verdict.binds == "undecided" else f"{verdict.binds} binds"
        )
        lines += [f"Predicted verdict: {binds}", *wrapped(verdict.sentence, width)]
    lines += ["", f"{'Ceilings, samples/s':<22}{'recorded':>14}{'what if':>14}"]
    rows = [
        (label, getattr(before, key), getattr(after, key))
        for label, key in zip(
            LABELS.values(), ("raw", "fetch", "prep", "harness", "accelerator"), strict=True
        )
    ]
    rows += [("predicted", before.predicted, after.predicted), ("measured", before.measured, None)]
    for label, old, new in rows:
        moved = (
            ""
            if old is None or new is None or abs(new / old - 1) < 1e-9
            else f"   {new / old:.2f} x"
        )
        lines.append(f"  {label:<20}{_count(old):>14}{_count(new):>14}{moved}")
    lines += ["", *wrapped(_error(found), width)]
    for basis in found.bases:
        lines += wrapped(basis, width, "  ", "    ")
    if verdict is not None and verdict.advice and verdict.binds != "accelerator":
        first = verdict.advice[0]
        gain = "" if first.predicted_gain is None else f" ({first.predicted_gain:.2f} x)"
        lines += wrapped(f"Then the next change: {first.change}{gain}", width)
    return "\n".join(line.rstrip() for line in lines)


def _count(value: float | None) -> str:
    return "-" if value is None else format_count(value)


def _error(found: Prediction) -> str:
    """The error of the model on the recorded run, whose rate is known."""
    before = gather(found.recorded)
    if found.error is None or before.predicted is None or before.measured is None:
        return "The model's error is not known: the run has no complete repetition."
    sign = "+" if found.error >= 0 else "-"
    told = (
        f"The model's error on the recorded run: {format_count(before.predicted)} predicted, "
        f"{format_count(before.measured)} measured "
        f"({sign}{format_percent(abs(found.error))})."
    )
    if found.corrected_samples_per_s is not None:
        told += (
            " If it errs as much here, the rate will be "
            f"{format_count(found.corrected_samples_per_s)} samples/s."
        )
    if abs(found.error) > TRUSTED:
        told += " That is too much to be trusted: see the run's findings (verdict.gap)."
    return told

"""How the times of the steps are spread over all ranks: a curve of quantiles, and a table."""

from __future__ import annotations

from ..analyse.figures.events import Events, select
from ..analyse.figures.timeline import KINDS, LEVELS, TimeSpread, spreads
from ..schema.record import TrainingRecord
from ..units import counted, format_count, format_duration
from .figures import figure
from .sections import Cell, Chart, Column, Row, Section, Table
from .time import middle_repetition

LABELS = {
    "wait": "wait for a batch",
    "read": "read of a batch",
    "prep": "decode of a batch",
    "step": "whole step",
}
SHOWN = {0.5: "p50", 0.9: "p90", 0.99: "p99", 0.999: "p99.9"}


def spread_sections(doc: TrainingRecord, events: Events) -> list[Section]:
    """The repetition with the median rate. ``events`` are those of the whole run."""
    chosen = middle_repetition(doc)
    found = spreads(select(events, "measure", chosen[0])) if chosen else {}
    if chosen is None or not _drawn(found):
        return []
    of = f", repetition {chosen[0] + 1}" if len(doc.job.repetitions) > 1 else ""
    title = f"How the times of the steps are spread over all ranks{of}"
    return [_curve(found, of), _table(found, title)]


def reasons(doc: TrainingRecord, events: Events) -> list[str]:
    """Why some of the kinds of times are not drawn."""
    chosen = middle_repetition(doc)
    found = spreads(select(events, "measure", chosen[0])) if chosen else {}
    if not found:
        return []
    if not _drawn(found):
        steps = counted(next(iter(found.values())).steps, "step")
        return [f"How the times of the steps are spread: {steps} do not tell it."]
    if "read" in found or "prep" in found:
        return []
    subject = doc.job.subject
    why = (
        "they were not recorded"
        if not subject.reads_itself
        else f"loader '{subject.kind}' does not tell these times"
    )
    return [f"Read and decode of a batch: {why}."]


def _drawn(found: dict[str, TimeSpread]) -> bool:
    """Whether there are enough steps for a line."""
    return any(len(each.quantiles) > 1 for each in found.values())


def _curve(found: dict[str, TimeSpread], of: str) -> Table:
    """Seconds over 1 / (1 - quantile), so that each nine takes the same room."""
    kinds = [kind for kind in KINDS if kind in found and len(found[kind].quantiles) > 1]
    levels = [level for level in LEVELS if any(level in found[kind].quantiles for kind in kinds)]
    return Table(
        id="spread",
        title=f"Quantiles of the times of the steps{of}",
        columns=(
            Column(name="quantile", label="quantile", unit="ratio"),
            *(Column(name=kind, label=LABELS[kind], unit="s", align="right") for kind in kinds),
        ),
        rows=tuple(
            Row(
                cells=(
                    Cell(value=1 / (1 - level), text=f"p{100 * level:g}"),
                    *(figure(found[kind].quantiles.get(level), format_duration) for kind in kinds),
                )
            )
            for level in levels
        ),
        charts=(
            Chart(
                kind="lines",
                x="quantile",
                y=tuple(kinds),
                x_label="share of the steps that take at most so long",
                y_label="time",
                log="xy",
                named=True,
            ),
        ),
        where="page",
    )


def _table(found: dict[str, TimeSpread], title: str) -> Table:
    told = [each.quantiles for each in found.values()]
    notes = [
        "Wait: from asking for a batch to having it. Read and decode: a worker's time for the "
        "batch. Whole step: wait, copy, busy, waiting for other ranks, and saves."
    ]
    untold = [name for level, name in SHOWN.items() if all(level not in q for q in told)]
    if untold:
        steps = counted(next(iter(found.values())).steps, "step")
        notes.append(f"Too few steps ({steps}) for {', '.join(untold)}.")
    if any(each.merged for each in found.values()):
        notes.append(
            "There were more steps than rows of events: a row is the mean of neighbouring steps, "
            "so that the largest values are higher than shown."
        )
    return Table(
        id="spreads",
        title=title,
        columns=(
            Column(name="time", label="time of"),
            Column(name="steps", label="steps", unit="count", align="right"),
            *(
                Column(name=f"{name}_s", label=name, unit="s", align="right")
                for name in SHOWN.values()
            ),
            Column(name="longest_s", label="longest", unit="s", align="right"),
        ),
        rows=tuple(
            Row(
                cells=(
                    Cell(value=kind, text=LABELS[kind]),
                    figure(each.steps, format_count),
                    *(figure(each.quantiles.get(level), format_duration) for level in SHOWN),
                    figure(each.longest_s, format_duration),
                )
            )
            for kind, each in found.items()
        ),
        notes=tuple(notes),
        where="pages",
    )

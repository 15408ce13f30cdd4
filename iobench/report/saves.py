"""Saves of checkpoints during a run: what they took, compared with the same saves alone."""

from __future__ import annotations

from ..analyse.checkpoint.study import with_figures
from ..schema.checkpoint import Spread
from ..schema.metrics import metrics_of
from ..schema.record import TrainingRecord
from ..units import counted, format_count
from .figures import Format, figure, format_of, raw, spread, word
from .sections import Cell, Column, Row, Section, Table

SAVE_METRICS = tuple(
    metric
    for metric in metrics_of("save", "restore")
    if metric.unit != "bytes/s" and metric.name not in ("persist_s", "cpu_s")
)
"""The metrics of saves and restores that a report shows; bandwidths have rows of their own."""

_SHOWN = ("blocked_s", "staged_s", "accepted_s", "durable_s", "extra_memory_bytes")


def spread_cells(found: Spread, show: Format) -> tuple[Cell, ...]:
    """Cells of the median (with smallest and largest value), p95, minimum, maximum and number.

    Fewer than 20 values do not tell their p95.
    """
    tail = "" if found.p95 is None else f", p95 {show(found.p95)}"
    told = f"{spread(found.median, found.min, found.max, show)}{tail}"
    middle = Cell(value=found.median, text=told)
    return (middle, *(raw(value) for value in (found.p95, found.min, found.max, found.n)))


SPREAD_COLUMNS = (
    Column(name="median"),
    *(Column(name=name, where="data") for name in ("p95", "min", "max", "n")),
)
"""The columns of ``spread_cells``."""


def saves_sections(doc: TrainingRecord) -> list[Section]:
    """For a run that saved checkpoints while it loaded: these saves, compared with saves alone."""
    study = doc.job.saves
    if study is None:
        return []
    alone = with_figures(study.model_copy(update={"saves": study.alone})).figures
    rows = []
    for metric in SAVE_METRICS:
        name, show = metric.name, format_of(metric)
        if name not in study.figures or name not in _SHOWN:
            continue
        apart = alone[name].median if name in alone else None
        cells = (*spread_cells(study.figures[name], show), figure(apart, show, missing=""))
        rows.append(Row(cells=(word(metric.label, name), *cells)))
    notes: tuple[str, ...] = ()
    if doc.job.quiet is not None and doc.job.quiet.samples_per_s:
        notes = (f"samples/s without saves: {format_count(doc.job.quiet.samples_per_s)}",)
    many = counted(len(study.saves), "save")
    return [
        Table(
            id="saves",
            title=f"Checkpoints of {study.model} by {study.writer} while loading: {many}",
            columns=(
                Column(name="metric"),
                *SPREAD_COLUMNS,
                Column(name="alone", label="alone", align="right"),
            ),
            rows=tuple(rows),
            notes=notes,
        )
    ]

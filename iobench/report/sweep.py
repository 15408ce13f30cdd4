"""``iobench sweep``: the points, the fastest first."""

from __future__ import annotations

from statistics import median

from ..schema.sweep import Sweep, SweepPoint, describe
from ..units import counted, format_count
from .figures import BLANK, raw, spread_of, word
from .sections import Cell, Column, Headline, Item, Items, Row, Section, Table


def sections(sweep: Sweep) -> list[Section]:
    """A table with a row for each point: samples/s over its repetitions, or why it failed."""
    measured = sorted(
        (p for p in sweep.points if p.samples_per_s), key=lambda p: -median(p.samples_per_s)
    )
    rows = [_measured(sweep, point) for point in measured]
    rows += [_failed(point) for point in sweep.points if point.failed]
    title = f"{sweep.workload}: {len(sweep.points)} points, {sweep.repetitions} visits each"
    found: list[Section] = [Headline(id="sweep", title=title)]
    if rows:
        figures = ("samples_per_s", "min", "max")
        columns = (
            Column(name="settings", label="settings"),
            Column(name=figures[0], label="samples/s, median [min, max]", unit="samples/s"),
            *(Column(name=name, unit="samples/s", where="data") for name in figures[1:]),
            Column(name="visits", unit="count", where="data"),
        )
        found.append(Table(id="points", columns=columns, rows=tuple(rows)))
    notes = tuple(Item(text=text) for text in sweep.left_out)
    return [*found, *([Items(id="notes", title="Notes", items=notes)] if notes else [])]


def _measured(sweep: Sweep, point: SweepPoint) -> Row:
    rates = point.samples_per_s
    all_visits = len(rates) >= sweep.repetitions
    marks = [counted(len(rates), "visit")] if len(rates) != sweep.repetitions else []
    marks += ["today's settings"] if point.settings == sweep.default else []
    marks += [f"dropped: {point.dropped}"] if point.dropped and not all_visits else []
    return Row(
        cells=(
            word(describe(point.settings)),
            Cell(value=median(rates), text=spread_of(rates, format_count)),
            raw(min(rates)),
            raw(max(rates)),
            raw(len(rates)),
        ),
        mark="; ".join(marks),
    )


def _failed(point: SweepPoint) -> Row:
    lacking = Cell(value=None, why=f"failed: {point.failed}")
    return Row(cells=(word(describe(point.settings)), lacking, BLANK, BLANK, BLANK))

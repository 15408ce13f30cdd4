"""The chart of ``iobench size``: the rates that the job demands, and what the storage delivers."""

from __future__ import annotations

from ..analyse.capacity.requirement import Requirement
from ..units import format_rate
from .figures import spread
from .sections import Axis, Cell, Column, Mark, Range, Ranges, Row, Section, Table


def rate_sections(need: Requirement) -> list[Section]:
    """Bars of every rate that is known, with a line at what the storage must sustain."""
    found = need.measured
    rates = {
        "reads, mean": need.read_bytes_per_s,
        "reads, to buy": need.buy_bytes_per_s,
        "reads, at the most": need.peak_read_bytes_per_s,
        "writes of a save": need.write_bytes_per_s,
        "reads of a restore": need.restore_bytes_per_s,
    }
    rows = [
        Range(label=label, text=format_rate(rate), value=rate)
        for label, rate in rates.items()
        if rate is not None
    ]
    needed = need.buy_bytes_per_s
    if found is not None:
        rate, low, high = found.read_bytes_per_s, found.low_bytes_per_s, found.high_bytes_per_s
        rows.append(
            Range(
                label="measured",
                text=format_rate(rate),
                value=rate,
                low=low,
                high=high,
                mark="delivered",
            )
        )
        needed = found.needed_bytes_per_s
    title = "What the job demands" + (", and what the storage delivers" if found else "")
    columns = (
        Column(name="rate", label="rate"),
        Column(name="bytes_per_s", label="bytes/s", unit="bytes/s", align="right"),
    )
    cells = [(Cell(value=row.label, text=row.label), _cell(row)) for row in rows]
    return [
        Ranges(
            id="supply",
            title=title,
            axis=Axis(label="bytes/s", unit="bytes/s"),
            rows=tuple(rows),
            marks=() if needed is None else (Mark(at=needed, label="needed"),),
            table="rates",
        ),
        Table(
            id="rates",
            title=title,
            columns=columns,
            rows=tuple(Row(cells=each) for each in cells),
            where="pages",
        ),
    ]


def _cell(row: Range) -> Cell:
    if row.low is None or row.high is None:
        return Cell(value=row.value, text=row.text)
    return Cell(value=row.value, text=spread(row.value, row.low, row.high, format_rate))

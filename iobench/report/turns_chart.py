"""The chart of ``iobench ab``: the ratio of each turn, and the interval as it narrowed."""

from __future__ import annotations

from ..analyse.compare.sequential import MIN_TURNS, logs_of, sequential_of
from ..analyse.compare.statistics import factor_of
from ..schema.ab import AbRecord
from ..schema.metrics import BY_NAME
from ..units import format_factor, format_share
from .figures import raw
from .sections import Axis, Cell, ChartPoint, Column, Lines, Mark, Row, Section, Series, Table
from .tried import interval

MARGIN = 0.02
"""Room below the lowest and above the highest value, as a share of them."""


def narrowing_sections(record: AbRecord) -> list[Section]:
    """Nothing if a turn lacks the metric, since the turns that have it are a selection."""
    metric, test = BY_NAME[record.metric], sequential_of(record)
    logs = logs_of(record.turns, record.metric)
    if not logs or len(logs) < len(record.turns):
        return []
    ratios = [factor_of(log) for log in logs]
    so_far = [test.estimate(logs[:number]) for number in range(1, len(logs) + 1)]
    band = tuple(
        ChartPoint(x=number, y=each.value, low=each.low, high=each.high)
        for number, each in enumerate(so_far, start=1)
        if number >= MIN_TURNS and each is not None
    )
    most = 1 + record.threshold
    shown = [*ratios, 1 / most, most, *(point.low for point in band if point.low)]
    title = f"{metric.short} of B over A, turn by turn, and the interval as it narrowed"
    rows = tuple(
        Row(
            cells=(
                raw(number),
                Cell(value=ratio, text=format_factor(ratio)),
                Cell(value=each.value if each else None, text=interval(each) if each else "-"),
            )
        )
        for number, (ratio, each) in enumerate(zip(ratios, so_far, strict=True), start=1)
    )
    dots = tuple(ChartPoint(x=number, y=ratio) for number, ratio in enumerate(ratios, start=1))
    lines = (
        Series(label="so far", points=band),
        Series(label="each turn", points=dots, joined=False),
    )
    noise = format_share(record.threshold)
    return [
        Lines(
            id="narrowing",
            title=title,
            x=Axis(label="turns", unit="count"),
            y=Axis(label="B / A", unit="ratio", start=min(shown) * (1 - MARGIN)),
            series=tuple(each for each in lines if each.points),
            limits=(
                Mark(at=1.0, label="the same"),
                Mark(at=most, label=f"{noise} more"),
                Mark(at=1 / most, label=f"{noise} less"),
            ),
            table="turn-by-turn",
        ),
        Table(
            id="turn-by-turn",
            title=title,
            columns=(
                Column(name="turn", label="turn"),
                Column(name="ratio", label="B / A", align="right"),
                Column(name="so_far", label="so far", align="right"),
            ),
            rows=rows,
            where="pages",
        ),
    ]

"""The chart of ``iobench ab``: the ratio of each turn, and the interval as it narrowed."""

from __future__ import annotations

from ..analyse.compare.sequential import MIN_TURNS, logs_of, sequential_of
from ..analyse.compare.statistics import factor_of
from ..schema.ab import AbRecord
from ..schema.metrics import BY_NAME
from ..units import format_factor, format_share
from .figures import estimated, raw
from .sections import (
    Cell,
    Chart,
    Column,
    Mark,
    Row,
    Section,
    Table,
)

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
    most = 1 + record.threshold
    told = [number >= MIN_TURNS for number in range(1, len(logs) + 1)]
    lows = [each.low for each, known in zip(so_far, told, strict=True) if known and each]
    shown = [*ratios, 1 / most, most, *(low for low in lows if low)]
    title = f"{metric.short} of B over A, turn by turn, and the interval as it narrowed"
    rows = tuple(
        Row(
            cells=(
                raw(number),
                Cell(value=ratio, text=format_factor(ratio)),
                estimated(each) if known else Cell(value=None, text=estimated(each).text),
            )
        )
        for number, (ratio, each, known) in enumerate(
            zip(ratios, so_far, told, strict=True), start=1
        )
    )
    noise = format_share(record.threshold)
    return [
        Table(
            id="turn-by-turn",
            title=title,
            columns=(
                Column(name="turn", label="turn", unit="count"),
                Column(name="ratio", label="B / A", unit="ratio", align="right"),
                Column(name="so_far", label="so far", unit="ratio", align="right"),
            ),
            rows=rows,
            charts=(
                Chart(
                    kind="lines",
                    x="turn",
                    y=("so_far", "ratio"),
                    dots=("ratio",),
                    x_label="turns",
                    y_label="B / A",
                    limits=(
                        Mark(at=1.0, label="the same"),
                        Mark(at=most, label=f"{noise} more"),
                        Mark(at=1 / most, label=f"{noise} less"),
                    ),
                    start=min(shown) * (1 - MARGIN),
                ),
            ),
            where="pages",
        ),
    ]

"""The charts of a sweep: samples/s over the settings.

Two settings have a heat map and lines. Of more than two, each two that were varied together have
them, those that changed samples/s most first, with the others as in one point. A setting that was
varied alone has a chart of its own through that point. Settings that are names, such as codecs,
have bars instead of a line.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median

from ..analyse.tuning.points import number
from ..schema.sweep import Sweep, SweepPoint, describe
from ..units import format_count
from .figures import evenly, spread_of
from .sections import (
    Axis,
    ChartPoint,
    Heat,
    Lines,
    Range,
    Ranges,
    Section,
    Series,
    Square,
)
from .sweep_front import Grid, grid_of, rate_of, rates_of

MAX_SERIES, MAX_PAIRS, MAX_SLICES = 8, 6, 6
"""Lines in a chart, pairs of settings, and charts of one setting each."""

SHADED = 0.5
"""Shades begin at this share of the highest value, or at the lowest value if that is less: so that
values that hardly differ look alike.
"""

UNIT, TITLE = "samples/s", "Samples/s"


def chart_sections(sweep: Sweep) -> list[Section]:
    """Samples/s over the settings; nothing if fewer than two points have a figure."""
    grid = grid_of(sweep)
    if sum(rate_of(point) is not None for point in grid.points.values()) < 2:
        return []
    varied = sorted(
        (key for key in grid.keys if len(grid.values[key]) > 1), key=grid.effect, reverse=True
    )
    pairs = _pairs(grid, varied)[:MAX_PAIRS]
    names = ["", *(f"-{number}" for number in range(2, len(pairs) + 1))]
    found: list[Section] = [
        section
        for pair, name in zip(pairs, names, strict=False)
        for section in _two(grid, *pair, name)
    ]
    rest = [key for key in varied if all(key not in pair for pair in pairs)]
    slices = [_one(grid, key, f"slice-{at}") for at, key in enumerate(rest, start=1)]
    return [*found, *[each for each in slices if each is not None][:MAX_SLICES]]


def _pairs(grid: Grid, varied: Sequence[str]) -> list[tuple[str, str]]:
    """The settings of the columns and of the rows, of each two that were varied together."""
    found: list[tuple[str, str]] = []
    for one, other in itertools.combinations(varied, 2):
        first, second = _present(grid, one, other), _present(grid, other, one)
        crossed = sum(
            grid.at(grid.base, {one: x, other: y}) is not None for x in first for y in second
        )
        # A cross of the two settings through one point is no map.
        if crossed > len(first) + len(second) - 1:
            columns = max(
                (other, one), key=lambda key: (_numeric(grid, key), len(grid.values[key]))
            )
            found.append((columns, one if columns == other else other))
    return found


def _present(grid: Grid, key: str, other: str) -> list[str]:
    """The values of ``key`` that the map of both settings has a point for."""
    return [
        text
        for text in grid.values[key]
        if any(grid.at(grid.base, {key: text, other: each}) for each in grid.values[other])
    ]


def _numeric(grid: Grid, key: str) -> bool:
    return all(number(text) is not None for text in grid.values[key])


def _rest(grid: Grid, *keys: str) -> str:
    """The settings that are the same in a chart, for its title; empty if there are none."""
    others = {
        key: text
        for key, text in zip(grid.keys, grid.base, strict=True)
        if key not in keys and len(grid.values[key]) > 1
    }
    return f", with {describe(others)}" if others else ""


def _short(key: str) -> str:
    return key.partition(".")[2] or key


def _two(grid: Grid, columns: str, rows: str, name: str) -> list[Section]:
    """A heat map of two settings, and a line for each row if the columns are numbers.

    ``name``: the end of their ids.
    """
    across, down = _present(grid, columns, rows), _present(grid, rows, columns)
    squares = tuple(
        tuple(_square(grid, grid.at(grid.base, {columns: x, rows: y})) for x in across)
        for y in down
    )
    known = [each.value for row in squares for each in row if each.value is not None]
    what = f"{_short(rows)} and {_short(columns)}{_rest(grid, rows, columns)}"
    found: list[Section] = [
        Heat(
            id=f"heat{name}",
            title=f"{TITLE} by {what}",
            x=_short(columns),
            y=_short(rows),
            unit=UNIT,
            columns=tuple(across),
            rows=tuple(down),
            squares=squares,
            low=min(min(known), SHADED * max(known)),
            high=max(known),
            table="points",
        )
    ]
    if _numeric(grid, columns) and len(across) > 1:
        found.append(_lines(grid, columns, rows, f"lines{name}"))
    return found


def _square(grid: Grid, point: SweepPoint | None) -> Square:
    if point is None:
        return Square(value=None, text="not run")
    rate = rate_of(point)
    if rate is None:
        return Square(value=None, text="failed" if point.failed else "not run")
    fastest, today = grid.points[grid.fastest], grid.default and grid.points.get(grid.default)
    mark = "highest" if point is fastest else "today" if point is today else ""
    return Square(value=rate, text=format_count(round(rate, 1)), mark=mark)


def _lines(grid: Grid, columns: str, rows: str, name: str) -> Lines:
    down = _present(grid, rows, columns)
    few = evenly(down, MAX_SERIES)
    left = "" if len(few) == len(down) else f" ({len(few)} of {len(down)} values)"
    at = grid.keys.index(rows)
    series = []
    for text in few:
        where = (*grid.base[:at], text, *grid.base[at + 1 :])
        points = tuple(_dot(x, point) for x, point in grid.along(columns, where))
        if points:
            series.append(Series(label=f"{_short(rows)} {text}", points=points))
    return Lines(
        id=name,
        title=f"{TITLE} over {_short(columns)}, by {_short(rows)}{left}"
        f"{_rest(grid, rows, columns)}",
        x=_axis(grid, columns),
        y=Axis(label=UNIT, unit="samples/s"),
        series=tuple(series),
        table="points",
    )


def _axis(grid: Grid, key: str) -> Axis:
    texts = grid.values[key]
    known = [number(text) or 0.0 for text in texts]
    sized = any(text.rstrip()[-1:] == "B" for text in texts)
    wide = min(known) > 0 and max(known) >= 4 * min(known)
    return Axis(
        label=_short(key), unit="bytes" if sized else "count", scale="log2" if wide else "linear"
    )


def _dot(text: str, point: SweepPoint) -> ChartPoint:
    rates = rates_of(point)
    low, high = (min(rates), max(rates)) if len(rates) > 1 else (None, None)
    return ChartPoint(x=number(text) or 0.0, y=median(rates), low=low, high=high)


def _one(grid: Grid, key: str, name: str) -> Section | None:
    """Samples/s over one setting, with the others as in one point."""
    found = grid.along(key, grid.base)
    if len(found) < 2:
        return None
    title = f"{TITLE} over {_short(key)}{_rest(grid, key)}"
    if _numeric(grid, key):
        points = tuple(_dot(text, point) for text, point in found)
        return Lines(
            id=name,
            title=title,
            x=_axis(grid, key),
            y=Axis(label=UNIT, unit="samples/s"),
            series=(Series(label=UNIT, points=points),),
            table="points",
        )
    today = grid.default and grid.points.get(grid.default)
    rows = []
    for text, point in found:
        rates = rates_of(point)
        rows.append(
            Range(
                label=text,
                text=spread_of(rates, format_count),
                value=median(rates),
                low=min(rates),
                high=max(rates),
                mark="today" if point is today else "",
            )
        )
    axis = Axis(label=UNIT, unit="samples/s")
    return Ranges(id=name, title=title, axis=axis, rows=tuple(rows), table="points")

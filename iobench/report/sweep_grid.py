"""Samples/s of a sweep, or its other metric, over its settings, as tables that a page draws.

Two settings have a map and lines. Of more than two, each two that were varied together have them,
those that changed it most first, with the others as in one point. A setting that was varied
alone has a table of its own through that point. Settings that are names, such as codecs, have bars
instead of a line.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from ..ask.tuning.points import number
from ..record.metrics import Metric
from ..record.sweep import Sweep, SweepPoint, describe, setting_text
from .figures import TableOf, capital, cell, evenly, format_of
from .sections import Cell, Chart, Table

MAX_SERIES, MAX_PAIRS, MAX_SLICES = 8, 6, 6
"""Lines in a chart, pairs of settings, and charts of one setting each."""


def over_settings(sweep: Sweep) -> list[Table]:
    """Samples/s over the settings; nothing if fewer than two points have a figure."""
    grid = grid_of(sweep)
    if sum(rate_of(point) is not None for point in grid.points.values()) < 2:
        return []
    varied = sorted(
        (key for key in grid.keys if len(grid.values[key]) > 1), key=grid.effect, reverse=True
    )
    pairs = _pairs(grid, varied)[:MAX_PAIRS]
    names = ["", *(f"-{at}" for at in range(2, len(pairs) + 1))]
    found = [_two(grid, *pair, f"heat{name}") for pair, name in zip(pairs, names, strict=False)]
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


def _two(grid: Grid, along: str, across: str, name: str) -> Table:
    """A map of two settings, and a line for each column if the settings of the rows are numbers."""
    rows, columns = _present(grid, along, across), _present(grid, across, along)
    keys = [f"{_short(across)}={text}" for text in columns]
    charts = [Chart(kind="heat", y=tuple(keys))]
    rest = _rest(grid, along, across)
    if _numeric(grid, along) and len(rows) > 1:
        few = evenly(keys, MAX_SERIES)
        left = "" if len(few) == len(keys) else f" ({len(few)} of {len(keys)} values)"
        title = f"{grid.title} over {_short(along)}, by {_short(across)}{left}{rest}"
        charts.append(_lines(grid, along, tuple(few), title))
    table = TableOf(rows)
    _setting(table, grid, along)
    for key, text in zip(keys, columns, strict=True):
        cells = {x: _rate(grid, grid.at(grid.base, {along: x, across: text})) for x in rows}
        table.add(key, f"{_short(across)} {text}", grid.metric.unit, cells.__getitem__)
    title = f"{grid.title} by {_short(across)} and {_short(along)}{rest}"
    return table.made(name, title, charts=charts, where="page")


def _one(grid: Grid, key: str, name: str) -> Table | None:
    """Samples/s over one setting, with the others as in one point."""
    found = grid.along(key, grid.base)
    if len(found) < 2:
        return None
    title, rate = f"{grid.title} over {_short(key)}{_rest(grid, key)}", grid.metric.name
    bars = Chart(kind="bars", y=(rate,), label=(key,), title=title, y_label=grid.metric.short)
    points = dict(found)
    table = TableOf(points)
    _setting(table, grid, key)
    label, show = f"{grid.metric.short}, median [min, max]", format_of(grid.metric)
    table.add(rate, label, grid.metric.unit, lambda each: cell(rates_of(points[each]), show))
    chart = _lines(grid, key, (rate,), title) if _numeric(grid, key) else bars
    today = grid.today
    return table.made(
        name,
        title,
        mark=lambda each: "today" if points[each] is today else "",
        charts=[chart],
        where="page",
    )


def _lines(grid: Grid, key: str, columns: tuple[str, ...], title: str) -> Chart:
    known = [number(text) or 0.0 for text in grid.values[key]]
    wide = min(known) > 0 and max(known) >= 4 * min(known)
    return Chart(
        kind="lines",
        x=key,
        y=columns,
        title=title,
        y_label=grid.metric.short,
        log="x" if wide else "",
    )


def _setting(table: TableOf[str], grid: Grid, key: str) -> None:
    """The column of a setting, whose texts are the records of the table."""
    sized = any(text.rstrip()[-1:] == "B" for text in grid.values[key])
    numeric = _numeric(grid, key)
    table.add(
        key,
        _short(key),
        "bytes" if sized else "count",
        lambda text: Cell(value=number(text) if numeric else text, text=text),
    )


def _rate(grid: Grid, point: SweepPoint | None) -> Cell:
    """The median of a point, or why there is none."""
    if point is None:
        return Cell(value=None, why="not run")
    rates = rates_of(point)
    if not rates:
        return Cell(value=None, why="failed" if point.failed else "not run")
    best = "highest" if grid.metric.better == "more" else "lowest"
    mark = f" {best}" if point is grid.points[grid.fastest] else ""
    mark = mark or " today" * (point is grid.today)
    low, high = (min(rates), max(rates)) if len(rates) > 1 else (None, None)
    text = f"{format_of(grid.metric)(median(rates))}{mark}"
    return Cell(value=median(rates), text=text, low=low, high=high)


Texts = tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """The points of a sweep by the texts of their settings, in the order of ``keys``."""

    sweep: Sweep
    keys: Texts
    points: Mapping[Texts, SweepPoint]
    default: Texts | None

    @cached_property
    def values(self) -> dict[str, list[str]]:
        """The values of each setting: numbers by their size, others as they were given."""
        found = {}
        for at, key in enumerate(self.keys):
            texts = list(dict.fromkeys(where[at] for where in self.points))
            known = {text: number(text) for text in texts}
            if None not in known.values():
                texts.sort(key=lambda text: known[text] or 0.0)
            found[key] = texts
        return found

    @cached_property
    def fastest(self) -> Texts:
        return max(self.points, key=lambda where: speed_of(self.sweep, self.points[where]))

    @property
    def metric(self) -> Metric:
        return self.sweep.compared_by

    @property
    def title(self) -> str:
        return capital(self.metric.short)

    @property
    def today(self) -> SweepPoint | None:
        """The point of today's settings."""
        return None if self.default is None else self.points.get(self.default)

    @cached_property
    def base(self) -> Texts:
        """The point through which slices go: the fastest, or today's settings if they have more."""
        choices = [self.fastest]
        if self.default is not None and self.default in self.points:
            choices.append(self.default)
        return max(choices, key=lambda where: sum(len(self.along(key, where)) for key in self.keys))

    def at(self, where: Texts, changes: Mapping[str, str]) -> SweepPoint | None:
        """The point whose settings are those of ``where``, but for the changes."""
        texts = (changes.get(key, text) for key, text in zip(self.keys, where, strict=True))
        return self.points.get(tuple(texts))

    def along(self, key: str, where: Texts) -> list[tuple[str, SweepPoint]]:
        """The measured points that differ from ``where`` in ``key`` alone, and itself."""
        found = ((text, self.at(where, {key: text})) for text in self.values[key])
        return [(text, point) for text, point in found if point and rate_of(point) is not None]

    def effect(self, key: str) -> float:
        """The logarithm of the highest over the lowest figure of points that differ in ``key``.

        They are alike in all else; the mean over all such groups.
        """
        logs: dict[Texts, list[float]] = {}
        at = self.keys.index(key)
        for where, point in self.points.items():
            if (rate := rate_of(point)) is not None:
                logs.setdefault((*where[:at], *where[at + 1 :]), []).append(math.log(rate))
        spans = [max(each) - min(each) for each in logs.values() if len(each) > 1]
        return fmean(spans) if spans else 0.0


def rates_of(point: SweepPoint) -> list[float]:
    """The figures of the trials that measured some."""
    return [rate for rate in point.figures if math.isfinite(rate) and rate > 0]


def rate_of(point: SweepPoint) -> float | None:
    rates = rates_of(point)
    return median(rates) if rates else None


def speed_of(sweep: Sweep, point: SweepPoint) -> float:
    """The larger, the better; 0 for a point without a figure."""
    rate = rate_of(point)
    return sweep.speed(rate) if rate else 0.0


def grid_of(sweep: Sweep) -> Grid:
    """The points by their settings; a combination that means the same is the same point."""
    keys = tuple(dict.fromkeys(key for point in sweep.points for key in point.settings))
    points: dict[Texts, SweepPoint] = {}
    for point in sweep.points:
        for settings in (point.settings, *point.also):
            points[tuple(setting_text(settings.get(key)) for key in keys)] = point
    default = sweep.default
    now = None if default is None else tuple(setting_text(default.get(key)) for key in keys)
    return Grid(sweep, keys, points, now)

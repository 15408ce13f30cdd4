"""``iobench sweep``: the points, the fastest first, what they cost, and their charts.

The charts are tables of the metric over the settings, which a page draws. Two settings have a map
and lines. Of more than two, each two that were varied together have them, those that changed it
most first, with the others as in one point. A setting that was varied alone has a table of its own
through that point. Settings that are names, such as codecs, have bars instead of a line.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import fmean, median

from ..ask.tuning.points import front, number, payback
from ..base.text import capital
from ..base.units import counted, format_factor
from ..judge.statistics import MIN_COVERAGE, ratio_interval
from ..record.metrics import Metric
from ..record.sweep import Sweep, SweepPoint, describe, setting_text
from .figures import (
    MAX_BARS,
    RANGE,
    TableOf,
    add_head,
    cell,
    evenly,
    format_of,
    listed,
    picture,
    some,
)
from .glance import ended, kept_sections
from .sections import Cell, Chart, FirstScreen, KeyFigure, Section, Table, Where, joined

COSTS = {
    "stored_bytes": ("stored bytes", "bytes"),
    "read_bytes_per_sample": ("bytes read for each sample", "bytes"),
    "cpu_s_per_gb": ("CPU s/GB", "s/GB"),
}
"""What a point costs, by the names of the table's columns: their labels and units."""

MAX_ALIKE = 3
"""Points that are named beside the fastest one, from which its trials do not tell them."""

ALIKE = 1.02
"""Costs within this factor of each other are not worth a chart."""

_USD = "usd_per_million_samples"


def sections(sweep: Sweep) -> list[Section]:
    """Charts, and a row for each point: samples/s over its repetitions, or why it failed."""
    best = sorted(
        (point for point in sweep.points if rate_of(point) is not None),
        key=lambda point: -speed_of(sweep, point),
    )
    points, over = [_points(sweep, best)] if sweep.points else [], over_settings(sweep)
    return joined(
        ended("This sweep", sweep.status),
        _first(sweep, best),
        [*over, *points] if points and points[0].charts else [*points, *over],
        listed("notes", "Notes", sweep.left_out),
        kept_sections(sweep),
    )


def _first(sweep: Sweep, best: list[SweepPoint]) -> FirstScreen:
    """The fastest points, and how much faster than today's settings."""
    metric, show = sweep.compared_by, format_of(sweep.compared_by)
    best_is = "highest" if metric.better == "more" else "lowest"
    marks = {id(point): "today" for point in sweep.points if point.settings == sweep.default}
    bars = [
        (describe(each.settings), cell(rates_of(each), show), marks.get(id(each), ""))
        for each in best[:MAX_BARS]
    ]
    now = next((rates_of(point) for point in best if id(point) in marks), None)
    gauges, high = list[KeyFigure](), rate_of(best[0]) if best else None
    if high and now:
        gauges.append(
            KeyFigure("over today's settings", _over(rates_of(best[0]), now, len(best) - 1))
        )
    if high:
        gauges.append(KeyFigure(f"{best_is} {metric.short}", show(high)))
    failed = sum(1 for point in sweep.points if point.failed)
    same = ", which are today's settings" * bool(best and id(best[0]) in marks)
    told = [f"The {best_is} median is that of {describe(point.settings)}{same}." for point in best]
    if not best:
        told = [f"{describe(each.settings)}: {each.failed}" for each in sweep.points if each.failed]
    state = f"{counted(len(best), 'point')} measured" + (f", {failed} failed" if failed else "")
    return FirstScreen(
        job=f"Sweep of {sweep.workload}",
        state=state,
        flags=() if sweep.status == "ok" else (sweep.status,),
        sentences=(*told[:1], *_as_fast(best), *_paid(sweep, best)),
        gauges=tuple(gauges),
        picture=picture(f"{capital(metric.short)}, the fastest settings first", bars),
        trust=f"At most {counted(sweep.repetitions, 'trial')} of each point." if best else "",
    )


def _over(rates: Sequence[float], today: Sequence[float], among: int) -> str:
    """The factor between two points, with its interval where each has several trials.

    ``among``: the first one is the fastest of so many.
    """
    if min(len(rates), len(today)) < 2 or rates == today:
        return format_factor(median(rates) / median(today))
    factor, low, high, coverage = ratio_interval(rates, today, among=among)
    if coverage < MIN_COVERAGE:
        return f"{factor:.2f} x, too few trials for an interval"
    return f"{factor:.2f} x [{low:.2f}, {high:.2f}]"


def _as_fast(best: Sequence[SweepPoint]) -> list[str]:
    """Name the points of which a trial is as fast as one of the first point's."""
    if not best or len(own := rates_of(best[0])) < 2:
        return []
    others = [(describe(each.settings), rates_of(each)) for each in best[1:]]
    alike = [name for name, found in others if min(found) <= max(own) and min(own) <= max(found)]
    if not alike:
        return []
    return [f"The trials do not tell it from {some(alike, MAX_ALIKE, ', ')}: their ranges overlap."]


def _paid(sweep: Sweep, best: list[SweepPoint]) -> list[str]:
    """When the data of the fastest point for which that is known has paid for its conversion."""
    known = (found for point in best if (found := payback(sweep, point)) is not None)
    return [f"Converting the data: {found.told}." for found in known][:1]


def _pays_back(sweep: Sweep, point: SweepPoint) -> float | None:
    found = payback(sweep, point)
    return found.epochs if found else None


def _rate(sweep: Sweep, point: SweepPoint) -> Cell:
    if point.failed:
        return Cell(value=None, why=f"failed: {point.failed}")
    return cell(rates_of(point), format_of(sweep.compared_by))


def _points(sweep: Sweep, best: list[SweepPoint]) -> Table:
    """The measured points, the fastest first, and those that failed."""
    rows = TableOf([*best, *(point for point in sweep.points if point.failed)])
    rows.add("settings", "settings", of=lambda each: describe(each.settings))
    label = f"{sweep.compared_by.short}, median [min, max]"
    rows.add(sweep.metric, label, of=partial(_rate, sweep), ends=RANGE)
    rows.data("trials", of=lambda each: len(rates_of(each)) or None)
    for name, (label, unit) in COSTS.items():
        rows.add_each({name: label}, unit, _cost, where="pages")
    priced: Where = "everywhere" if _has_price(sweep) else "data"
    usd = partial(_usd_per_million, sweep)
    rows.add(_USD, "USD/million", of=usd, show="{:.4g}".format, where=priced)
    paid: Where = "everywhere" if any(payback(sweep, each) for each in sweep.points) else "data"
    back, epochs = partial(_pays_back, sweep), "pays back after, epochs"
    rows.add("payback_epochs", epochs, of=back, show="{:.2g}".format, missing="", where=paid)
    fronts = {
        id(each): Cell(value=None if each.failed else on, text="yes" if on else "")
        for each, on in zip(sweep.points, _on_front(sweep), strict=True)
    }
    rows.add("pareto_front", "Pareto front", of=lambda each: fronts[id(each)], where="pages")
    add_head(rows, sweep)

    def mark(point: SweepPoint) -> str:
        if point.failed:
            return ""
        rates = rates_of(point)
        marks = [counted(len(rates), "trial")] if len(rates) != sweep.repetitions else []
        marks += ["today's settings"] if point.settings == sweep.default else []
        dropped = point.dropped and len(rates) < sweep.repetitions
        return "; ".join([*marks, *([f"dropped: {point.dropped}"] if dropped else [])])

    return rows.made("points", "Points, the fastest first", mark=mark, charts=[*_fronts(sweep)])


def _fronts(sweep: Sweep) -> Iterator[Chart]:
    """The Pareto front of the metric and each cost that differs between the points.

    With a price, also that of the price of samples and the bytes that are stored. All points have
    run on one host, so the fastest is the cheapest: what a price adds is what a point with fewer
    stored bytes costs more in hours of the host.
    """
    metric = sweep.compared_by
    for name, (label, _) in COSTS.items():
        known = [
            each
            for point in sweep.points
            if rate_of(point) is not None and (each := _cost(point, name)) is not None
        ]
        if len(known) < 2 or max(known) <= ALIKE * min(known):
            continue
        chart = Chart(
            kind="front",
            x=name,
            y=(sweep.metric,),
            label=("settings",),
            title=f"Pareto front of {metric.short} and {label}",
            y_label=metric.short,
            better=("less", metric.better or "more"),
        )
        yield chart
        if name == "stored_bytes" and _has_price(sweep):
            yield replace(
                chart,
                y=(_USD,),
                title="Pareto front of the price of samples and stored bytes",
                y_label="USD for a million samples",
                better=("less", "less"),
            )


def _usd_per_million(sweep: Sweep, point: SweepPoint) -> float | None:
    """The price of a million samples of a point; None without a price, or without a rate."""
    rate, price = rate_of(point), sweep.usd_per_hour
    if price is None or not rate or not _has_price(sweep):
        return None
    return price / rate / 3600 * 1e6


def _has_price(sweep: Sweep) -> bool:
    return sweep.usd_per_hour is not None and sweep.compared_by.unit == "samples/s"


def _on_front(sweep: Sweep) -> list[bool]:
    """For each point whether no other one is as fast with as little of every cost."""
    costs = [
        (-speed_of(sweep, point) or None, *(_cost(point, name) for name in COSTS))
        for point in sweep.points
    ]
    return [on and costs[at][0] is not None for at, on in enumerate(front(costs))]


def _cost(point: SweepPoint, name: str) -> float | None:
    """A cost of a point, or the median of its trials that measured it."""
    values = getattr(point, name)
    several = values if isinstance(values, list) else [values]
    finite = [each for each in several if each is not None and math.isfinite(each)]
    return median(finite) if finite else None


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
        cells = {x: _rate_of(grid, grid.at(grid.base, {along: x, across: text})) for x in rows}
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


def _rate_of(grid: Grid, point: SweepPoint | None) -> Cell:
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
    """The figures of the trials that measured some; none of a point that has failed."""
    return [rate for rate in point.counted if math.isfinite(rate) and rate > 0]


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

"""``iobench sweep``: the points, the fastest first, what they cost, and their charts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median

from ..ask.tuning.points import front, payback
from ..base.units import counted, format_factor
from ..record.sweep import Sweep, SweepPoint, describe
from .again import kept_sections
from .figures import MAX_BARS, RANGE, TableOf, capital, cell, format_of, listed, picture
from .glance import ended
from .labels import add_tags
from .sections import Cell, Chart, FirstScreen, KeyFigure, Section, Table, Where, joined
from .sweep_grid import over_settings, rate_of, rates_of, speed_of

COSTS = {
    "stored_bytes": ("stored bytes", "bytes"),
    "read_bytes_per_sample": ("bytes read for each sample", "bytes"),
    "cpu_s_per_gb": ("CPU s/GB", "s/GB"),
}
"""What a point costs, by the names of the table's columns: their labels and units."""

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
    now = next((rate_of(point) for point in best if id(point) in marks), None)
    gauges, high = list[KeyFigure](), rate_of(best[0]) if best else None
    if high and now:
        gauges.append(KeyFigure("over today's settings", format_factor(high / now)))
    if high:
        gauges.append(KeyFigure(f"{best_is} {metric.short}", show(high)))
    failed = sum(1 for point in sweep.points if point.failed)
    same = ", which are today's settings" * bool(best and id(best[0]) in marks)
    told = [f"The {best_is} median is that of {describe(point.settings)}{same}." for point in best]
    state = f"{counted(len(best), 'point')} measured" + (f", {failed} failed" if failed else "")
    return FirstScreen(
        job=f"Sweep of {sweep.workload}",
        state=state,
        flags=() if sweep.status == "ok" else (sweep.status,),
        sentences=(*told[:1], *_paid(sweep, best)),
        gauges=tuple(gauges),
        picture=picture(f"{capital(metric.short)}, the fastest settings first", bars),
        trust=f"At most {counted(sweep.repetitions, 'trial')} of each point." if best else "",
    )


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
    add_tags(rows, sweep)

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

"""``iobench sweep``: the points, the fastest first, and their charts."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from ..schema.sweep import Sweep, SweepPoint, describe
from ..units import counted, format_count, format_factor
from .again import command_sections
from .figures import BLANK, MAX_BARS, figure, picture, raw, spread_of, word
from .glance import ended
from .sections import (
    Cell,
    Column,
    FirstScreen,
    Headline,
    Item,
    Items,
    KeyFigure,
    Row,
    Section,
    Table,
)
from .sweep_charts import chart_sections
from .sweep_front import (
    COSTS,
    front_sections,
    on_front,
    price_sections,
    rate_of,
    rates_of,
    usd_per_million,
)

_USD = "usd_per_million_samples"
_FIGURES = ("samples_per_s", "min", "max")
_COLUMNS = (
    Column(name="settings", label="settings"),
    Column(name=_FIGURES[0], label="samples/s, median [min, max]", unit="samples/s"),
    *(Column(name=name, unit="samples/s", where="data") for name in _FIGURES[1:]),
    Column(name="visits", unit="count", where="data"),
    *(
        Column(name=name, label=cost.unit, unit=cost.axis.unit, align="right", where="pages")
        for name, cost in COSTS.items()
    ),
    Column(name=_USD, label="USD/million", align="right", where="data"),
    Column(name="pareto_front", label="Pareto front", where="pages"),
)


def sections(sweep: Sweep) -> list[Section]:
    """Charts, and a row for each point: samples/s over its repetitions, or why it failed."""
    kept = dict(zip(map(id, sweep.points), on_front(sweep), strict=True))
    measured = sorted(
        ((rate, point) for point in sweep.points if (rate := rate_of(point)) is not None),
        key=lambda pair: -pair[0],
    )
    rows = [_measured(sweep, point, on_front=kept[id(point)]) for _, point in measured]
    rows += [_failed(point) for point in sweep.points if point.failed]
    title = f"{sweep.workload}: {len(sweep.points)} points, {sweep.repetitions} visits each"
    told = _sentence(sweep, measured[0][1]) if measured else ""
    found = ended("This sweep", sweep.status, "")
    found.append(_first(sweep, [point for _, point in measured], told))
    found.append(Headline(id="sweep", title=title, sentences=(told,) if told else ()))
    found += chart_sections(sweep)
    found += [*front_sections(sweep), *price_sections(sweep)]
    if rows:
        found.append(Table(id="points", columns=_columns(sweep), rows=tuple(rows)))
    notes = tuple(Item(text=text) for text in sweep.left_out)
    found += [Items(id="notes", title="Notes", items=notes)] if notes else []
    return [*found, *(command_sections(sweep.command) if sweep.command else [])]


def _first(sweep: Sweep, best: list[SweepPoint], told: str) -> FirstScreen:
    """The first screen of a page: the fastest points, and how much faster than today's settings."""
    marks = {id(point): "today" for point in sweep.points if point.settings == sweep.default}
    bars = [
        (
            describe(point.settings),
            median(rates_of(point)),
            spread_of(rates_of(point), format_count),
            marks.get(id(point), ""),
        )
        for point in best[:MAX_BARS]
    ]
    now = next((rate_of(point) for point in best if id(point) in marks), None)
    gauges = []
    if bars and now:
        gauges.append(
            KeyFigure(label="over today's settings", value=format_factor(bars[0][1] / now))
        )
    if bars:
        gauges.append(KeyFigure(label="highest samples/s", value=format_count(bars[0][1])))
    failed = sum(1 for point in sweep.points if point.failed)
    state = f"{counted(len(best), 'point')} measured" + (f", {failed} failed" if failed else "")
    return FirstScreen(
        job=f"Sweep of {sweep.workload}",
        state=state,
        flags=() if sweep.status == "ok" else (sweep.status,),
        sentences=(told,) if told else (),
        gauges=tuple(gauges),
        picture=picture("Samples/s, the fastest settings first", bars),
        trust=f"{counted(sweep.repetitions, 'visit')} of each point.",
        instead="sweep",
    )


def _columns(sweep: Sweep) -> tuple[Column, ...]:
    """The columns of the points; the price of samples is shown if one was given."""
    if sweep.usd_per_hour is None:
        return _COLUMNS
    return tuple(replace(one, where="everywhere") if one.name == _USD else one for one in _COLUMNS)


def _sentence(sweep: Sweep, best: SweepPoint) -> str:
    """The point with the highest median, and that of today's settings beside it."""
    told = f"The highest median is {format_count(median(rates_of(best)))} samples/s"
    told += f" with {describe(best.settings)}"
    today = next((point for point in sweep.points if point.settings == sweep.default), None)
    if today is best:
        return f"{told}, which are today's settings."
    now, high = None if today is None else rate_of(today), rate_of(best)
    if now is None or high is None:
        return f"{told}."
    return f"{told}: {format_factor(high / now)} that of today's settings."


def _measured(sweep: Sweep, point: SweepPoint, *, on_front: bool) -> Row:
    rates = rates_of(point)
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
            *(figure(cost.of(point), cost.show) for cost in COSTS.values()),
            figure(usd_per_million(sweep, point), lambda usd: f"{usd:.4g}"),
            Cell(value=on_front, text="yes" if on_front else ""),
        ),
        mark="; ".join(marks),
    )


def _failed(point: SweepPoint) -> Row:
    lacking = Cell(value=None, why=f"failed: {point.failed}")
    blank = [BLANK] * (len(_COLUMNS) - 2)
    return Row(cells=(word(describe(point.settings)), lacking, *blank))

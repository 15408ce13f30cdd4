"""``iobench compare --over-time``: a bar for each run, where the level changed, and the drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from ..ask.compare.drift import MIN_DRIFT_RUNS, Day
from ..ask.compare.history import ChangePoint, History, RunEntry
from ..base.units import counted, format_duration, format_factor, format_percent
from ..judge.statistics import NOISE
from ..record.ab import Drift
from ..record.metrics import COMPARED
from .compare import left_out_sections
from .figures import MAX_BARS, Format, figure, format_of, median_cell, picture, raw, word
from .sections import (
    Bars,
    Cell,
    Chart,
    Column,
    FirstScreen,
    Headline,
    Item,
    Items,
    KeyFigure,
    Mark,
    Row,
    Section,
    Table,
)

MAX_CHANGED = 6
"""Largest number of changed facts that one change shows."""


def sections(found: Sequence[History], left_out: Sequence[str]) -> list[Section]:
    """For each history its trend and drift, its runs (the oldest first), days and changes."""
    parts = [
        section
        for number, one in enumerate(found, start=1)
        for section in _history(one, f"history-{number}")
    ]
    return parts + left_out_sections(left_out)


def _history(one: History, name: str) -> list[Section]:
    metric = COMPARED[one.metric]
    trend = "" if one.trend is None else f", newest third {format_factor(one.trend)} the oldest"
    if trend and one.answer == "inconclusive":
        trend += ": inconclusive"
    runs = counted(len(one.entries), "run")
    points = {point.at: point for point in (*one.points, *([one.possible] if one.possible else []))}
    found: list[Section] = [
        _first(one, name, points),
        Headline(
            id=name,
            title=f"{one.workload}: {metric.short} of {runs}{trend}",
            sentences=tuple(_sentences(one)),
        ),
        Table(
            id=f"{name}-runs",
            columns=(
                Column(name="workload", where="data"),
                Column(name="metric", where="data"),
                Column(name="run_id", label="run", where="pages"),
                Column(name="created", label="recorded"),
                Column(name="median", label=f"{metric.short}, median [min, max]", unit=metric.unit),
                Column(name="min", unit=metric.unit, where="data"),
                Column(name="max", unit=metric.unit, where="data"),
                Column(name="validity", where="data"),
                Column(name="change", where="data"),
                Column(name="ratio", where="data"),
            ),
            rows=tuple(_run(one, number, points.get(number)) for number in range(len(one.entries))),
            bars=Bars(column="median", full=max(entry.median for entry in one.entries)),
            charts=(_chart(one, points),),
            notes=_notes(one),
        ),
    ]
    if one.days:
        found.append(_days(one, f"{name}-days"))
    items = tuple(_change(point, one.entries[point.at]) for _, point in sorted(points.items()))
    return [*found, Items(id=f"{name}-changes", title="Changes", items=items)] if items else found


def _first(one: History, name: str, points: Mapping[int, ChangePoint]) -> FirstScreen:
    """The first screen of a page: the newest runs, and whether the figure changed."""
    metric = COMPARED[one.metric]
    show = format_of(metric)
    start = max(0, len(one.entries) - MAX_BARS)
    bars = [
        (
            entry.created[:16].replace("T", " "),
            entry.median,
            show(entry.median),
            _word(points[at]) if at in points else "",
        )
        for at, entry in enumerate(one.entries[start:], start)
    ]
    gauges = [KeyFigure(label="runs", value=str(len(one.entries)))]
    if one.trend is not None:
        newest = "newest third over the oldest" + (
            ", inconclusive" * (one.answer == "inconclusive")
        )
        gauges.insert(0, KeyFigure(label=metric.short, value=format_factor(one.trend), note=newest))
    worse = any(not point.better and not point.why for point in points.values())
    return FirstScreen(
        id=f"{name}-answer",
        job=f"{one.workload}: {metric.short} over time",
        state=one.answer,
        tone="bad" if worse else "plain",
        sentences=tuple(_sentences(one)),
        gauges=tuple(gauges),
        picture=picture(f"{metric.label} of the newest runs", bars),
        trust=" ".join(_notes(one)),
        instead=name,
    )


def _chart(one: History, points: Mapping[int, ChangePoint]) -> Chart:
    """The runs that count, in their order; a mark where the figure changed."""
    metric = COMPARED[one.metric]
    return Chart(
        kind="lines",
        y=("median",),
        title=f"{metric.label} of each run: median, and range of its repetitions",
        x_label="run, oldest first",
        y_label=metric.short,
        rows=tuple(at for at, each in enumerate(one.entries) if each.validity != "invalid"),
        marks=tuple(Mark(at=at + 1, label=_word(point)) for at, point in sorted(points.items())),
    )


def _sentences(one: History) -> list[str]:
    found = [_drift(one.drift)]
    if one.drift is not None and any(not point.changed for point in one.points):
        found.append("Changes at which no setting and no version changed are a part of that.")
    varied = dict.fromkeys(
        change.partition(":")[0] for entry in one.entries for change in entry.changed
    )
    if varied:  # These changes, and not only the storage, may explain a trend.
        found.append(f"Not the same in all: {', '.join(varied)}.")
    if one.gap_days is not None:
        found.append(f"There is no run in the {one.gap_days:.0f} days before {one.gap_until[:10]}.")
    return found


def _drift(drift: Drift | None) -> str:
    if drift is None:
        return (
            "How much equal runs differ here is not known: "
            f"it takes {MIN_DRIFT_RUNS} runs with the same settings."
        )
    text = (
        f"Equal runs of this workload here differ by {format_percent(drift.sd)} (standard "
        f"deviation of {counted(drift.runs, 'run')}"
    )
    span = _seconds(drift.first, drift.last)
    if span is None:
        return f"{text})."
    if span < 86_400:
        return f"{text} within {format_duration(span)}: drift over days is not in it)."
    return f"{text} over {span / 86_400:.0f} days)."


def _seconds(first: str, last: str) -> float | None:
    try:
        return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()
    except (ValueError, TypeError):  # somebody else's record; or only one of them has a time zone
        return None


def _notes(one: History) -> tuple[str, ...]:
    if one.answer == "inconclusive":
        return (f"inconclusive: {one.why}",)
    if one.answer == "no change":
        return (f"no lasting change of more than {format_percent(NOISE)} was found",)
    return ()


def _run(one: History, number: int, point: ChangePoint | None) -> Row:
    entry, show = one.entries[number], format_of(COMPARED[one.metric])
    marks = [] if point is None else [_word(point)]
    marks += ["INVALID, not counted"] if entry.validity == "invalid" else []
    return Row(
        cells=(
            raw(one.workload),
            raw(one.metric),
            word(entry.run_id),
            word(entry.created[:16], entry.created),
            median_cell(entry.values, show),
            raw(min(entry.values)),
            raw(max(entry.values)),
            raw(entry.validity),
            raw(None if point is None else _word(point)),
            raw(None if point is None else point.ratio.value),
        ),
        mark="; ".join(marks),
    )


def _days(one: History, name: str) -> Table:
    """The calendar. It says nothing that the runs do not if each day has one run."""
    metric = COMPARED[one.metric]
    show = format_of(metric)
    return Table(
        id=name,
        title="Days",
        columns=(
            Column(name="workload", where="data"),
            Column(name="metric", where="data"),
            Column(name="day", label="day"),
            Column(name="runs", label="runs", align="right"),
            Column(name="median", label="median", unit=metric.unit),
            Column(name="lowest", label="lowest run", unit=metric.unit),
            Column(name="highest", label="highest run", unit=metric.unit),
        ),
        rows=tuple(_day(one, day, show) for day in one.days),
        where="everywhere" if 1 < len(one.days) < sum(day.runs for day in one.days) else "pages",
    )


def _day(one: History, day: Day, show: Format) -> Row:
    figures = (figure(value, show) for value in (day.median, day.low, day.high))
    cells = (raw(one.workload), raw(one.metric), word(day.date))
    return Row(cells=(*cells, Cell(value=day.runs, text=str(day.runs)), *figures))


def _word(point: ChangePoint) -> str:
    if point.why:
        return "inconclusive"
    return "better" if point.better else "WORSE"


def _change(point: ChangePoint, entry: RunEntry) -> Item:
    ratio = point.ratio
    interval = ""
    if ratio.low is not None and ratio.high is not None:
        interval = f" [{ratio.low:.3g}, {ratio.high:.3g}]"
    told = f", inconclusive: {point.why}" if point.why else ""
    if point.p is not None:
        told = f", p {point.p:.2g}"
    text = (
        f"{entry.created[:16]}: {_word(point)}: {format_factor(ratio.value)}{interval}{told}; "
        f"since the run of {point.after[:16]}"
    )
    more = len(point.changed) - MAX_CHANGED
    rest = f"; and {more} more" if more > 0 else ""
    why = "; ".join(point.changed[:MAX_CHANGED])
    return Item(
        text=f"{text} changed: {why}{rest}"
        if why
        else f"{text} nothing in the settings, the host, the storage or the versions changed"
    )

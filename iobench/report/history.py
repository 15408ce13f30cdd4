"""``iobench compare --over-time``: a bar for each run, where the level changed, and the drift."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from ..ask.compare.claims import MIN_DRIFT_RUNS
from ..ask.compare.history import ChangePoint, History, RunEntry
from ..base.units import counted, format_duration, format_factor, format_percent
from ..judge.statistics import NOISE
from ..record.ab import Drift
from ..record.metrics import COMPARED
from .figures import (
    MAX_BARS,
    RANGE,
    TableOf,
    cell,
    format_of,
    interval_of,
    listed,
    picture,
    some,
    word,
)
from .sections import Bars, Chart, FirstScreen, KeyFigure, Mark, Section, Table, joined

MAX_CHANGED = 6
"""Largest number of changed facts that one change shows."""


def sections(found: Sequence[History], left_out: Sequence[str]) -> list[Section]:
    """For each history its trend and drift, its changes, and its runs (the oldest first)."""
    named = [(f"history-{number}", one) for number, one in enumerate(found, start=1)]
    parts = [part for name, one in named for part in _history(one, name)]
    return joined(parts, listed("left-out", "Left out", left_out))


def _history(one: History, name: str) -> Iterator[Section]:
    points = {point.at: point for point in (*one.points, *([one.possible] if one.possible else []))}
    yield _first(one, name, points)
    yield _runs(one, name, points)


def _first(one: History, name: str, points: Mapping[int, ChangePoint]) -> FirstScreen:
    """The newest runs, and whether the figure changed."""
    metric, start = COMPARED[one.metric], max(0, len(one.entries) - MAX_BARS)
    words = {at: _word(point) for at, point in points.items()}
    bars = [
        (entry.created[:16].replace("T", " "), entry.median, words.get(at, ""))
        for at, entry in enumerate(one.entries[start:], start)
    ]
    gauges = [KeyFigure("runs", str(len(one.entries)))]
    if one.trend is not None:
        doubt = ", inconclusive" * (one.answer == "inconclusive")
        note = f"(newest third over the oldest{doubt})"
        gauges.insert(0, KeyFigure(metric.short, format_factor(one.trend), note))
    told = (_change(point, one.entries[point.at]) for _, point in sorted(points.items()))
    worse = any(not point.better and not point.why for point in points.values())
    return FirstScreen(
        id=name,
        job=f"{one.workload}: {metric.short} over time",
        state=one.answer,
        tone="bad" if worse else "plain",
        sentences=tuple(_sentences(one)),
        gauges=tuple(gauges),
        picture=picture(f"{metric.label} of the newest runs", bars, format_of(metric)),
        changes=listed(f"{name}-changes", "Changes", told),
        trust=_answer(one),
    )


def _runs(one: History, name: str, points: Mapping[int, ChangePoint]) -> Table:
    """A row for each run, the oldest first."""
    metric = COMPARED[one.metric]
    show, changed = format_of(metric), {id(one.entries[at]): each for at, each in points.items()}

    def mark(entry: RunEntry) -> str:
        point = changed.get(id(entry))
        marks = [] if point is None else [_word(point)]
        marks += ["INVALID, not counted"] if entry.validity == "invalid" else []
        return "; ".join(marks)

    rows = TableOf(one.entries)
    rows.data("workload", "metric", each=lambda _, key: getattr(one, key))
    rows.add("run_id", "run", where="pages")
    rows.add("created", "recorded", of=lambda each: word(each.created[:16], each.created))
    label = f"{metric.short}, median [min, max]"
    rows.add("median", label, metric.unit, lambda each: cell(list(each.values), show), ends=RANGE)
    rows.data("validity")
    words = {at: _word(point) for at, point in changed.items()}
    ratios = {at: point.ratio.value for at, point in changed.items()}
    rows.data("change", of=lambda each: words.get(id(each)))
    rows.data("ratio", of=lambda each: ratios.get(id(each)))
    return rows.made(
        f"{name}-runs",
        "Runs, the oldest first",
        mark=mark,
        bars=Bars(column="median", full=max(entry.median for entry in one.entries)),
        charts=[_chart(one, points)],
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
    found = [_drift(one.drift, one.within)]
    if one.after_fill:
        found.append("A budget cut some runs: rates leave out the start of each epoch.")
    if one.drift is not None and any(not point.changed for point in one.points):
        changes = "Changes at which no setting and no version changed are"
        if one.within is None:
            found.append(f"{changes} a part of that.")
        else:
            found.append(f"{changes} not in that: with them it is {format_percent(one.drift.sd)}.")
    varied = dict.fromkeys(
        change.partition(":")[0] for entry in one.entries for change in entry.changed
    )
    if varied:  # These changes, and not only the storage, may explain a trend.
        found.append(f"Not the same in all: {', '.join(varied)}.")
    if one.gap_days is not None:
        found.append(f"There is no run in the {one.gap_days:.0f} days before {one.gap_until[:10]}.")
    return found


def _drift(drift: Drift | None, within: float | None) -> str:
    if drift is None:
        return (
            "How much equal runs differ here is not known: "
            f"it takes {MIN_DRIFT_RUNS} runs with the same settings."
        )
    runs = f"standard deviation of {counted(drift.runs, 'run')}"
    spread = format_percent(drift.sd if within is None else within)
    between = " between the changes" * (within is not None)
    text = f"Equal runs of this workload here differ by {spread}{between} ({runs}"
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


def _answer(one: History) -> str:
    if one.answer == "inconclusive":
        return f"Inconclusive: {one.why}."
    if one.answer == "no change":
        return f"No lasting change of more than {format_percent(NOISE)} was found."
    return ""


def _word(point: ChangePoint) -> str:
    if point.why:
        return "inconclusive"
    return "better" if point.better else "WORSE"


def _change(point: ChangePoint, entry: RunEntry) -> str:
    ratio = point.ratio
    gain = f"{format_factor(ratio.value)} {interval_of(ratio, '{:.3g}'.format)}".strip()
    told = f", {point.why}" if point.why else ""
    if point.p is not None:
        told = f", p {point.p:.2g}"
    when, before = (each[:16].replace("T", " ") for each in (entry.created, point.after))
    text = f"{when}: {_word(point)}: {gain}{told}; since the run of {before}"
    nothing = "nothing in the settings, the host, the storage or the versions changed"
    return f"{text} {f'changed: {some(point.changed, MAX_CHANGED)}' if point.changed else nothing}"

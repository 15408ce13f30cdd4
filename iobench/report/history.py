"""``iobench history``: a line with a bar for each run, and the runs where the rate changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..analyse.compare.history import ChangePoint, Entry, History
from ..schema.metrics import COMPARED
from ..units import counted
from .compare import left_out_sections
from .figures import format_of, raw, spread_of, word
from .sections import Bars, Cell, Column, Headline, Item, Items, Row, Section, Table


def sections(found: Sequence[History], left_out: Sequence[str]) -> list[Section]:
    """For each history its trend, its runs (the oldest first), and the changes that count."""
    parts = [
        section
        for number, one in enumerate(found, start=1)
        for section in _history(one, f"history-{number}")
    ]
    return parts + left_out_sections(left_out)


def _history(one: History, name: str) -> list[Section]:
    metric = COMPARED[one.metric]
    trend = "" if one.trend is None else f", newest third {one.trend:.3g} x the oldest"
    runs = counted(len(one.entries), "run")
    varied = dict.fromkeys(
        change.partition(":")[0] for entry in one.entries for change in entry.changed
    )
    # These changes, and not only the storage, may explain a trend.
    sentences = (f"not the same in all: {', '.join(varied)}",) if varied else ()
    title = f"{one.workload}: {metric.short} of {runs}{trend}"
    points = {point.at: point for point in one.points}
    rows = tuple(_run(one, number, points.get(number)) for number in range(len(one.entries)))
    found: list[Section] = [
        Headline(id=name, title=title, sentences=sentences),
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
            ),
            rows=rows,
            bars=Bars(column="median", full=max(entry.median for entry in one.entries)),
            notes=() if one.points else ("no change that counts",),
        ),
    ]
    if not one.points:
        return found
    items = tuple(_change(point, one.entries[point.at]) for point in one.points)
    return [*found, Items(id=f"{name}-changes", title="Changes that count", items=items)]


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
            Cell(value=entry.median, text=spread_of(entry.values, show)),
            raw(min(entry.values)),
            raw(max(entry.values)),
            raw(entry.validity),
        ),
        mark="; ".join(marks),
    )


def _word(point: ChangePoint) -> str:
    return "WORSE" if point.judgement.difference == "worse" else "better"


def _change(point: ChangePoint, entry: Entry) -> Item:
    judged = point.judgement
    ratio = "" if judged.ratio is None else f" {judged.ratio:.3g} x,"
    why = "; ".join(point.changed) or "nothing in the fingerprint or the settings changed"
    return Item(
        text=f"{entry.created[:16]}: {_word(point)}:{ratio} p {judged.p:.2g}; changed: {why}"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryRecord:
    """One history in the JSON document, with the median of each run."""

    workload: str
    metric: str
    entries: tuple[Entry, ...]
    points: tuple[ChangePoint, ...]
    trend: float | None
    medians: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """The JSON document of ``iobench history``."""

    histories: tuple[HistoryRecord, ...]
    left_out: tuple[str, ...]


def document(found: Sequence[History], left_out: Sequence[str]) -> Document:
    """The histories, and the runs that were left out."""
    records = tuple(
        HistoryRecord(
            workload=one.workload,
            metric=one.metric,
            entries=one.entries,
            points=one.points,
            trend=one.trend,
            medians=tuple(entry.median for entry in one.entries),
        )
        for one in found
    )
    return Document(histories=records, left_out=tuple(left_out))

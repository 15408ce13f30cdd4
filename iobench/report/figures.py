"""How figures are shown: by their unit, and as a spread; and the cells that hold them.

Also what tells runs of several machines, storages and workloads apart, in tables and metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Generic, Literal, TypeGuard, TypeVar

from ..ask.capacity.scaling import Band
from ..base.text import capital
from ..base.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from ..judge.promise import shown
from ..record.checkpoint import Spread
from ..record.curve import Rate
from ..record.metrics import Metric
from ..record.run import (
    CheckpointRecord,
    KvCacheRecord,
    ModelLoadRecord,
    RunRecord,
    ServingRecord,
    Summary,
    TrainingRecord,
)
from ..record.verdict import Estimate
from ..settings.base import RecordHead
from .sections import (
    TAG,
    Bars,
    Cell,
    Chart,
    Column,
    Fact,
    Facts,
    Item,
    Items,
    Row,
    Table,
    Tone,
    Value,
    Where,
)

MAX_BARS = 6
"""Bars of a picture on a first screen."""

Format = Callable[[float], str]
T = TypeVar("T")
X = TypeVar("X")

BY_UNIT: Mapping[str, Format] = {
    "samples/s": format_count,
    "requests/s": format_count,
    "count": format_count,
    "bytes/s": format_rate,
    "bytes": format_bytes,
    "s": format_duration,
    "share": format_percent,
    "s/GB": "{:.4g}".format,
    "ratio": lambda ratio: f"{ratio:.2f} x",
    "W": lambda watts: f"{watts:,.0f} W",
    "MHz": lambda clock: f"{clock:,.0f} MHz",
}


def format_of(metric: Metric) -> Format:
    """The function that turns the metric's value, in base units, into text."""
    return BY_UNIT[metric.unit]


def ends(low: float, high: float, show: Format) -> str:
    """``[1,880, 1,910]``: the smallest and the largest value, or the bounds of an interval."""
    return f"[{show(low)}, {show(high)}]"


def interval_of(found: Ranged, show: Format) -> str:
    """``[1,880, 1,910]``; empty if the interval is not known."""
    return "" if found.low is None or found.high is None else ends(found.low, found.high, show)


def with_interval(
    rate: float, low: float | None, high: float | None, show: Format, n: int | None = None
) -> Cell:
    """The cell of a figure with its interval, which charts draw: ``1,900 [1,880, 1,910]``.

    ``n``: of how many values the ends are the smallest and the largest. One value has none.
    """
    if low is None or high is None or n == 1:
        return Cell(value=rate, text=show(rate))
    return Cell(value=rate, text=f"{show(rate)} {ends(low, high, show)}", low=low, high=high)


def medians_of(n: int, what: str) -> str:
    """``median [min, max] of 3 saves``; ``one save only``."""
    return f"one {what} only" if n == 1 else f"median [min, max] of {counted(n, what)}"


Summarised = Summary | Spread
"""A median with the smallest and the largest value."""


def interval(gain: Estimate | None) -> str:
    """``3.20 x [3.15, 3.26]``; without an interval ``3.20 x``; ``-`` without a gain."""
    return "-" if gain is None else shown(gain)


def estimated(gain: Estimate, text: str = "") -> Cell:
    """The cell of an estimate with its interval, or with another text."""
    return Cell(value=gain.value, text=text or shown(gain), low=gain.low, high=gain.high)


def lacking(why: str) -> Cell:
    """The cell of a figure that was not measured."""
    return Cell(value=None, why=f"not measured: {why or NO_REASON}")


def word(text: str, value: Value = None) -> Cell:
    """The cell of a text; ``value`` is what data gets instead of it."""
    return Cell(value=text if value is None else value, text=text)


def listed(
    name: str,
    title: str,
    entries: Iterable[str | Item],
    most: int | None = None,
    *,
    first: bool = False,
) -> Items | None:
    """The entries as a list, of which ``most`` are shown; None if there are none."""
    every = [Item(text=each) if isinstance(each, str) else each for each in entries]
    items = tuple(every[:most])
    more = len(every) - len(items)
    return Items(id=name, title=title, items=items, more=more, first=first) if items else None


def told(*facts: object) -> tuple[str, ...]:
    """The texts among the facts: one that does not hold is False, None, 0 or empty."""
    return tuple(fact for fact in facts if fact and isinstance(fact, str))


def together(*facts: object) -> str:
    """The texts that ``told`` takes, with commas between them."""
    return ", ".join(told(*facts))


def some(texts: Sequence[str], most: int, between: str = "; ") -> str:
    """So many of the texts, and how many more there are."""
    more = len(texts) - most
    rest = f"{between.strip(', ')} and {more} more" if more > 0 else ""
    return f"{between.join(texts[:most])}{rest}"


def raw(value: Value) -> Cell:
    """The cell of a value that only data shows."""
    return Cell(value=value, text="" if value is None else str(value))


def facts(
    name: str, title: str, found: Iterable[tuple[str, str]], where: Where = "everywhere"
) -> Facts:
    """Facts of labels and texts, without those that have no text."""
    shown = tuple(Fact(label=label, text=text) for label, text in found if text)
    return Facts(id=name, title=title, facts=shown, where=where)


def tone_of(good: bool | None) -> Tone:
    """Good and bad have one colour each; what is not decided has none."""
    return "plain" if good is None else "good" if good else "bad"


def sentence(text: str) -> str:
    """The text as a sentence: with a capital letter and a full stop."""
    return f"{capital(text)}." if text else ""


class Medians:
    """A table with a metric in each row: its median, and for data the figures named ``data``."""

    def __init__(self, *data: str) -> None:
        names = (Column(name=name, where="data") for name in data)
        self.columns = (Column(name="metric"), Column(name="median"), *names)
        self.rows: list[Row] = []

    def add(self, label: str, name: str, cell: Cell, *data: Value) -> None:
        """A metric, with or without the figures for data."""
        rest = map(raw, data) if data else [BLANK] * (len(self.columns) - 2)
        self.rows.append(Row(cells=(word(label, name), cell, *rest)))

    def measured(self, metric: Metric, found: Summarised, label: str = "", told: str = "") -> None:
        """A metric that was measured. ``told`` goes on after its spread."""
        shown = cell(found, format_of(metric))
        data = (getattr(found, column.name) for column in self.columns[2:])
        self.add(label or metric.label, metric.name, replace(shown, text=shown.text + told), *data)

    def table(self, name: str, title: str, notes: tuple[str, ...] = ()) -> Table:
        return Table(id=name, title=title, columns=self.columns, rows=tuple(self.rows), notes=notes)


Ranged = Estimate | Rate | Band
"""A figure with the interval that it is in. Value None: nothing tells where in it."""


def ranged(found: Ranged, show: Format) -> str:
    """``1,900 [1,880, 1,910]``; ``inconclusive [950, 1,910]``; ``1,900`` where all are alike."""
    value, interval = "" if found.value is None else show(found.value), interval_of(found, show)
    if interval == f"[{value}, {value}]":
        return value
    return f"{value or INCONCLUSIVE} {interval}".strip()


Given = Cell | Ranged | Summarised | Value | list[float]
"""What a column has of a record: a cell, or what its cell is made of. A list has its median."""

_ENDINGS = {
    "samples_per_s": "samples/s",
    "requests_per_s": "requests/s",
    "bytes_per_s": "bytes/s",
    "_per_s": "",
    "bytes": "bytes",
    "cpu_s_per_gb": "s/GB",
    "_share": "share",
    "_s": "s",
}
"""The units of columns, by how their names end: keys of a record carry their unit."""


def unit_of(name: str) -> str:
    """The unit that the name of a column carries; empty if it carries none."""
    return next((unit for ending, unit in _ENDINGS.items() if name.endswith(ending)), "")


class TableOf(Generic[T]):
    """A table with a row for each record, which is made column by column."""

    def __init__(self, records: Iterable[T], *, most: int | None = None, more: int = 0) -> None:
        """``most``: records beyond so many are left out, and ``more`` have been already."""
        every = list(records)
        self.records = every[:most]
        self._columns: list[Column] = []
        self._cells: list[list[Cell]] = []
        self._more = more + len(every) - len(self.records)

    def add(
        self,
        name: str,
        label: str = "",
        unit: str | None = None,
        of: Callable[[T], Given] | None = None,
        *,
        show: Format | None = None,
        missing: str = "-",
        ends: Sequence[str] = (),
        where: Where = "everywhere",
    ) -> None:
        """A column of ``of`` each record, or of its attribute ``name``.

        Figures are shown as their unit demands, or by ``show``; figures stand at the right. The
        unit is that of the name, if it is not given. ``ends``: the names of two more columns, for
        data, of the ends of their intervals; ``{}`` in them is ``name``.
        """
        unit = unit_of(name) if unit is None else unit
        get: Callable[[T], Given] = of or (lambda each: getattr(each, name))
        form = show or BY_UNIT.get(unit, format_count)
        cells = [cell(get(each), form, missing) for each in self.records]
        right = any(_is_figure(each.value) for each in cells)
        align: Literal["left", "right"] = "right" if right else "left"
        self._columns.append(Column(name=name, label=label, unit=unit, align=align, where=where))
        self._cells.append(cells)
        for at, end in enumerate(ends):
            self._columns.append(Column(name=end.format(name), unit=unit, where="data"))
            self._cells.append([raw((each.low, each.high)[at]) for each in cells])

    def add_each(
        self,
        labels: Mapping[str, str],
        unit: str | None = None,
        of: Callable[[T, str], Given] = getattr,
        *,
        missing: str = "-",
        where: Where = "everywhere",
    ) -> None:
        """A column for each name with its label: ``of`` a record and the name."""
        for name, label in labels.items():
            self.add(name, label, unit, partial(_of, of, name), missing=missing, where=where)

    def data(
        self,
        *names: str,
        of: Callable[[T], Value] | None = None,
        each: Callable[[T, str], Value] = getattr,
    ) -> None:
        """Columns that only data shows: ``of`` a record, or what ``each`` has of it and a name."""
        for name in names:
            self.add(name, of=of or partial(_of, each, name), where="data")

    def made(
        self,
        name: str,
        title: str = "",
        *,
        mark: Callable[[T], str] | None = None,
        tone: Callable[[T], Tone] | None = None,
        bars: Bars | None = None,
        charts: Sequence[Chart] = (),
        notes: Sequence[str] = (),
        where: Where = "everywhere",
    ) -> Table:
        """The table. ``mark`` and ``tone`` tell what sets a row apart."""
        rows = tuple(
            Row(
                cells=tuple(cells[at] for cells in self._cells),
                mark=mark(each) if mark else "",
                tone=tone(each) if tone else "plain",
            )
            for at, each in enumerate(self.records)
        )
        return Table(
            id=name,
            title=title,
            columns=tuple(self._columns),
            rows=rows,
            bars=bars,
            charts=tuple(charts),
            notes=tuple(notes),
            more=self._more,
            where=where,
        )


def _of(get: Callable[[T, str], X], name: str, record: T) -> X:
    return get(record, name)


def cell(value: Given, show: Format, missing: str = "-") -> Cell:
    """The cell of a figure, with its interval or its range where it has one."""
    if isinstance(value, Cell):
        return value
    if isinstance(value, list):
        return with_interval(median(value), min(value), max(value), show, len(value))
    if isinstance(value, Estimate) and show is BY_UNIT["ratio"]:
        return estimated(value)
    if isinstance(value, Ranged):
        return Cell(value=value.value, text=ranged(value, show), low=value.low, high=value.high)
    if isinstance(value, Summarised):
        return with_interval(value.median, value.min, value.max, show, value.n)
    if _is_figure(value):
        return Cell(value=value, text=show(value))
    return Cell(value=value, text=missing if value is None else str(value))


def _is_figure(value: Given) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


Bar = tuple[str, float | Cell | list[float] | None, str]
"""What a bar of a picture is of, its value, and what sets it apart, if anything does."""


def picture(
    title: str,
    found: Iterable[Bar],
    show: Format = format_count,
    *,
    line: float | None = None,
    full: float | None = None,
) -> Table | None:
    """Bars for a first screen; None without a value. ``line`` is marked across all bars."""
    bars = [(name, cell(value, show, ""), mark) for name, value, mark in found]
    known = [each for each in bars if each[1].value is not None]
    values = [of.value for _, of, _ in known if isinstance(of.value, int | float)]
    longest = full or max([*values, line or 0.0], default=0.0)
    if not known or longest <= 0:
        return None
    return Table(
        id="picture",
        title=title,
        columns=(Column(name="name"), Column(name="value", align="right")),
        rows=tuple(Row(cells=(word(name), of), mark=mark) for name, of, mark in known),
        bars=Bars(column="value", full=longest, line=line),
    )


RANGE = ("min", "max")
ENDS = ("{}_low", "{}_high")
"""How columns with the ends of a range, or of an interval, are named."""

INCONCLUSIVE = "inconclusive"

NO_REASON = "no reason was recorded"
"""Why a figure is missing, where the record does not say it."""

BLANK = Cell(value=None)
"""An empty cell: there is nothing to say."""


def evenly(values: Sequence[T], most: int) -> list[T]:
    """At most so many of the values: the first, the last, and evenly between them."""
    if len(values) <= most:
        return list(values)
    return [values[round(at * (len(values) - 1) / (most - 1))] for at in range(most)]


def labels_of(doc: RunRecord) -> dict[str, Value]:
    """What tells runs of several machines, storages and workloads apart; None: not recorded.

    Host, cores, memory and instance are those of the first host. Of a checkpoint study, and of
    loads of a model, the workload is the model; of requests it is the scenario.
    """
    workload = dataset = None
    if isinstance(doc, TrainingRecord):
        workload, dataset = doc.job.workload.name, doc.job.dataset.name
    elif isinstance(doc, CheckpointRecord | ModelLoadRecord):
        workload = doc.job.model
    elif isinstance(doc, ServingRecord):
        workload, dataset = doc.job.scenario.name, doc.job.dataset.name
    elif isinstance(doc, KvCacheRecord):
        workload = doc.job.scenario.name
    host, memory = doc.host, doc.host.effective_memory_bytes
    return {
        "created": doc.created,
        "workload": workload or None,
        "dataset": dataset or None,
        "storage": doc.storage.url or None,
        "host": host.node or None,
        "hosts": len(doc.hosts) or None,
        "cores": host.cores if host.effective_cores is None else host.effective_cores,
        "memory_bytes": host.memory_bytes if memory is None else memory,
        "instance": host.instance_type or None,
    }


def data_table(rows: TableOf[T], doc: RunRecord, name: str, title: str) -> Table:
    """The table of data of a run, with its labels behind the columns."""
    known = {**labels_of(doc), "validity": doc.validity}
    rows.data(*known, each=lambda _, key: known[key])
    add_head(rows, doc)
    return rows.made(name, title, where="data")


def add_head(rows: TableOf[T], record: RecordHead) -> None:
    """Columns of how all ended and of the labels that the user gave, for tables of data."""
    rows.data("status", of=lambda _: record.status)
    known = {f"{TAG}{key}": value for key, value in record.tags.items()}
    rows.data(*known, each=lambda _, key: known[key])


def tags_text(record: RecordHead) -> str:
    """``box=nfs-b, site=Basel``; empty if there is no label."""
    return ", ".join(f"{key}={value}" for key, value in record.tags.items())

"""How figures are shown: by their unit, and as a spread; and the cells that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple, Protocol, TypeVar

from ..base.units import format_bytes, format_count, format_duration, format_percent, format_rate
from ..judge.promise import shown
from ..record.metrics import Metric
from ..record.verdict import Estimate
from .sections import Bars, Cell, Column, Fact, Item, Items, Row, Section, Table, Tone, Value, Where

MAX_BARS = 6
"""Bars of a picture on a first screen."""

Format = Callable[[float], str]
T = TypeVar("T")

BY_UNIT: Mapping[str, Format] = {
    "samples/s": format_count,
    "count": format_count,
    "bytes/s": format_rate,
    "bytes": format_bytes,
    "s": format_duration,
    "share": format_percent,
    "ratio": lambda ratio: f"{ratio:.2f} x",
    "W": lambda watts: f"{watts:,.0f} W",
    "MHz": lambda clock: f"{clock:,.0f} MHz",
}


def format_of(metric: Metric) -> Format:
    """The function that turns the metric's value, in base units, into text."""
    return BY_UNIT[metric.unit]


def spread(middle: float, low: float, high: float, show: Format) -> str:
    """``1,900 [1,880, 1,910]``: a median with the smallest and the largest value."""
    return f"{show(middle)} {ends(low, high, show)}"


def ends(low: float, high: float, show: Format) -> str:
    """``[1,880, 1,910]``: the smallest and the largest value, or the bounds of an interval."""
    return f"[{show(low)}, {show(high)}]"


def spread_of(values: Sequence[float], show: Format) -> str:
    """The ``spread`` of one value or more."""
    return spread(median(values), min(values), max(values), show)


def with_interval(rate: float, low: float | None, high: float | None, show: Format) -> Cell:
    """The cell of a figure with its interval, which charts draw: ``1,900 [1,880, 1,910]``."""
    if low is None or high is None:
        return Cell(value=rate, text=show(rate))
    return Cell(value=rate, text=spread(rate, low, high, show), low=low, high=high)


def median_cell(values: Sequence[float], show: Format) -> Cell:
    """The cell of the median of the values, with the smallest and the largest one."""
    return with_interval(median(values), min(values), max(values), show)


class Summarised(Protocol):
    """A median with the smallest and the largest value."""

    @property
    def median(self) -> float: ...
    @property
    def min(self) -> float: ...
    @property
    def max(self) -> float: ...


def summary(found: Summarised, show: Format) -> Cell:
    """The cell of a median that was computed before."""
    return with_interval(found.median, found.min, found.max, show)


def interval(gain: Estimate | None) -> str:
    """``3.20 x [3.15, 3.26]``; without an interval ``3.20 x``; ``-`` without a gain."""
    return "-" if gain is None else shown(gain)


def estimated(gain: Estimate | None, text: str = "") -> Cell:
    """The cell of an estimate with its interval, or with another text; ``-`` without one."""
    if gain is None:
        return Cell(value=None, text="-")
    return Cell(value=gain.value, text=text or shown(gain), low=gain.low, high=gain.high)


def figure(value: float | None, show: Format, *, missing: str = "-", why: str = "") -> Cell:
    """The cell of a figure. A missing one shows ``why``, or ``missing`` if there is no reason."""
    if value is None:
        return Cell(value=None, text="" if why else missing, why=why)
    return Cell(value=value, text=show(value))


def lacking(why: str) -> Cell:
    """The cell of a figure that was not measured."""
    return Cell(value=None, why=f"not measured: {why or NO_REASON}")


def word(text: str, value: Value = None) -> Cell:
    """The cell of a text; ``value`` is what data gets instead of it."""
    return Cell(value=text if value is None else value, text=text)


def listed(name: str, title: str, texts: Sequence[str], most: int | None = None) -> list[Section]:
    """The texts as a list, of which ``most`` are shown; nothing if there are none."""
    items = tuple(Item(text=text) for text in texts[:most])
    more = len(texts) - len(items)
    return [Items(id=name, title=title, items=items, more=more)] if items else []


def told(*facts: object) -> tuple[str, ...]:
    """The texts among the facts: one that does not hold is False, None, 0 or empty."""
    return tuple(fact for fact in facts if fact and isinstance(fact, str))


def raw(value: Value) -> Cell:
    """The cell of a value that only data shows."""
    return Cell(value=value, text="" if value is None else str(value))


def facts_of(told: Iterable[tuple[str, str]]) -> tuple[Fact, ...]:
    """A fact for each label with a text."""
    return tuple(Fact(label=label, text=text) for label, text in told if text)


def items_of(texts: Iterable[str]) -> tuple[Item, ...]:
    return tuple(Item(text=text) for text in texts)


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

    def table(self, name: str, title: str, notes: tuple[str, ...] = ()) -> Table:
        return Table(id=name, title=title, columns=self.columns, rows=tuple(self.rows), notes=notes)


class Filled(NamedTuple):
    """A column with its cells, from the first row to the last."""

    column: Column
    cells: Sequence[Cell]


def figures(
    name: str,
    label: str,
    unit: str,
    values: Iterable[float | None],
    *,
    missing: str = "-",
    where: Where = "everywhere",
) -> Filled:
    """A column of figures, which are shown as their unit demands."""
    show = BY_UNIT.get(unit, str)
    found = [figure(value, show, missing=missing) for value in values]
    return filled(name, label, found, unit=unit, align="right", where=where)


def words(name: str, label: str, texts: Iterable[str], *, where: Where = "everywhere") -> Filled:
    """A column of texts."""
    return filled(name, label, [word(text) for text in texts], where=where)


def raws(name: str, values: Iterable[Value]) -> Filled:
    """A column that only data shows."""
    return filled(name, "", [raw(value) for value in values], where="data")


def filled(
    name: str,
    label: str,
    cells: Sequence[Cell],
    *,
    unit: str = "",
    align: Literal["left", "right"] = "left",
    where: Where = "everywhere",
) -> Filled:
    """A column of any cells."""
    return Filled(Column(name=name, label=label, unit=unit, align=align, where=where), cells)


def side_by_side(
    *columns: Filled, marks: Sequence[str] = (), tones: Sequence[Tone] = ()
) -> tuple[tuple[Column, ...], tuple[Row, ...]]:
    """The columns and the rows of a table. ``marks`` and ``tones``: of each row, if it has one."""
    cells = list(zip(*(each.cells for each in columns), strict=True))
    told: list[Tone] = [*tones] or ["plain"] * len(cells)
    rows = zip(cells, marks or [""] * len(cells), told, strict=True)
    return (
        tuple(each.column for each in columns),
        tuple(Row(cells=each, mark=mark, tone=tone) for each, mark, tone in rows),
    )


def picture(
    title: str,
    rows: Sequence[tuple[str, float | None, str, str]],
    *,
    line: float | None = None,
    full: float | None = None,
) -> Table | None:
    """Bars for a first screen: of each row its name, value, text and mark.

    None without a value. ``line`` is a value that is marked across all bars.
    """
    known = [(name, value, text, mark) for name, value, text, mark in rows if value is not None]
    longest = full or max([*(value for _, value, _, _ in known), line or 0.0], default=0.0)
    if not known or longest <= 0:
        return None
    return Table(
        id="picture",
        title=title,
        columns=(Column(name="name"), Column(name="value", align="right")),
        rows=tuple(
            Row(cells=(word(name), Cell(value=value, text=text)), mark=mark)
            for name, value, text, mark in known
        ),
        bars=Bars(column="value", full=longest, line=line),
    )


NO_REASON = "no reason was recorded"
"""Why a figure is missing, where the record does not say it."""

BLANK = Cell(value=None)
"""An empty cell: there is nothing to say."""


def evenly(values: Sequence[T], most: int) -> list[T]:
    """At most so many of the values: the first, the last, and evenly between them."""
    if len(values) <= most:
        return list(values)
    return [values[round(at * (len(values) - 1) / (most - 1))] for at in range(most)]

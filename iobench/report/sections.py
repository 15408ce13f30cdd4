"""What a report says, as data: sections that every medium can show.

Each subject (a run, a comparison, a cost ...) has a module with a function ``sections``, and each
medium (text, Markdown, CSV, HTML) has one renderer, which knows sections only. So there is nothing
of a medium in a section: no width, no colour, no markup. The texts in it may come from others; the
renderers escape them (``text.renders``).

Charts are for HTML alone. Each draws columns of a table, which the other media show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..record.metrics import Unit
from ..record.run import Finding

Value = str | float | int | bool | None
"""A raw value, in base units (bytes, seconds, shares of 1). None: there is no value."""

TAG = "tag_"
"""How the columns begin that are named after a label of the user; not every run has each of them.
"""

Tone = Literal["plain", "good", "bad"]

Where = Literal["everywhere", "pages", "page", "data"]
"""Media that show a part: all, only pages (Markdown, HTML) with room for it, only an HTML page,
since the part is there for its chart, or only data (CSV).
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """A title and its sentences. ``first``: it is on the first screen, too."""

    id: str
    title: str
    sentences: tuple[str, ...] = ()
    tone: Tone = "plain"
    first: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Prose:
    id: str
    paragraphs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    label: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Short texts, each with a label. Facts without a title go with the section above them."""

    id: str
    title: str = ""
    facts: tuple[Fact, ...]
    where: Where = "everywhere"


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One entry of a list: advice, for example, with its gain before it and its basis below it."""

    text: str
    lead: str = ""
    basis: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Items:
    """A list. ``more`` is the number of items that were left out at its end.

    ``first``: it is on the first screen, too.
    """

    id: str
    title: str = ""
    items: tuple[Item, ...]
    more: int = 0
    first: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A value, and how people see it. Without a value, ``why`` says the reason if there is one.

    ``low`` and ``high`` are the interval of the value, for charts.
    """

    value: Value
    text: str = ""
    why: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def shown(self) -> str:
        return self.text or self.why


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """``name`` is the key of the raw values (as in ``run.json``), ``label`` the heading."""

    name: str
    label: str = ""
    unit: str = ""  # of the raw values
    align: Literal["left", "right"] = "left"
    where: Where = "everywhere"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A cell for each column. ``mark`` is a word that sets the row apart, such as "bottleneck".

    ``tone``: whether the row is good or bad news, where it is a comparison.
    """

    cells: tuple[Cell, ...]
    mark: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """The column whose values are drawn as bars from 0.

    ``full`` is the value of a bar of full length. Longer bars are cut and marked. ``line``: a
    value at which the text draws a line across all bars.
    """

    column: str
    full: float
    line: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A line across a chart at a value of one of its axes, with a label."""

    at: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """How a page draws columns of a table: what a chart shows is what its table says.

    - ``lines``: the columns ``y`` over the column ``x``. Those in ``dots`` are not joined.
    - ``bars``: the column ``y`` from ``origin``. A bar that is longer than ``full`` is cut.
    - ``parts``: a bar of full length for each row, divided by the shares in the columns ``y``.
    - ``front``: dots of ``y`` over ``x``, those on the Pareto front joined and named. ``better``
      says what is better of ``x`` and of ``y``.
    - ``heat``: the cells of the columns ``y`` are shaded in the table itself.

    Without ``x``, the rows are counted. Intervals are those of the cells, units those of the
    columns. The columns ``label`` name a row, and the columns ``text`` are shown beside its bar, if
    it is not the value alone. ``rows`` are drawn, in this order, if not all of them; ``note`` is
    shown below the chart. ``marks`` are lines at values of the horizontal axis, ``limits`` at
    values of the vertical one. ``log`` names the axes that are logarithmic, ``start`` is where the
    axis of ``y`` begins if it is not. ``named``: the texts of ``x`` are its ticks.
    """

    kind: Literal["lines", "bars", "parts", "front", "heat"]
    y: tuple[str, ...]
    x: str = ""
    label: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    dots: tuple[str, ...] = ()
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    rows: tuple[int, ...] | None = None
    note: str = ""
    marks: tuple[Mark, ...] = ()
    limits: tuple[Mark, ...] = ()
    log: Literal["", "x", "y", "xy"] = ""
    start: float = 0.0
    origin: float = 0.0
    full: float | None = None
    named: bool = False
    better: tuple[Literal["more", "less"], Literal["more", "less"]] = ("less", "more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of cells. Text draws ``bars`` of one of the columns, and a page all ``charts``.

    A table without a title goes with the section above it. ``where`` is "data" if each row is one
    thing that was measured, such as a repetition: these tables are what CSV is made of.
    """

    id: str
    title: str = ""
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    bars: Bars | None = None
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()
    more: int = 0  # rows that were left out at the end
    where: Where = "everywhere"

    def at(self, name: str) -> int:
        """The position of the column ``name``."""
        return [column.name for column in self.columns].index(name)

    def column(self, name: str) -> Column:
        return self.columns[self.at(name)]

    def cell(self, row: Row, name: str) -> Cell:
        return row.cells[self.at(name)]


LEVELS = {
    "invalid": ("rule failed", "rules failed"),
    "warning": ("warning", "warnings"),
    "unknown": ("rule could not be judged", "rules could not be judged"),
    "info": ("remark", "remarks"),
}
"""The levels of findings, the worst first, and how one and several of them are called."""


def how_many(level: str, number: int) -> str:
    """``1 warning``, ``2 rules failed``."""
    return f"{number} {LEVELS[level][number != 1]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """The outcomes of rules, with what to do about them."""

    id: str = "findings"
    title: str = "Findings"
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A figure of the first screen: ``value`` is large, and ``note`` goes on after it.

    ``share`` (0 to 1) is drawn as a bar, with a line at the share that is ``required``.
    """

    label: str
    value: str
    note: str = ""
    share: float | None = None
    required: float | None = None

    @property
    def text(self) -> str:
        return f"{self.value} {self.note}".strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstScreen:
    """The first screen of a report, for those who read no further.

    Every report has one, and text shows it alone unless the details are asked for. What else a
    report has is evidence. ``job`` is of what it is the answer, ``state`` the answer in a few
    words, ``tone`` its colour, and ``flags`` are what speaks against it, such as ``INVALID``.
    ``about`` says when and where it was measured. ``picture`` is a table with bars.
    """

    id: str = "answer"
    job: str
    state: str
    flags: tuple[str, ...] = ()
    tone: Tone = "plain"
    about: str = ""
    sentences: tuple[str, ...] = ()
    picture: Table | None = None
    gauges: tuple[KeyFigure, ...] = ()
    changes: Items | None = None
    findings: Findings | None = None
    trust: str = ""

    @property
    def title(self) -> str:
        flags = f" ({', '.join(self.flags)})" if self.flags else ""
        return f"{self.job}: {self.state}{flags}"

    def plain(self) -> list[Section]:
        """The same as sections of the other kinds, for media without a first screen."""
        facts = tuple(Fact(label=gauge.label, text=gauge.text) for gauge in self.gauges)
        return joined(
            Headline(id=self.id, title=self.title, sentences=self.sentences, tone=self.tone),
            self.picture,
            Facts(id="measured", title="Key figures", facts=facts) if facts else None,
            self.changes,
            self.findings,
            Prose(id="trust", paragraphs=(self.trust,)) if self.trust else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceLines:
    """Lines that are shown as they are, such as a command or a file: on pages alone.

    ``folded``: a page shows them on request.
    """

    id: str
    title: str
    lines: tuple[str, ...]
    folded: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartTrack:
    """One figure over time. ``low`` and ``high`` differ where a point stands for several steps."""

    label: str
    at: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pane:
    """Further tracks below a timeline, with a vertical axis of their own."""

    title: str
    unit: Unit
    tracks: tuple[ChartTrack, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Tracks over seconds, into which one can zoom. ``marks`` are events on the time axis.

    The panes have the same time axis, and are zoomed together.
    """

    id: str
    title: str
    unit: Unit
    tracks: tuple[ChartTrack, ...]
    marks: tuple[Mark, ...] = ()
    notes: tuple[str, ...] = ()
    panes: tuple[Pane, ...] = ()


Section = FirstScreen | Headline | Prose | Facts | Items | Table | Findings | SourceLines | Timeline
"""A part of a report. Its ``id`` is stable, and no two sections of a report have the same."""


def joined(*parts: Section | Iterable[Section | None] | None) -> list[Section]:
    """The parts of a report, one after another. A part that is None has nothing to say."""
    found: list[Section] = []
    for part in parts:
        several = part if isinstance(part, Iterable) else [part]
        found += [each for each in several if each is not None]
    return found


MAX_ANSWERS = 6
"""Answers of one report that the first screen of a terminal has room for."""


def spelled(sections: Sequence[Section]) -> list[Section]:
    """The sections, with each answer as sections of the other kinds."""
    found: list[Section] = []
    for each in sections:
        found += each.plain() if isinstance(each, FirstScreen) else [each]
    return found


def first_screen(sections: Sequence[Section]) -> list[Section]:
    """The answer, and what else is on the first screen; of several answers their words."""
    answers = [each for each in sections if isinstance(each, FirstScreen)]
    shown: list[Section] = []
    for each in sections:
        if isinstance(each, FirstScreen) and len(answers) == 1:
            shown += each.plain()
        elif isinstance(each, FirstScreen) and each in answers[:MAX_ANSWERS]:
            shown += replace(each, sentences=each.sentences[:1]).plain()[:1]
        elif isinstance(each, Headline | Items) and each.first:
            shown.append(each)
    more = len(answers) - MAX_ANSWERS
    return [*shown, Prose(id="more", paragraphs=(f"and {more:,} more",))] if more > 0 else shown


def leading(sections: Sequence[Section]) -> FirstScreen | None:
    """The section that names a page: the first answer."""
    return next((each for each in sections if isinstance(each, FirstScreen)), None)

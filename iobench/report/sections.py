"""What a report says, as data: sections that every medium can show.

Each subject (a run, a comparison, a cost ...) has a module with a function ``sections``, and each
medium (text, Markdown, CSV) has one renderer, which knows sections only. So there is nothing of a
medium in a section: no width, no colour, no markup. The texts in it may come from others; the
renderers escape them (``text.renders``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..schema.record import Finding

Value = str | float | int | bool | None
"""A raw value, in base units (bytes, seconds, shares of 1). None: there is no value."""

Tone = Literal["plain", "good"]

Where = Literal["everywhere", "pages", "data"]
"""Media that show a part: all, only pages (Markdown, HTML) with room for it, or only data (CSV)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """The answer: a title and its sentences."""

    id: str
    title: str
    sentences: tuple[str, ...] = ()
    tone: Tone = "plain"


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One entry of a list: advice, for example, with its gain before it and its basis below it."""

    text: str
    lead: str = ""
    basis: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Items:
    """A list. ``more`` is the number of items that were left out at its end."""

    id: str
    title: str = ""
    items: tuple[Item, ...]
    more: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A value, and how people see it. Without a value, ``why`` says the reason if there is one."""

    value: Value
    text: str = ""
    why: str = ""

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
    """A cell for each column. ``mark`` is a word that sets the row apart, such as "binds"."""

    cells: tuple[Cell, ...]
    mark: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """The column whose values are drawn as bars from 0.

    ``full`` is the value of a bar of full length. Longer bars are cut and marked.
    """

    column: str
    full: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of cells, with bars if one of the columns is drawn.

    A table without a title goes with the section above it. ``where`` is "data" if each row is one
    thing that was measured, such as a repetition: these tables are what CSV is made of.
    """

    id: str
    title: str = ""
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    bars: Bars | None = None
    notes: tuple[str, ...] = ()
    more: int = 0  # rows that were left out at the end
    where: Where = "everywhere"

    def at(self, name: str) -> int:
        """The position of the column ``name``."""
        return [column.name for column in self.columns].index(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    id: str = "findings"
    findings: tuple[Finding, ...]


Section = Headline | Prose | Facts | Items | Table | Findings
"""A part of a report. Its ``id`` is stable, and no two sections of a report have the same."""

"""Sections as lines of text for people, with colours on request.

Prose has at most ``width`` columns. A table may have ``room`` columns. If it needs more, its bars
are left out; if that is not enough, each row becomes a block of lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..base.text import printable, renders, wrapped
from .sections import (
    Bars,
    Cell,
    Facts,
    Findings,
    Headline,
    Items,
    Prose,
    Row,
    Section,
    Table,
    Tone,
    Value,
    spelled,
)

Paint = Callable[[str, str], str]
"""(text, name of a colour) -> the text in that colour, or unchanged without colours."""

MARKS = {"invalid": "INVALID", "warning": "warning", "unknown": "unknown", "info": "info"}
COLORS = {
    "title": "1",
    "invalid": "31",
    "warning": "33",
    "unknown": "35",
    "info": "36",
    "bound": "1",
    "good": "32",
}
TONES: dict[Tone, str] = {"plain": "title", "good": "good", "bad": "invalid"}
MIN_BAR = 8
"""Columns for a bar of full length, at least."""

MIN_LABEL, MAX_LABEL = 10, 30
"""Columns for the labels of facts. A longer label gets a line of its own, and one that is that of
the fact above is not shown again.
"""

MIN_TEXT = 12
"""Columns for a text at the end of a table's row, at least."""

INDENT = "  "


def painter(color: bool) -> Paint:
    return (
        (lambda text, name: f"\x1b[{COLORS[name]}m{text}\x1b[0m")
        if color
        else (lambda text, name: text)
    )


@renders(printable)
def render_text(
    sections: Sequence[Section], width: int = 100, color: bool = False, room: int | None = None
) -> str:
    """All sections but the data. ``room`` is ``width`` if it is not given.

    An empty line is before each section, except where one without a title follows another.
    """
    paint, room = painter(color), width if room is None else room
    lines: list[str] = []
    for section in spelled(sections):
        if isinstance(section, Facts) and not lines and not section.title:
            found = _facts(section, width, "")  # there is no title above that they belong to
        else:
            found = _lines(section, width, room, paint)
        if lines and found and not _goes_with_what_is_above(section):
            lines.append("")
        lines += found
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _goes_with_what_is_above(section: Section) -> bool:
    return isinstance(section, Facts | Items | Table) and not section.title


def _lines(section: Section, width: int, room: int, paint: Paint) -> list[str]:
    if isinstance(section, Headline):
        tone = TONES[section.tone]
        lines = [paint(line, tone) for line in wrapped(section.title, width, "", INDENT)]
        return lines + [line for text in section.sentences for line in wrapped(text, width)]
    if isinstance(section, Prose):
        return [line for text in section.paragraphs for line in wrapped(text, width)]
    if isinstance(section, Facts) and section.where == "everywhere":
        return _title(section.title, width, paint) + _facts(section, width, INDENT)
    if isinstance(section, Items):
        return _title(section.title, width, paint) + _items(section, width)
    if isinstance(section, Findings):
        return _findings(section, width, paint)
    if isinstance(section, Table) and section.where == "everywhere":
        return _table(section, width, room, paint)
    return []


def _title(title: str, width: int, paint: Paint) -> list[str]:
    return [paint(line, "title") for line in wrapped(title, width, "", INDENT)] if title else []


def _more(count: int) -> list[str]:
    return [f"{INDENT}and {count:,} more"] if count > 0 else []


def _facts(section: Facts, width: int, indent: str) -> list[str]:
    longest = max((len(fact.label) for fact in section.facts), default=0)
    column = max(MIN_LABEL, min(longest, MAX_LABEL, width // 3)) + len(INDENT)
    rest = " " * (len(indent) + column)
    lines, above = [], ""
    for fact in section.facts:
        first = f"{indent}{fact.label:<{column}}" if fact.label != above else rest
        above = fact.label
        if len(first) > len(rest) or first[-1] != " ":
            lines.append(first.rstrip())
            first = rest
        lines += wrapped(fact.text, width, first, rest)
    return lines


def _items(section: Items, width: int) -> list[str]:
    longest = max((len(item.lead) for item in section.items), default=0)
    lines = []
    for item in section.items:
        lead = f"{INDENT}{item.lead:>{max(8, longest)}}  " if longest else f"{INDENT}- "
        rest = " " * len(lead)
        lines += wrapped(item.text, width, lead, rest)
        lines += wrapped(f"({item.basis})", width, rest, rest) if item.basis else []
    return lines + _more(section.more)


def _findings(section: Findings, width: int, paint: Paint) -> list[str]:
    if not section.findings:
        return [paint(f"{section.title}: none", "title")]
    lines = [paint(section.title, "title")]
    for finding in section.findings:
        first, *more = wrapped(f"{finding.rule}: {finding.evidence}", width - 10, "", "")
        lines.append(INDENT + paint(f"{MARKS[finding.level]:<8}", finding.level) + first)
        lines += [" " * 10 + line for line in more]
        if finding.remedy:
            lines += wrapped(finding.remedy, width, " " * 10 + "-> ", " " * 13)
    return lines


def _table(table: Table, width: int, room: int, paint: Paint) -> list[str]:
    shown = [at for at, column in enumerate(table.columns) if column.where == "everywhere"]
    labels = [table.columns[at].label for at in shown]
    rows = [[row.cells[at] for at in shown] for row in table.rows]
    free = [_free(table, shown, row) for row in rows]
    widths = [
        max(
            [len(label)]
            + [len(row[at].shown) for row, f in zip(rows, free, strict=True) if at != f]
        )
        for at, label in enumerate(labels)
    ]
    aligned = [
        f"{'>' if table.columns[at].align == 'right' else '<'}{size}"
        for at, size in zip(shown, widths, strict=True)
    ]
    marks = max((len(_mark(row)) for row in table.rows), default=0)
    used = len(_joined(labels, aligned))
    least = MIN_TEXT if any(f is not None for f in free) else marks if table.bars is None else 0
    lines = _title(table.title, width, paint)
    if used + least > room:
        return lines + _stacked(table, shown, width, paint) + _notes(table, width)
    if any(label.strip() for label in labels):
        lines.append(_joined(labels, aligned))
    space = min(width, room) - used - len(INDENT) - marks
    for row, cells, at in zip(table.rows, rows, free, strict=True):
        texts = [cell.shown for cell in cells[:at]]
        if at is not None:
            before = f"{_joined(texts, aligned)}{INDENT}"
            told = f"{cells[at].shown}{_mark(row)}"
            found = wrapped(told, max(width, len(before) + MIN_TEXT), before, " " * len(before))
        else:
            line = _joined(texts, aligned)
            if table.bars is not None and space >= MIN_BAR:
                value = table.cell(row, table.bars.column).value
                line += INDENT + _bar(value, table.bars, space)
            found = [f"{line.rstrip()}{_mark(row)}"]
        lines += [paint(line, "bound") if row.mark else line for line in found]
    return lines + _notes(table, width)


def _free(table: Table, shown: Sequence[int], cells: Sequence[Cell]) -> int | None:
    """The cell that may run over the columns to its right, and be wrapped, since it ends its row.

    It is the reason of a missing figure, or a text that no bar follows.
    """
    last = max((at for at, cell in enumerate(cells) if cell.shown), default=0)
    left = table.columns[shown[last]].align == "left" and table.bars is None
    return last if left or cells[last].why else None


def _joined(texts: Sequence[str], aligned: Sequence[str]) -> str:
    """A line of cells. There can be fewer cells than columns."""
    return "".join(f"{INDENT}{text:{spec}}" for text, spec in zip(texts, aligned, strict=False))


def _mark(row: Row) -> str:
    return f" < {row.mark}" if row.mark else ""


def _notes(table: Table, width: int) -> list[str]:
    lines = [line for note in table.notes for line in wrapped(note, width, INDENT, INDENT)]
    return _more(table.more) + lines


def _bar(value: Value, bars: Bars, space: int) -> str:
    """A bar of at least one block, with the line across it; one that is cut ends with an arrow."""
    full, bar = bars.full, ""
    if isinstance(value, int | float) and value > 0 and full > 0:
        blocks = max(1, round(min(value / full, 1) * space))
        bar = "█" * (blocks - 1) + "▶" if value > full * 1.001 else "█" * blocks
    if bars.line is None or not 0 < bars.line <= full:
        return bar
    at = min(space - 1, round(bars.line / full * space))
    return f"{bar[:at]:<{at}}|{bar[at + 1 :]}"


def _stacked(table: Table, shown: Sequence[int], width: int, paint: Paint) -> list[str]:
    """Each row as a block: its first cell, and below it the others with their columns' labels."""
    lines: list[str] = []
    for row in table.rows:
        first, *others = shown
        head = wrapped(row.cells[first].shown.strip() + _mark(row), width, INDENT, INDENT * 2)
        lines += [paint(line, "bound") for line in head] if row.mark else head
        told = [
            f"{table.columns[at].label} {row.cells[at].shown}".strip()
            for at in others
            if row.cells[at].shown
        ]
        lines += wrapped("; ".join(told), width, INDENT * 2, INDENT * 2) if told else []
    return lines

"""Building blocks of every report: wrapped lines, colours for terminals, findings and CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Iterable

from ..schema.record import Finding
from ..text import csv_cell

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


def painter(color: bool) -> Paint:
    return (
        (lambda text, name: f"\x1b[{COLORS[name]}m{text}\x1b[0m")
        if color
        else (lambda text, name: text)
    )


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first]


def findings_lines(findings: Iterable[Finding], width: int, paint: Paint) -> list[str]:
    lines: list[str] = []
    for finding in findings:
        first, *more = wrapped(f"{finding.rule}: {finding.evidence}", width - 10, "", "")
        lines.append("  " + paint(f"{MARKS[finding.level]:<8}", finding.level) + first)
        lines += [" " * 10 + line for line in more]
        if finding.remedy:
            lines += wrapped(finding.remedy, width, " " * 10 + "-> ", " " * 13)
    return [paint("Findings", "title"), *lines] if lines else [paint("Findings: none", "title")]


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """CSV for spreadsheets: None is an empty cell, and no text is read as a formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([csv_cell(value) for value in row] for row in rows)
    return out.getvalue()

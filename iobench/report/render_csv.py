"""The tables of sections as CSV, with raw values in base units."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from ..base.text import csv_cell, printable, renders
from .sections import Section, Table


@renders(printable)
def render_csv(sections: Sequence[Section]) -> str:
    """The tables of data; if there are none, all but those for a page; if there are none, those.

    A missing value is an empty cell.

    Tables with the same columns become one. An empty line separates those with others. No text is
    read as a formula by a spreadsheet.
    """
    tables = [section for section in sections if isinstance(section, Table)]
    data = [table for table in tables if table.where == "data"]
    data = data or [table for table in tables if table.where != "page"] or tables
    kinds: dict[tuple[str, ...], list[Table]] = {}
    for table in data:
        names = tuple(table.columns[at].name for at in _held(table))
        kinds.setdefault(names, []).append(table)
    return "\n".join(_csv(names, same) for names, same in kinds.items())


def _held(table: Table) -> list[int]:
    """The columns that are not there for a chart alone."""
    whole = table.where == "page"
    return [at for at, column in enumerate(table.columns) if whole or column.where != "page"]


def _csv(names: Sequence[str], tables: Sequence[Table]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([csv_cell(name) for name in names])
    writer.writerows(
        [csv_cell(row.cells[at].value) for at in _held(table)]
        for table in tables
        for row in table.rows
    )
    return out.getvalue()

"""The tables of sections as CSV, with raw values in base units."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from ..base.text import csv_cell, printable, renders
from .sections import TAG, Column, Section, Table


@renders(printable)
def render_csv(sections: Sequence[Section]) -> str:
    """The tables of data; if there are none, all but those for a page; if there are none, those.

    A missing value is an empty cell.

    Tables with the same columns become one; it has all labels of the user that any of them has. An
    empty line separates those with others. No text is read as a formula by a spreadsheet.
    """
    tables = [section for section in sections if isinstance(section, Table)]
    data = [table for table in tables if table.where == "data"]
    data = data or [table for table in tables if table.where != "page"] or tables
    kinds: dict[tuple[str, ...], list[Table]] = {}
    for table in data:
        names = (column.name for column in table.columns if _is_held(table, column))
        kind = tuple(name for name in names if not name.startswith(TAG))
        kinds.setdefault(kind, []).append(table)
    return "\n".join(map(_csv, kinds.values()))


def _is_held(table: Table, column: Column) -> bool:
    """Whether the column is there for more than a chart."""
    return table.where == "page" or column.where != "page"


def _csv(tables: Sequence[Table]) -> str:
    every = (column for table in tables for column in table.columns if _is_held(table, column))
    names = sorted(dict.fromkeys(column.name for column in every), key=lambda n: n.startswith(TAG))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([csv_cell(name) for name in names])
    for table in tables:
        at = {column.name: number for number, column in enumerate(table.columns)}
        for row in table.rows:
            values = [row.cells[at[name]].value if name in at else None for name in names]
            writer.writerow([csv_cell(value) for value in values])
    return out.getvalue()

"""The tables of sections as CSV, with raw values in base units."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from ..text import csv_cell, printable, renders
from .sections import Section, Table


@renders(printable)
def render_csv(sections: Sequence[Section]) -> str:
    """The tables of data; if there are none, all tables. A missing value is an empty cell.

    Tables with the same columns become one. An empty line separates those with others. No text is
    read as a formula by a spreadsheet.
    """
    tables = [section for section in sections if isinstance(section, Table)]
    data = [table for table in tables if table.where == "data"] or tables
    kinds: dict[tuple[str, ...], list[Table]] = {}
    for table in data:
        kinds.setdefault(tuple(column.name for column in table.columns), []).append(table)
    return "\n".join(_csv(names, same) for names, same in kinds.items())


def _csv(names: Sequence[str], tables: Sequence[Table]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([csv_cell(name) for name in names])
    writer.writerows(
        [csv_cell(cell.value) for cell in row.cells] for table in tables for row in table.rows
    )
    return out.getvalue()

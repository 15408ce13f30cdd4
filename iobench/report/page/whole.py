"""A report as one page, with all of its data for download."""

from __future__ import annotations

from collections.abc import Sequence

from ... import __version__
from ...base.documents import json_text
from ..render_csv import render_csv
from ..render_html import html_page
from ..sections import Cell, Column, Pane, Row, Section, Table, Timeline, leading


def page(document: object, sections: Sequence[Section]) -> str:
    """The HTML page of a report, in ASCII.

    ``document`` is what ``--json`` prints: a pydantic model, a dataclass or plain data.
    """
    first = leading(sections)
    return html_page(
        sections,
        title=first.title if first else "iobench report",
        made=f"iobench {__version__}",
        document=json_text(document),
        table=render_csv(sections),
        tables=_tables(sections),
    )


def _tables(sections: Sequence[Section]) -> dict[str, str]:
    """Each table and each timeline as CSV, by its id."""
    tables = {each.id: each for each in sections if isinstance(each, Table) and each.rows}
    tables |= {each.id: _points(each) for each in sections if isinstance(each, Timeline)}
    return {name: render_csv([table]) for name, table in tables.items()}


def _points(timeline: Timeline) -> Table:
    """The points of a timeline as they are drawn, a row for each, in the order of their time."""
    panes: tuple[Timeline | Pane, ...] = (timeline, *timeline.panes)
    points = [
        (at, track.label, low, high, pane.unit)
        for pane in panes
        for track in pane.tracks
        for at, low, high in zip(track.at, track.low, track.high, strict=True)
    ]
    points.sort(key=lambda point: point[0])
    return Table(
        id=timeline.id,
        columns=tuple(Column(name=name) for name in ("at_s", "track", "low", "high", "unit")),
        rows=tuple(Row(cells=tuple(Cell(value=value) for value in point)) for point in points),
    )

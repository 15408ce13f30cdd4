"""A report as one page that needs nothing else: no request leaves it, and its data is inside.

Style, script and data are inside the file. A Content-Security-Policy allows this style and this
script alone, by their hashes, and no connection at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from ... import __version__
from ...base.documents import json_text
from ..render_csv import render_csv
from ..render_html import hypertext, json_data, render_html
from ..sections import Cell, Column, Pane, Row, Section, Table, Timeline, leading


@cache
def _resource(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The source expression of Content Security Policy, level 3, for an inline element."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page(document: object, sections: Sequence[Section]) -> str:
    """The HTML page of a report, in ASCII.

    ``document`` is what ``--json`` prints: a pydantic model, a dataclass or plain data. The page
    offers it for download, and as CSV the whole report and each of its tables and timelines.
    """
    first, tables = leading(sections), _tables(sections)
    title = first.title if first else "iobench report"
    styles, scripts = [_resource("page.css")], [_resource("page.js")]
    if any(isinstance(section, Timeline) for section in sections):
        styles.insert(0, _resource("uplot/uPlot.min.css"))
        # Every copy of the script must contain its licence.
        licence, script = _resource("uplot/LICENSE"), _resource("uplot/uPlot.iife.min.js")
        scripts.insert(0, f"/*\n{licence}*/\n{script}")
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; "
        f"style-src {' '.join(map(_hash, styles))}; base-uri 'none'; form-action 'none'"
    )
    body = render_html(sections, title, f"iobench {__version__}", frozenset(tables))
    csv = {"csv": render_csv(sections), **{f"csv-{name}": text for name, text in tables.items()}}
    data = {"json": json_text(document), **{name: json.dumps(text) for name, text in csv.items()}}
    embedded = "".join(
        f'<script type="application/json" id="{name}">{json_data(text)}</script>\n'
        for name, text in data.items()
    )
    text = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{hypertext(title)}</title>\n"
        f"{''.join(f'<style>{style}</style>' for style in styles)}\n</head>\n<body>\n{body}"
        f"{embedded}{''.join(f'<script>{script}</script>' for script in scripts)}\n"
        "</body>\n</html>\n"
    )
    # Style, script and data are ASCII. Elsewhere a character reference is the character.
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


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

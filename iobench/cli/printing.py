"""Print a report in the format that ``--format`` names, by the renderer of that format."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .. import __version__
from ..documents import json_text
from ..report.render_csv import render_csv
from ..report.render_html import html_page
from ..report.render_markdown import render_markdown
from ..report.render_text import render_text
from ..report.sections import Headline, Section
from .terminal import DEFAULT_COLUMNS, columns, show, show_data, show_json, use_color

PIPE_COLUMNS = 140
"""Largest width of a table where standard output is no terminal: other programs fold no lines."""


def print_report(kind: str, document: object, sections: Sequence[Section]) -> None:
    """Print ``document`` as json, or ``sections`` in the format ``kind``, on standard output."""
    if kind == "json":
        show_json(document)
    elif kind == "csv":
        show_data(render_csv(sections))
    elif kind == "markdown":
        show_data(render_markdown(sections))
    elif kind == "html":
        show_data(page(document, sections))
    else:
        width = min(DEFAULT_COLUMNS, columns())
        room = columns() if sys.stdout.isatty() else PIPE_COLUMNS
        show(render_text(sections, width=width, color=use_color(), room=room))


def page(document: object, sections: Sequence[Section]) -> str:
    """The report as an HTML page, with the document and its tables for download."""
    titles = [section.title for section in sections if isinstance(section, Headline)]
    return html_page(
        sections,
        title=titles[0] if titles else "iobench report",
        made=f"iobench {__version__}",
        document=json_text(document),
        table=render_csv(sections),
    )

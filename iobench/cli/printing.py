"""Print a report in the format that ``--format`` names, by the renderer of that format."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..report.again import command_sections
from ..report.page.whole import page
from ..report.render_csv import render_csv
from ..report.render_markdown import render_github, render_markdown
from ..report.render_text import render_text
from ..report.sections import FirstScreen, Section, first_screen
from .output import COMMAND
from .terminal import DEFAULT_COLUMNS, columns, show, show_data, show_json, use_color

ANSWER_COLUMNS = 80
"""The answer fits on one screen of this width and of 30 lines."""

PIPE_COLUMNS = 140
"""Largest width of a table where standard output is no terminal: other programs fold no lines."""


def print_report(
    kind: str, document: object, sections: Sequence[Section], *, details: bool = True
) -> None:
    """Print ``document`` as json, or ``sections`` in the format ``kind``, on standard output.

    Text is everything but the first screen, and without ``details`` the first screen alone.
    """
    if kind == "json":
        show_json(document)
    elif kind == "csv":
        show_data(render_csv(sections))
    elif kind == "markdown":
        show_data(render_markdown(sections))
    elif kind == "github":
        show_data(render_github(sections))
    elif kind == "html":
        known = any(section.id == "again" for section in sections)
        again = [] if known or not COMMAND.get() else command_sections(COMMAND.get())
        show_data(page(document, [*sections, *again]))
    elif not details and any(isinstance(section, FirstScreen) for section in sections):
        width = min(ANSWER_COLUMNS, columns())
        show(render_text(first_screen(sections), width=width, color=use_color()))
    else:
        width = min(DEFAULT_COLUMNS, columns())
        room = columns() if sys.stdout.isatty() else PIPE_COLUMNS
        show(render_text(sections, width=width, color=use_color(), room=room))

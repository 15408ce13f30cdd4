"""A report as one page, with all of its data for download."""

from __future__ import annotations

from collections.abc import Sequence

from ... import __version__
from ...documents import json_text
from ..render_csv import render_csv
from ..render_html import html_page
from ..sections import Headline, Section


def page(document: object, sections: Sequence[Section]) -> str:
    """The HTML page of a report, in ASCII.

    ``document`` is what ``--json`` prints: a pydantic model, a dataclass or plain data.
    """
    titles = [section.title for section in sections if isinstance(section, Headline)]
    return html_page(
        sections,
        title=titles[0] if titles else "iobench report",
        made=f"iobench {__version__}",
        document=json_text(document),
        table=render_csv(sections),
    )

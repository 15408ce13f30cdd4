"""Sections as GitHub's Markdown, for the summary page of a CI job: the answer, the rest folded.

All special characters of texts become character references, so that the same text is safe in
Markdown, in a cell of a table and inside HTML. Source: GitHub Flavored Markdown, sections 2.5
(entities) and 4.6 (HTML blocks); GitHub accepts at most 1 MiB for each step of a job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..text import github, renders
from .render_markdown import markdown_blocks
from .sections import Findings, Headline, Section, Table

KEY_TABLE = "metrics"
"""The table that is not folded; in a report without one, it is the first table."""

FAILED = frozenset({"invalid", "warning", "unknown"})
"""Levels of findings that are not folded."""

MAX_CHARACTERS = 500_000
"""Folded parts beyond it are left out."""


@renders(github)
def render_github(sections: Sequence[Section]) -> str:
    """Headlines, key figures and failed rules; then all other sections, each one folded."""
    tables = [each.id for each in sections if isinstance(each, Table) and each.where != "data"]
    key = KEY_TABLE if KEY_TABLE in tables else next(iter(tables), "")
    shown, folded = [], []
    for section in sections:
        if isinstance(section, Headline):
            shown += [f"### {section.title}", *section.sentences]
        elif isinstance(section, Findings):
            failed = any(each.level in FAILED for each in section.findings)
            if failed or not section.findings:
                shown += _joined(section)
            else:
                folded += list(_folded(section.title, section))
        elif section.id == key or not getattr(section, "title", ""):
            shown += _joined(section)  # without a title, it goes with the section above it
        else:
            folded += list(_folded(getattr(section, "title", ""), section))
    room = MAX_CHARACTERS - sum(map(len, shown))
    kept: list[str] = []
    for block in folded:
        room -= len(block)
        if room < 0:
            kept.append(f"{len(folded) - len(kept)} parts of the report are left out here.")
            break
        kept.append(block)
    return "\n\n".join([*shown, *kept]) + "\n"


def _joined(section: Section) -> list[str]:
    return ["\n".join(lines) for lines in markdown_blocks(section) if lines]


def _folded(title: str, section: Section) -> Iterator[str]:
    """The section behind its title; nothing if Markdown does not show it."""
    body = [block for block in _joined(section) if block != f"**{title}**"]
    if body:
        text = "\n\n".join(body)
        yield f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"

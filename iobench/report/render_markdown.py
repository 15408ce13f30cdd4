"""Sections as Markdown: for an issue or a page, and for the summary of a CI job on GitHub.

The summary has the answer and what failed, and all else is folded. There all special characters of
texts become character references, so that the same text is safe in Markdown, in a cell of a table
and inside HTML. Source: GitHub Flavored Markdown, sections 2.5 (entities) and 4.6 (HTML blocks);
GitHub accepts at most 1 MiB for each step of a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..base.text import github, markdown, renders
from .sections import (
    Facts,
    Findings,
    FirstScreen,
    Headline,
    Items,
    Prose,
    Section,
    SourceLines,
    Table,
    spelled,
)

SHOWN = ("everywhere", "pages")
"""Where a table is that Markdown shows."""

FAILED = frozenset({"invalid", "warning", "unknown"})
"""Levels of findings that are not folded."""

MAX_CHARACTERS = 500_000
"""Folded parts beyond it are left out."""

_RULE = {"left": "---", "right": "---:"}


@renders(markdown)
def render_markdown(sections: Sequence[Section]) -> str:
    """All sections but the data: bold titles, lists and tables of pipes, without bars."""
    blocks = [block for section in spelled(sections) for block in markdown_blocks(section)]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def markdown_blocks(section: Section) -> Iterable[list[str]]:
    """Blocks of lines; an empty line goes between two of them."""
    if isinstance(section, Headline):
        yield [f"**{section.title}**"]
        yield from ([sentence] for sentence in section.sentences)
    elif isinstance(section, Prose):
        yield from ([paragraph] for paragraph in section.paragraphs)
    elif isinstance(section, Facts) and section.where != "data":
        yield _title(section.title)
        yield [f"- {fact.label}: {fact.text}" for fact in section.facts]
    elif isinstance(section, Items):
        yield _title(section.title)
        lines = []
        for item in section.items:
            lead = f"{item.lead}: " if item.lead else ""
            lines.append(f"- {lead}{item.text}" + (f" ({item.basis})" if item.basis else ""))
        yield lines + _more(section.more)
    elif isinstance(section, Findings):
        yield _title(section.title if section.findings else f"{section.title}: none")
        lines = []
        for finding in section.findings:
            lines.append(f"- {finding.level} `{finding.rule}`: {finding.evidence}")
            lines += [f"  - {finding.remedy}"] if finding.remedy else []
        yield lines
    elif isinstance(section, SourceLines):
        yield [f"<details><summary>{section.title}</summary>"] if section.folded else []
        yield [] if section.folded else _title(section.title)
        yield ["<pre>", *map(_verbatim, section.lines), "</pre>"]
        yield ["</details>"] if section.folded else []
    elif isinstance(section, Table) and section.where in SHOWN:
        yield _title(section.title)
        yield _table(section)
        yield [f"- {note}" for note in section.notes] + _more(section.more)


@renders(github)
def render_github(sections: Sequence[Section]) -> str:
    """The answer and failed rules; then all other sections, each one folded."""
    shown, folded = [], []
    for section in sections:
        if isinstance(section, FirstScreen | Headline):
            for part in spelled([section]):
                if isinstance(part, Headline):
                    shown += [f"### {part.title}", *part.sentences]
                else:
                    shown += _joined(part)
        elif isinstance(section, Prose) or (
            isinstance(section, Findings)
            and (not section.findings or any(each.level in FAILED for each in section.findings))
        ):
            shown += _joined(section)
        else:
            folded += list(_folded(getattr(section, "title", "") or "More", section))
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


def _verbatim(line: str) -> str:
    """An escaped line as HTML: in ``pre``, a backslash is shown."""
    for character in "|[*_~":
        line = line.replace(f"\\{character}", f"&#{ord(character)};")
    return line


def _title(title: str) -> list[str]:
    return [f"**{title}**"] if title else []


def _more(count: int) -> list[str]:
    return [f"- and {count:,} more"] if count > 0 else []


def _table(table: Table) -> list[str]:
    shown = [at for at, column in enumerate(table.columns) if column.where in SHOWN]
    marks = any(row.mark for row in table.rows)
    heads = [table.columns[at].label.strip() for at in shown] + [""] * marks
    rules = [_RULE[table.columns[at].align] for at in shown] + ["---"] * marks
    lines = [_row(heads), f"|{'|'.join(rules)}|"]
    for row in table.rows:
        lines.append(_row([row.cells[at].shown.strip() for at in shown] + [row.mark] * marks))
    return lines


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

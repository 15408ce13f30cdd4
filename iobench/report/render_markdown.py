"""Sections as Markdown, to be pasted into an issue or a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..text import markdown, renders
from .sections import Facts, Findings, Headline, Items, Prose, Section, SourceLines, Table

_RULE = {"left": "---", "right": "---:"}


@renders(markdown)
def render_markdown(sections: Sequence[Section]) -> str:
    """All sections but the data: bold titles, lists and tables of pipes, without bars."""
    blocks = [block for section in sections for block in markdown_blocks(section)]
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
    elif isinstance(section, Table) and section.where != "data":
        yield _title(section.title)
        yield _table(section)
        yield [f"- {note}" for note in section.notes] + _more(section.more)


def _verbatim(line: str) -> str:
    """An escaped line as HTML: in ``pre``, a backslash is shown."""
    for character in "|[*":
        line = line.replace(f"\\{character}", f"&#{ord(character)};")
    return line


def _title(title: str) -> list[str]:
    return [f"**{title}**"] if title else []


def _more(count: int) -> list[str]:
    return [f"- and {count:,} more"] if count > 0 else []


def _table(table: Table) -> list[str]:
    shown = [at for at, column in enumerate(table.columns) if column.where != "data"]
    marks = any(row.mark for row in table.rows)
    heads = [table.columns[at].label.strip() for at in shown] + [""] * marks
    rules = [_RULE[table.columns[at].align] for at in shown] + ["---"] * marks
    lines = [_row(heads), f"|{'|'.join(rules)}|"]
    for row in table.rows:
        lines.append(_row([row.cells[at].shown.strip() for at in shown] + [row.mark] * marks))
    return lines


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

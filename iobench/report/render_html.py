"""A report as one HTML page that needs nothing else: no request leaves it, and its data is inside.

Charts are drawn as SVG, with their table below them. Style, script and data are in the file: the
data is JSON in script elements of a type that browsers do not run. A Content-Security-Policy allows
this style and this script alone, by their hashes, and no connection at all. The first screen, with
the answer, fits on a screen of 1440 x 900, on one of 390 x 844 and on a sheet of paper.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .. import __version__
from ..base.documents import json_text
from ..base.text import filled, printable, renders
from .page.chart import chart_of, is_drawn, shades_of
from .render_csv import render_csv
from .sections import (
    Bars,
    Cell,
    Column,
    Facts,
    Findings,
    FirstScreen,
    Headline,
    Items,
    KeyFigure,
    Pane,
    Prose,
    Row,
    Section,
    SourceLines,
    Table,
    Timeline,
    how_many,
    leading,
)

_PAGE = Path(__file__).parent / "page"

MOVES = {"in": "Zoom in", "out": "Zoom out", "left": "Earlier", "right": "Later", "all": "All"}
"""The buttons of a timeline, by what ``page.js`` calls them."""

MAX_OPEN = 4
"""Sections that are open when a page is opened; the others are a list of titles."""

MAX_ROWS = 2000
"""Rows of a table in a page; the downloads have all of them."""


def hypertext(text: str, limit: int | None = None) -> str:
    """``printable`` text that HTML shows as it is, in elements and in attributes with quotes."""
    return html.escape(printable(text, limit))


def json_data(text: str) -> str:
    """JSON that cannot end the script element that it is in: ``<`` is inside strings only."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@renders(hypertext)
def render_html(
    sections: Sequence[Section], title: str, made: str, offered: frozenset[str] = frozenset()
) -> str:
    """What is inside the page's body: all sections but the data.

    The answer comes first. Each section with a title can be folded. ``offered``: ids of the tables
    and timelines that can be downloaded.
    """
    first = leading(sections)
    body = [] if first else [f"<h1>{title}</h1>\n"]
    links: list[_Link] = []
    folding, number = "", 0
    for section in sorted(sections, key=lambda each: each is not first):
        blocks = "".join(_blocks(section, offered, first))
        if not blocks:
            continue
        name = _heading(section)
        if isinstance(section, FirstScreen | Headline):
            body.append(folding)
            folding = ""
        elif name:
            number += 1
            opened = " open" if number <= MAX_OPEN else ""
            body.append(f'{folding}<details class="part" id="{section.id}"{opened}>')
            body.append(f"<summary><h2>{name}</h2></summary>\n")
            folding = "</details>\n"
        body.append(blocks)
        if name and section is not first:
            links.append(_Link(section.id, name, isinstance(section, FirstScreen)))
    body.append(folding)
    shown = _unparted("".join(body))
    return filled(_PAGE / "body.html", MADE=made, CONTENTS=_contents(links), SECTIONS=shown)


class _Link(NamedTuple):
    """A heading, for the contents. ``whole``: a run or a comparison of several begins there."""

    id: str
    title: str
    whole: bool


def _heading(section: Section) -> str:
    """The title of a section, if it has one that is shown above it."""
    if isinstance(section, Findings) and not section.findings:
        return f"{section.title}: none"
    if isinstance(section, Prose) or (isinstance(section, SourceLines) and section.folded):
        return ""
    if isinstance(section, Table) and section.charts:
        return section.charts[0].title or section.title
    return section.title


_UNIT = re.compile(r"(?<=\d) (?=(?:%|x|[kMGT]?B|[KMGT]iB|[kMGT]?B/s|[nmµ]?s|min|h|d)(?![\w/]))")
_AS_IT_IS = re.compile(r"(<pre>.*?</pre>|<code>.*?</code>|<script.*?</script>|<[^>]*>)", re.DOTALL)


def _unparted(body: str) -> str:
    """The body with no line break between a number and its unit.

    Tags, commands and data stay as they are.
    """
    parts = _AS_IT_IS.split(body)
    return "".join(
        part if number % 2 else _UNIT.sub("\u00a0", part) for number, part in enumerate(parts)
    )


def _contents(links: Sequence[_Link]) -> str:
    """Links to the headings, if there are a few; of several runs, to the answer of each."""
    wholes = [each for each in links if each.whole]
    shown = wholes if len(wholes) > 1 else links
    if len(shown) < 2:
        return ""
    titles = {each.id: each.title.partition(" (")[0] for each in shown}
    short = {name: re.split(": |, ", title)[0] for name, title in titles.items()}
    number = Counter(short.values())
    lines = "".join(
        f'<li><a href="#{name}">{each if number[each] == 1 else titles[name]}</a></li>'
        for name, each in short.items()
    )
    return f'<nav aria-label="Sections"><ul>{lines}</ul></nav>\n'


def _blocks(section: Section, offered: frozenset[str], first: Section | None) -> Iterable[str]:
    if isinstance(section, FirstScreen):
        yield first_screen(section, "h1" if section is first else "h2")
    elif isinstance(section, Headline):
        tone = f' class="{section.tone}"' if section.tone != "plain" else ""
        yield f'<h2 id="{section.id}"{tone}>{section.title}</h2>\n'
        yield from (f'<p class="lead">{text}</p>\n' for text in section.sentences)
    elif isinstance(section, Prose):
        yield from (f"<p>{text}</p>\n" for text in section.paragraphs)
    elif isinstance(section, Facts) and section.where != "data":
        facts = "".join(f"<dt>{f.label}</dt><dd>{f.text}</dd>" for f in section.facts)
        yield f"<dl>{facts}</dl>\n" if facts else ""
    elif isinstance(section, Items):
        yield _items(section)
    elif isinstance(section, Findings):
        yield _findings(section)
    elif isinstance(section, Timeline):
        yield _timeline(section)
        yield _download(section.id, offered)
    elif isinstance(section, SourceLines):
        yield _source(section)
    elif isinstance(section, Table) and section.where != "data":
        yield from _charted(section, offered)


def _charted(table: Table, offered: frozenset[str]) -> Iterable[str]:
    """A table, or its charts and the table folded below them; a heat map comes first."""
    notes = "".join(f'<p class="note">{note}</p>\n' for note in table.notes)
    drawn = [each for each in table.charts if is_drawn(table, each)]
    as_table = not drawn or table.charts[0].kind == "heat"
    if as_table:
        yield f"{_table(table)}{notes}{_download(table.id, offered)}"
    for number, chart in enumerate(drawn):
        if number or as_table:
            yield f"<h3>{chart.title}</h3>\n"
        yield chart_of(table, chart, f"{table.id}-chart-{number + 1}")
    if not as_table:
        summary = "<summary>The figures as a table</summary>"
        folded = f"{_table(table)}{_download(table.id, offered)}"
        yield f"{notes}<details>{summary}{folded}</details>\n"


def _download(name: str, offered: frozenset[str]) -> str:
    """The button that saves a table or a timeline as CSV."""
    if name not in offered:
        return ""
    return (
        f'<p><button type="button" class="small" data-of="csv-{name}" data-name="{name}.csv" '
        f'data-type="text/csv" hidden>Download {name}.csv</button></p>\n'
    )


def _timeline(section: Timeline) -> str:
    """The data of a timeline, which the script draws with uPlot, and buttons to move in it."""
    name = f"{section.id}-data"
    panes: tuple[Timeline | Pane, ...] = (section, *section.panes)
    shown = [
        {"title": pane.title, "unit": pane.unit, "tracks": [asdict(each) for each in pane.tracks]}
        for pane in panes
    ]
    data = {"panes": shown, "marks": [asdict(each) for each in section.marks]}
    buttons = "".join(
        f'<button type="button" data-move="{move}" hidden>{label}</button>'
        for move, label in MOVES.items()
    )
    notes = "".join(f'<p class="note">{note}</p>\n' for note in section.notes)
    below = "".join(f'<h3>{pane.title}</h3><div class="plot"></div>' for pane in section.panes)
    return (
        f'<div class="timeline" data-of="{name}"><div class="moves">{buttons}</div>'
        f'<div class="plot"></div>{below}</div>\n{notes}'
        f'<script type="application/json" id="{name}">{json_data(json.dumps(data))}</script>\n'
    )


def _items(section: Items) -> str:
    lines = []
    for item in section.items:
        lead = f"<b>{item.lead}</b>" if item.lead else ""
        basis = f'<span class="remedy">{item.basis}</span>' if item.basis else ""
        lines.append(f"<li>{lead}{item.text}{basis}</li>")
    lines += [f"<li>and {section.more:,} more</li>"] if section.more else []
    return f"<ul>{''.join(lines)}</ul>\n" if lines else ""


def _findings(section: Findings) -> str:
    """A list for each weight, in the order of the section, with a heading if there are several."""
    groups: dict[str, list[str]] = {}
    for each in section.findings:
        remedy = f'<span class="remedy">{each.remedy}</span>' if each.remedy else ""
        groups.setdefault(each.level, []).append(
            f'<li class="{each.level}"><b>{each.level}</b><code>{each.rule}</code> '
            f"{each.evidence}{remedy}</li>"
        )
    several = len(groups) > 1
    if not groups:
        return '<p class="note">none</p>\n'
    return "".join(
        f"{f'<h3>{how_many(level, len(lines))}</h3>' * several}<ul>{''.join(lines)}</ul>\n"
        for level, lines in groups.items()
    )


def _source(section: SourceLines) -> str:
    lines = "\n".join(section.lines)
    shown = (
        f'<div class="wide" role="group" aria-label="{section.title}" tabindex="0">'
        f"<pre>{lines}</pre></div>"
    )
    if not section.folded:
        return f"{shown}\n"
    summary = f"<summary>{section.title}</summary>"
    return f'<details class="source" id="{section.id}">{summary}{shown}</details>\n'


def _table(table: Table) -> str:
    shown = [at for at, column in enumerate(table.columns) if column.where != "data"]
    align = {at: ' class="right"' if table.columns[at].align == "right" else "" for at in shown}
    marks = any(row.mark for row in table.rows)
    head = "".join(
        f'<th scope="col"{align[at]}>{table.columns[at].label}</th>'
        if table.columns[at].label.strip()
        else "<td></td>"
        for at in shown
    ) + ("<td></td>" if marks else "")
    lines, shades = [], shades_of(table)
    for number, row in enumerate(table.rows[:MAX_ROWS]):
        cells = "".join(
            f'<td class="shade h{shades[number, at]}">{row.cells[at].shown}</td>'
            if (number, at) in shades
            else f"<td{align[at]}>{row.cells[at].shown}</td>"
            for at in shown
        )
        cells += f"<td>{row.mark}</td>" if marks else ""
        lines.append(f'<tr class="marked">{cells}</tr>' if row.mark else f"<tr>{cells}</tr>")
    more = table.more + max(0, len(table.rows) - MAX_ROWS)
    end = f'<p class="note">and {more:,} more</p>\n' if more > 0 else ""
    told = any(table.columns[at].label.strip() for at in shown)
    top = f"<thead><tr>{head}</tr></thead>" if told else ""
    name = table.title or table.id
    return (
        f'<div class="wide" role="group" aria-label="{name}" tabindex="0">'
        f"<table>{top}<tbody>{''.join(lines)}</tbody></table></div>\n{end}"
    )


LARGE = 2
"""Figures that have a card of their own; the others stand in the line at the end."""

MAX_LEAD = 220
"""Characters of the sentences that are shown in the largest size."""

BOTTLENECK = "bottleneck"
"""The mark of a bar that is bad news; any other mark only sets a bar apart."""


def first_screen(answer: FirstScreen, heading: str) -> str:
    """The section with all parts of the answer. ``heading``: ``h1``, or ``h2`` of a later run."""
    flags = f'<span class="flag"> ({", ".join(answer.flags)})</span>' if answer.flags else ""
    about = f'<p class="about">{answer.about}</p>\n' if answer.about else ""
    told = " ".join(answer.sentences)
    kind = "lead long" if len(told) > MAX_LEAD else "lead"
    lead = f'<p class="{kind}">{told}</p>\n' if told else ""
    cards = "".join(map(_card, answer.gauges[:LARGE]))
    cards += _changes(answer.changes) if answer.changes else ""
    grid = f'<div class="cards">{cards}</div>\n' if cards else ""
    return (
        f'<section class="answer {answer.tone}" id="{answer.id}">\n{about}'
        f'<{heading}>{answer.job}<span class="unseen">: </span>'
        f'<span class="state">{answer.state}</span>{flags}</{heading}>\n{lead}'
        f"{grid}{_picture(answer)}{_trust(answer)}</section>\n"
    )


def _card(gauge: KeyFigure) -> str:
    note = f"<small>{gauge.note}</small>" if gauge.note else ""
    meter = "" if gauge.share is None else _meter(gauge.share, gauge.required)
    value = f'<p class="big">{gauge.value}</p>' if gauge.value else ""
    return f'<div class="card"><p class="label">{gauge.label}</p>{value}{meter}{note}</div>\n'


def _meter(share: float, required: float | None) -> str:
    """A bar from 0 to 1, with a line at what is required; its figures stand beside it."""
    short = "bound" if required is not None and share < required else "bar"
    return _bar(share, required, short, 1.0)


def _bar(value: float, line: float | None, kind: str, full: float) -> str:
    """A bar as wide as its place, which text of any size surrounds; one that is cut is notched."""
    width = 100 * min(1.0, value / full) if full > 0 else 0.0
    shape = f'<rect class="{kind}" width="{width:.2f}%" height="100%"/>'
    if value > full * 1.001:
        shape += '<svg x="100%" overflow="visible"><path class="cut" d="M-9 -2l-6 18"/></svg>'
    if line is not None and 0 < line <= full:
        at = f"{100 * line / full:.2f}%"
        shape += f'<line class="mark" x1="{at}" x2="{at}" y1="-4" y2="18"/>'
    return f'<svg class="inline" aria-hidden="true" width="100%" height="14">{shape}</svg>'


def _changes(changes: Items) -> str:
    lines = "".join(
        f"<li><b>{item.lead}</b><span>{item.text}"
        f"{f'<small><code>{item.basis}</code></small>' if item.basis else ''}</span></li>"
        for item in changes.items
    )
    return f'<div class="card wider"><p class="label">{changes.title}</p><ol>{lines}</ol></div>\n'


def _trust(answer: FirstScreen) -> str:
    more = [f"{each.label}: {each.text}." for each in answer.gauges[LARGE:]]
    failed = "".join(
        f'<li class="invalid"><b>{each.level}</b><code>{each.rule}</code> {each.evidence}</li>'
        for each in (answer.findings.findings if answer.findings else ())
    )
    title = answer.findings.title if answer.findings else ""
    why = f'<p class="label">{title}</p><ul>{failed}</ul>\n' if failed else ""
    return f'{why}<p class="trust">{" ".join([*more, answer.trust])}</p>\n'


def _picture(answer: FirstScreen) -> str:
    table = answer.picture
    if table is None or table.bars is None:
        return ""
    rows = "".join(_rows(table, table.bars))
    return (
        f'<figure><figcaption>{table.title}</figcaption>\n<div class="bars">{rows}</div></figure>\n'
    )


def _rows(table: Table, bars: Bars) -> Iterable[str]:
    """A bar for each row, with its name and its figure beside it, or above it on a phone."""
    for row in table.rows:
        cell = table.cell(row, bars.column)
        value = float(cell.value) if isinstance(cell.value, int | float) else 0.0
        kind = "bar" if not row.mark else "bound" if row.mark == BOTTLENECK else "pick"
        mark = f"<em>{row.mark}</em>" if row.mark else ""
        yield (
            f'<p class="row {kind}"><span>{row.cells[0].shown}</span>'
            f"{_bar(value, bars.line, kind, bars.full)}<b>{cell.shown} {mark}</b></p>\n"
        )


# The page around the body


@cache
def _resource(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")


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
    text = filled(
        _PAGE / "whole.html",
        POLICY=policy,
        TITLE=hypertext(title),
        STYLES="".join(f"<style>{style}</style>" for style in styles),
        BODY=body,
        DATA=embedded,
        SCRIPTS="".join(f"<script>{script}</script>" for script in scripts),
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

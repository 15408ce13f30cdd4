"""The first screen of a page: the answer, how busy, how many are fed, what to do, and a picture.

It fits on a screen of 1440 x 900, on one of 390 x 844 and on a sheet of paper. Texts are escaped
before they get here (``render_html``).
"""

from __future__ import annotations

from collections.abc import Iterable

from ..sections import Bars, FirstScreen, Items, KeyFigure, Table

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

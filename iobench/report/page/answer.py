"""The first screen of a page: the answer, how busy, how many are fed, what to do, and a picture.

It fits on a screen of 1440 x 900, on one of 390 x 844 and on a sheet of paper. Texts are escaped
before they get here (``render_html``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..sections import FirstScreen, Items, KeyFigure, Row, Table

LARGE = 2
"""Figures that have a card of their own; the others stand in the line at the end."""

MAX_LEAD = 220
"""Characters of the sentences that are shown in the largest size."""

WIDTH, TOP, HEIGHT, BOTTOM = 1080.0, 52.0, 132.0, 32.0
BEND = 26.0
"""How far a change of the pipe's thickness reaches along it."""

MIN_THICK = 3.0


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
    shape += f'<rect class="hatched" width="{width:.2f}%" height="100%"/>' * (kind == "bound")
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
    pipe = _pipe(answer.id, table) if answer.flow else ""
    kind, marked = ("bars narrow", "bound") if pipe else ("bars", "pick")
    return (
        f"<figure><figcaption>{table.title}</figcaption>\n{pipe}"
        f'<div class="{kind}">{"".join(_rows(table, marked))}</div></figure>\n'
    )


def _value(table: Table, row: Row) -> float:
    value = table.cell(row, table.bars.column).value if table.bars else None
    return float(value) if isinstance(value, int | float) else 0.0


def _shown(table: Table, row: Row) -> tuple[str, str]:
    """The name of a row and its figure."""
    at = table.at(table.bars.column) if table.bars else 1
    return row.cells[0].shown, row.cells[at].shown


def _rows(table: Table, marked: str) -> Iterable[str]:
    """A bar for each row, with its name and its figure beside it, or above it on a phone."""
    assert table.bars is not None
    for row in table.rows:
        name, told = _shown(table, row)
        kind = marked if row.mark else "bar"
        mark = f"<em>{row.mark}</em>" if row.mark else ""
        yield (
            f'<p class="row {kind}"><span>{name}</span>'
            f"{_bar(_value(table, row), table.bars.line, kind, table.bars.full)}"
            f"<b>{told} {mark}</b></p>\n"
        )


def _pipe(name: str, table: Table) -> str:
    """The stages as a pipe, as thick as what each delivers, and in it what really flows.

    The last row is what all deliver together. The two lines are as far apart as the demand. A stage
    that was not measured is drawn with what flows, since it delivers that at least.
    """
    assert table.bars is not None
    *stages, together = table.rows
    line, full = table.bars.line, table.bars.full
    named = [(*_shown(table, row), row.mark, _value(table, row)) for row in stages]
    flow, flowing = _value(table, together), _shown(table, together)[1]
    if line:
        named.append(("accelerators", "the demand", "", line))
    if len(named) < 2:
        return ""
    step, middle = WIDTH / len(named), TOP + HEIGHT / 2

    def thick(value: float) -> float:
        share = min(1.0, (value or flow) / full) if full > 0 else 0.0
        return max(MIN_THICK, HEIGHT * share)

    body = [f'<path class="pipe" d="{_outline([thick(each[3]) for each in named], middle)}"/>']
    stream = thick(flow)
    body.append(
        f'<rect class="stream" x="0" y="{middle - stream / 2:.1f}" width="{WIDTH:g}" '
        f'height="{stream:.1f}"/>'
    )
    for number, (label, told, mark, value) in enumerate(named):
        at = step * (number + 0.5)
        kind = " bound" if mark else ""
        if mark:
            where = (
                f'x="{step * number + (BEND if number else 0):.1f}" '
                f'y="{middle - thick(value) / 2:.1f}" '
                f'width="{step - BEND * (2 if number else 1):.1f}" height="{thick(value):.1f}"'
            )
            body.append(f'<rect class="bound" {where}/><rect class="hatched" {where}/>')
        body.append(
            f'<text class="stage{kind}" x="{at:.1f}" y="18">{label}</text>'
            f'<text class="rate{kind}" x="{at:.1f}" y="40">{", ".join(filter(None, (told, mark)))}'
            "</text>"
        )
        share = _of_demand(value, line) if number < len(stages) else f"{flowing} arrive"
        if share:
            at_y = TOP + HEIGHT + 24
            body.append(f'<text class="share{kind}" x="{at:.1f}" y="{at_y:g}">{share}</text>')
    for side in (-1, 1) if line else ():
        y = middle + side * thick(line or 0.0) / 2
        body.append(f'<path class="mark" d="M0 {y:.1f}H{WIDTH:g}"/>')
    said = "; ".join(", ".join(filter(None, each[:3])) for each in named)
    height = TOP + HEIGHT + BOTTOM
    return (
        f'<svg class="chart flow" viewBox="0 0 {WIDTH:g} {height:g}" role="img" '
        f'aria-labelledby="{name}-flow-t {name}-flow-d"><title id="{name}-flow-t">{table.title}'
        f'</title><desc id="{name}-flow-d">{said}; all together {flowing}</desc>'
        '<pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><path class="hatch" d="M0 0v7"/></pattern>'
        f"{''.join(body)}</svg>\n"
    )


def _outline(thick: Sequence[float], middle: float) -> str:
    """The pipe's edge: along the upper side, and back along the lower one."""
    step, upper, lower = WIDTH / len(thick), "", ""
    for number, height in enumerate(thick):
        start, end, half = step * number, step * (number + 1), height / 2
        over, under = middle - half, middle + half
        if number:  # it bends behind the border of two stages
            before, bend = thick[number - 1] / 2, start + BEND
            upper += f"C{start:.1f} {middle - before:.1f} {start:.1f} {over:.1f} "
            upper += f"{bend:.1f} {over:.1f}"
            back = f"C{start:.1f} {under:.1f} {start:.1f} {middle + before:.1f} "
            lower = f"L{bend:.1f} {under:.1f}{back}{start:.1f} {middle + before:.1f}" + lower
        upper += f"L{end:.1f} {over:.1f}" if number else f"M0 {over:.1f}L{end:.1f} {over:.1f}"
        lower = f"L{end:.1f} {under:.1f}" + lower
    return f"{upper}{lower}L0 {middle + thick[0] / 2:.1f}Z"


def _of_demand(value: float, line: float | None) -> str:
    if not line or not value:
        return ""
    ratio = value / line
    told = f"{100 * ratio:.0f} %" if ratio < 1 else f"{ratio:.{1 if ratio < 10 else 0}f} x"
    return f"{told} of the demand"

"""The charts of a page: SVG that is drawn from the columns of a table, so that both say the same.

All colours come from classes of ``page.css``, so that one drawing fits a dark and a light page. No
figure is told by colour alone: lines have dashes and labels at their ends, the parts of a bar have
patterns, and what is on a front is a diamond. Texts are escaped before they get here
(``render_html``).
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...ask.tuning.points import front
from ..figures import evenly
from ..sections import Chart, Column, Mark, Row, Table
from .scale import Scale, finite, scale_of, shown_in, spread_out

WIDTH = 720
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 24, 44
LINES_HEIGHT = 256
ROW, BAR = 30, 14
TALL_ROW = 46
"""The height of a row whose label is above its bar."""

LABELS = 150
"""Room for labels of rows at the left of parts."""

MAX_RIGHT, MAX_LABELS = 220, 240
"""Room for labels at the ends of lines, and for labels above bars."""

CHARACTER = 7.8
"""Mean width of a character, in pixels, in a wide font: about right is enough."""

COLORS = 8
"""Classes ``c0`` to ``c7`` of the style sheet, for lines."""

MAX_NAMED = 12
"""Points on a front that are named below the chart; the table has all."""

SHADES = 9
SHADED = 0.5
"""Shades of a heat map begin at this share of the highest value, or at the lowest value if that is
less: values that hardly differ look alike.
"""

HATCHES = (
    "",
    "M-2 2l4-4M0 8l8-8M6 10l4-4",
    "M0 4h8",
    "M-2 6l4 4M0 0l8 8M6-2l4 4",
    "M4 0v8",
    "M1 2h3M5 6h3",
    "M0 4h8M4 0v8",
    "M0 0l8 8M0 8l8-8",
    "M0 2h8M0 6h8",
    "M2 0v8M6 0v8",
)
"""A pattern of lines, 8 x 8, for each colour: colours of equal lightness differ in gray, too."""


COUNTED = Column(name="", label="row", unit="count")
"""The horizontal axis of a chart that counts the rows."""


class Drawing(NamedTuple):
    """Shapes, their height, what they tell to those who don't see them, and a text below them."""

    shapes: Iterable[str]
    height: float
    told: str
    below: str = ""


class ChartPoint(NamedTuple):
    row: Row
    x: float
    y: float
    low: float | None
    high: float | None

    @property
    def reached(self) -> list[float]:
        """The values that its scale must hold."""
        return [each for each in (self.y, self.low, self.high) if each is not None]


def is_drawn(table: Table, chart: Chart) -> bool:
    """Whether there is a figure to draw as SVG: a heat map is the table itself."""
    return chart.kind != "heat" and any(_points(table, chart, column) for column in chart.y)


def chart_of(table: Table, chart: Chart, name: str) -> str:
    """The chart, with a title and a description for screen readers. ``name``: its id."""
    drawing = _KINDS[chart.kind](table, chart, name)
    title = chart.title or table.title
    note = f'<p class="note">{chart.note}</p>\n' if chart.note else ""
    return (
        f'<div class="figure-box" role="group" aria-label="{title}" tabindex="0">'
        f'<svg class="chart" viewBox="0 0 {WIDTH} {drawing.height:g}" role="img" '
        f'aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{title}</title>'
        f'<desc id="{name}-d">{drawing.told}</desc>{"".join(drawing.shapes)}</svg></div>\n'
        f"{drawing.below}{note}"
    )


def shades_of(table: Table) -> dict[tuple[int, int], int]:
    """The shade of each cell of a table that is a heat map, by its row and its column."""
    columns = [table.at(name) for each in table.charts if each.kind == "heat" for name in each.y]
    found = {
        (down, at): value
        for down, row in enumerate(table.rows)
        for at in columns
        if (value := finite(row.cells[at].value)) is not None
    }
    high = max(found.values(), default=0.0)
    low = min([*found.values(), SHADED * high])
    steps = (SHADES - 1) / (high - low) if high > low else 0.0
    return {where: round(steps * (value - low)) for where, value in found.items()}


def length_of(text: str) -> float:
    """About how wide an escaped text is, in pixels."""
    return CHARACTER * len(html.unescape(text))


def fitted(text: str, room: float) -> str:
    """An escaped text, cut at its end where it is wider than ``room`` pixels."""
    if length_of(text) <= room:
        return text
    return f"{html.escape(html.unescape(text)[: max(1, int(room / CHARACTER) - 1)].rstrip())}…"


def _rows(table: Table, chart: Chart) -> list[tuple[int, Row]]:
    """The rows that are drawn, with their numbers from 1."""
    chosen = range(len(table.rows)) if chart.rows is None else chart.rows
    return [(at + 1, table.rows[at]) for at in chosen]


def _points(table: Table, chart: Chart, column: str) -> list[ChartPoint]:
    """The rows that have a figure in the column and one on the horizontal axis.

    Without a column for the horizontal axis, the rows are counted. Where only an interval is known,
    the point is in the middle of it.
    """
    found = []
    for number, row in _rows(table, chart):
        cell = table.cell(row, column)
        x = finite(table.cell(row, chart.x).value) if chart.x else float(number)
        y, low, high = (finite(value) for value in (cell.value, cell.low, cell.high))
        if y is None and low is not None and high is not None:
            y = (low + high) / 2
        if x is not None and y is not None:
            found.append(ChartPoint(row, x, y, low, high))
    return found


def _text_of(row: Row, table: Table, columns: Sequence[str]) -> str:
    return ", ".join(text for name in columns if (text := table.cell(row, name).shown))


def _name_of(row: Row, table: Table, columns: Sequence[str]) -> str:
    """What a row is about. A number has the label of its column before it: ``rank 7``."""
    names = [
        text if finite(row.cells[at].value) is None else f"{table.columns[at].label} {text}"
        for at in map(table.at, columns)
        if (text := row.cells[at].shown)
    ]
    return ", ".join(names)


def _text(kind: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{where}>{text}</text>'


def _line(kind: str, x: tuple[float, float], y: tuple[float, float]) -> str:
    return f'<line class="{kind}" x1="{x[0]:.1f}" x2="{x[1]:.1f}" y1="{y[0]:.1f}" y2="{y[1]:.1f}"/>'


def _whisker(along: Scale, point: ChartPoint, across: float, *, upright: bool) -> str:
    """The interval of a point; nothing if it has none."""
    if point.low is None or point.high is None:
        return ""
    low, high = along.at(point.low), along.at(point.high)
    if upright:
        ends = "".join(f"M{across - 5:.1f} {end:.1f}h10" for end in (low, high))
        return f'<path class="whisker" d="M{across:.1f} {low:.1f}V{high:.1f}{ends}"/>'
    ends = "".join(f"M{end:.1f} {across - 5:.1f}v10" for end in (low, high))
    return f'<path class="whisker" d="M{low:.1f} {across:.1f}H{high:.1f}{ends}"/>'


def _bottom(x: Scale, bottom: float, label: str) -> Iterator[str]:
    """The horizontal axis; the label of a tick that would touch the one before is left out."""
    free = -math.inf
    for tick in x.ticks():
        at, text = x.at(tick), x.text(tick)
        yield _line("grid", (at, at), (bottom, bottom + 4))
        if at - length_of(text) / 2 >= free:
            free = at + length_of(text) / 2
            yield _text("tick", at, bottom + 18, text, "middle")
    yield _text("name", (x.start + x.end) / 2, bottom + 38, label, "middle")


def _left(y: Scale, right: float, label: str) -> Iterator[str]:
    for tick in y.ticks():
        yield _line("grid", (LEFT, right), (y.at(tick), y.at(tick)))
        yield _text("tick", LEFT - 8, y.at(tick) + 4, y.text(tick), "end")
    yield _text("name", 4, TOP - 12, label)


def _marks(marks: Sequence[Mark], x: Scale, top: float, bottom: float) -> Iterator[str]:
    """A line for each mark; each label has a line of text of its own above the chart."""
    for number, mark in enumerate(marks):
        at, height = x.at(mark.at), top - 6 - 16 * (len(marks) - 1 - number)
        late = at + length_of(mark.label) > WIDTH
        yield _line("mark", (at, at), (height - 8, bottom))
        yield _text(
            "tick", at + (-4 if late else 4), height, mark.label, "end" if late else "start"
        )


def _limits(limits: Sequence[Mark], y: Scale, right: float) -> Iterator[str]:
    """A line across the chart for each limit, with its label above it at the left."""
    heights = spread_out([y.at(limit.at) - 5 for limit in limits], 14, y.end + 4, y.start)
    for limit, height in zip(limits, heights, strict=True):
        yield _line("mark", (LEFT, right), (y.at(limit.at), y.at(limit.at)))
        yield _text("tick halo", LEFT + 6, height, limit.label)


def _lines(table: Table, chart: Chart, name: str) -> Drawing:
    """A line for each column over the values of another one, with intervals where it has some."""
    found = {column: _points(table, chart, column) for column in chart.y}
    found = {column: points for column, points in found.items() if points}
    points = [point for each in found.values() for point in each]
    labels = [table.column(column).label for column in found]
    ends = max(map(length_of, labels), default=0.0) + 16 if len(chart.y) > 1 else RIGHT
    right, top = WIDTH - min(MAX_RIGHT, ends), TOP + 16 * len(chart.marks)
    bottom = top + LINES_HEIGHT
    across = table.column(chart.x) if chart.x else COUNTED
    up = table.column(chart.y[0])
    named = (chart.x,) if chart.named else ()
    x = scale_of(
        [*(point.x for point in points), *(mark.at for mark in chart.marks)],
        (LEFT, right),
        across.unit,
        base=2 if "x" in chart.log else 0,
        names={each.x: _text_of(each.row, table, named) for each in points if named},
    )
    y = scale_of(
        [*(each for point in points for each in point.reached), *(at.at for at in chart.limits)],
        (bottom, top),
        up.unit,
        base=10 if "y" in chart.log else 0,
        least=chart.start,
    )
    body = [*_left(y, right, chart.y_label or up.label)]
    body += _bottom(x, bottom, chart.x_label or across.label)
    body += _marks(chart.marks, x, top, bottom)
    body += _limits(chart.limits, y, right)
    for number, (column, label) in enumerate(zip(found, labels, strict=True)):
        body += _series(found[column], label, number, x, y, joined=column not in chart.dots)
    if len(chart.y) > 1:
        last = [y.at(each[-1].y) for each in found.values()]
        heights = spread_out(last, 15, top + 4, bottom)
        for number, (label, height) in enumerate(zip(labels, heights, strict=True)):
            text = fitted(label, WIDTH - right - 8)
            body.append(_text(f"end t{number % COLORS}", right + 8, height + 4, text))
    told = "; ".join(
        f"{label}: "
        + ", ".join(f"{y.text(point.y)} at {x.text(point.x)}" for point in (each[0], each[-1]))
        for label, each in zip(labels, found.values(), strict=True)
    )
    return Drawing(body, bottom + BOTTOM, told)


def _series(
    points: list[ChartPoint], label: str, number: int, x: Scale, y: Scale, *, joined: bool
) -> Iterator[str]:
    color = f"c{number % COLORS}"
    known = [point for point in points if point.low is not None and point.high is not None]
    if joined and len(known) > 1:
        upper = [f"{x.at(each.x):.1f},{y.at(each.high or 0.0):.1f}" for each in known]
        lower = [f"{x.at(each.x):.1f},{y.at(each.low or 0.0):.1f}" for each in reversed(known)]
        yield f'<polygon class="band {color}" points="{" ".join(upper + lower)}"/>'
    else:
        yield from (_whisker(y, each, x.at(each.x), upright=True) for each in known)
    if joined:
        drawn = " ".join(f"{x.at(each.x):.1f},{y.at(each.y):.1f}" for each in points)
        yield f'<polyline class="line {color}" points="{drawn}"/>'
    for each in points:
        yield (
            f'<circle class="dot {color}" cx="{x.at(each.x):.1f}" cy="{y.at(each.y):.1f}" r="3.5">'
            f"<title>{label}, {x.text(each.x)}: {y.text(each.y)}</title></circle>"
        )


def _bars(table: Table, chart: Chart, name: str) -> Drawing:
    """Bars with intervals, each below its label and its figures, which a phone shows, too."""
    points, right = _points(table, chart, chart.y[0]), WIDTH - RIGHT
    column = table.column(chart.y[0])
    labels = [_name_of(point.row, table, chart.label) for point in points]
    room = min(MAX_LABELS, max(map(length_of, labels), default=0.0) + 16)
    top = 14 + 16 * len(chart.marks)
    bottom = top + TALL_ROW * len(points)
    values = [*(each for point in points for each in point.reached), *(m.at for m in chart.marks)]
    full = chart.full or max(values, default=1.0)
    held = [min(value, full) for value in values]
    x = scale_of(held, (RIGHT, right), column.unit, least=chart.start)
    origin, told = x.at(chart.origin), []
    body = [*_bottom(x, bottom, chart.y_label or column.label)]
    body += _marks(chart.marks, x, top, bottom)
    for number, (point, label) in enumerate(zip(points, labels, strict=True)):
        head, end, row = top + TALL_ROW * number + 16, x.at(point.y), point.row
        kind = f"bar {row.tone}" if row.tone != "plain" else "bar bound" if row.mark else "bar"
        text = f"{_text_of(row, table, chart.text or chart.y[:1])} {row.mark}".strip()
        told.append(f"{label}: {text}")
        body += [
            _text("label halo", RIGHT, head, f"{fitted(label, room)}<title>{label}</title>"),
            f'<rect class="{kind}" x="{min(origin, end):.1f}" y="{head + 14 - BAR / 2:g}" '
            f'width="{max(abs(end - origin), 1):.1f}" height="{BAR}"/>',
            _text("figure halo", RIGHT + room, head, fitted(text, right - RIGHT - room)),
        ]
        if point.y <= x.high * 1.0001:
            body.append(_whisker(x, point, head + 14, upright=False))
        else:  # the bar is cut
            for at in (right - 12, right - 6):
                body.append(f'<path class="cut" d="M{at} {head + 5:g}l-6 18"/>')
    if chart.origin > chart.start:
        body.append(_line("axis", (origin, origin), (top, bottom)))
    return Drawing(body, bottom + BOTTOM, "; ".join(told))


def _parts(table: Table, chart: Chart, name: str) -> Drawing:
    """A bar of full length for each row, divided by its shares, below a legend of the parts."""
    rows, right = [row for _, row in _rows(table, chart)], WIDTH - 20
    shares = [[finite(table.cell(row, column).value) or 0.0 for column in chart.y] for row in rows]
    drawn = [at for at in range(len(chart.y)) if any(each[at] > 0 for each in shares)]
    color = {at: number % len(HATCHES) for number, at in enumerate(drawn)}
    labels = {at: table.column(chart.y[at]).label for at in drawn}
    body = [
        f'<pattern id="{name}-h{number}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<path class="hatch" d="{hatch}"/></pattern>'
        for number, hatch in enumerate(HATCHES)
        if hatch and number in color.values()
    ]

    def part(at: int, x: float, y: float, size: tuple[float, float], told: str) -> str:
        where = f'x="{x:.1f}" y="{y:g}" width="{round(size[0], 1):g}" height="{size[1]:g}"'
        lines = f'<rect class="lines" {where} fill="url(#{name}-h{color[at]})"/>'
        shape = f'<rect class="part c{color[at]}" {where}><title>{told}</title></rect>'
        return shape + (lines if HATCHES[color[at]] else "")

    at_x, at_y = float(LABELS), 6
    for at in drawn:
        room = 38 + length_of(labels[at])
        if at_x > LABELS and at_x + room > WIDTH:  # the legend goes on in another line
            at_x, at_y = float(LABELS), at_y + 22
        body += [part(at, at_x, at_y, (16, 16), labels[at])]
        body += [_text("tick", at_x + 21, at_y + 12, labels[at])]
        at_x += room
    told, top = [], at_y + 28
    for number, (row, each) in enumerate(zip(rows, shares, strict=True)):
        y, start = top + ROW * number, float(LABELS)
        label = _name_of(row, table, chart.label)
        texts = {at: shown_in("share", each[at]) for at in drawn}
        told.append(f"{label}: " + ", ".join(f"{labels[at]} {texts[at]}" for at in drawn))
        body.append(_text("label", LABELS - 10, y + 17, f"{label} {row.mark}".strip(), "end"))
        for at in drawn:
            width = (right - LABELS) * max(0.0, min(1.0, each[at]))
            if width > 0:
                size = (width, 20.0)
                body.append(part(at, start, y + 3, size, f"{labels[at]}: {texts[at]}"))
            if width > CHARACTER * len(texts[at]) + 8:
                kind = f"inside i{color[at]}"
                body.append(_text(kind, start + width / 2, y + 17, texts[at], "middle"))
            start += width
    return Drawing(body, top + ROW * len(rows) + 10, "; ".join(told))


def _front(table: Table, chart: Chart, name: str) -> Drawing:
    """Dots, of which those on the Pareto front are joined, numbered and named below the chart.

    A point on the front is a filled diamond with a number, and the others are hollow circles.
    """
    points, column = _points(table, chart, chart.y[0]), table.column(chart.y[0])
    across = table.column(chart.x)
    signs = [-1.0 if each == "more" else 1.0 for each in chart.better]
    kept = front([(signs[0] * point.x, signs[1] * point.y) for point in points])
    best = sorted((each for each, on in zip(points, kept, strict=True) if on), key=lambda p: p.x)
    right, bottom = WIDTH - RIGHT, TOP + LINES_HEIGHT
    places = [point.x for point in points]
    # Places of dots are no lengths: an axis need not begin at 0.
    least = 0.95 * min(places) if min(places) > max(places) / 2 else 0.0
    x = scale_of(places, (LEFT, right), across.unit, least=least)
    reached = [each for point in points for each in point.reached]
    y = scale_of(reached, (bottom, TOP), column.unit)
    body = [*_left(y, right, chart.y_label or column.label)]
    body += _bottom(x, bottom, chart.x_label or across.label)
    steps = "H{x:.1f}V{y:.1f}" if chart.better[0] == "less" else "V{y:.1f}H{x:.1f}"
    stairs = "".join(steps.format(x=x.at(each.x), y=y.at(each.y)) for each in best[1:])
    if stairs:
        start = f"M{x.at(best[0].x):.1f} {y.at(best[0].y):.1f}"
        body.append(f'<path class="stairs" d="{start}{stairs}"/>')
    names = {id(each): _spoken(each, table, chart) for each in points}
    for point, on in sorted(zip(points, kept, strict=True), key=lambda pair: pair[1]):
        at = (x.at(point.x), y.at(point.y))
        body.append(_whisker(y, point, at[0], upright=True))
        shape = (
            f'<path class="front" d="M{at[0]:.1f} {at[1] - 6:.1f}l6 6l-6 6l-6 -6z">'
            if on
            else f'<circle class="off" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4.5">'
        )
        told = f"<title>{names[id(point)]}{', on the front' * on}</title>"
        body.append(f"{shape}{told}</{'path' if on else 'circle'}>")
    named = evenly(best, MAX_NAMED)
    # On that side of a point on the front there is no other point: it would beat this one.
    free = -6.0 if chart.better[1] == "more" else 16.0
    places_of_numbers = _apart([(x.at(each.x) - 10, y.at(each.y) + free) for each in named], free)
    for number, place in enumerate(places_of_numbers, start=1):
        body.append(_text("label halo", *place, str(number), "middle"))
    more = len(best) - len(named)
    below = "".join(f"<li>{names[id(point)]}</li>" for point in named)
    note = f"and {more:,} more on the front. " if more else ""
    note += "Nothing else is better in one of the two figures without being worse in the other."
    told = "; ".join(names[id(point)] for point in named)
    return Drawing(
        body,
        bottom + BOTTOM,
        f"on the Pareto front: {told or 'nothing'}",
        f'<ol class="front">{below}</ol>\n<p class="note">{note}</p>\n',
    )


def _apart(wanted: list[tuple[float, float]], side: float) -> list[tuple[float, float]]:
    """Places of numbers, in their order: one that would cover another is moved to ``side``."""
    placed: list[tuple[float, float]] = []
    for x, y in wanted:
        while any(abs(x - a) < 14 and abs(y - b) < 15 for a, b in placed):
            y += math.copysign(1, side)
        placed.append((x, y))
    return placed


def _spoken(point: ChartPoint, table: Table, chart: Chart) -> str:
    """Both figures of a point, each with what it is of, and the name of its row."""
    figures = [
        f"{label or table.column(name).label} {_text_of(point.row, table, (name,))}"
        for name, label in ((chart.y[0], chart.y_label), (chart.x, chart.x_label))
    ]
    return f"{', '.join(figures)}: {_name_of(point.row, table, chart.label)}"


_KINDS = {"lines": _lines, "bars": _bars, "parts": _parts, "front": _front}

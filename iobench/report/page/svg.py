"""Charts as SVG: text that can be selected, and shapes that print.

All colours come from classes of ``page.css``, so that one drawing fits a dark and a light page. No
figure is told by colour alone: lines have dashes and labels at their ends, and a table is behind
each chart. Texts are escaped before they get here (``render_html``).
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from ..sections import Axis, Heat, Lines, Mark, Ranges, Scatter, Series, ShareBars
from .scale import Scale, scale, spread_out, text_of

WIDTH = 720
LEFT, RIGHT, TOP, BOTTOM = 78, 96, 14, 44
LINES_HEIGHT = 300
ROW, BAR = 30, 14
EDGE, TALL_ROW = 24, 46
"""The ends of bars that have labels above them, and the height of a row with both."""

LABELS = 150
"""Room for labels of rows at the left."""

MAX_RIGHT, MAX_LABELS = 220, 240
"""Room where labels at the ends of lines and labels of rows are longer than usual."""

CHARACTER = 7.8
"""Mean width of a character, in pixels, in a wide font: about right is enough."""

COLORS = 8
"""Classes ``c0`` to ``c7`` of the style sheet, for lines."""

PART_COLORS = 10
"""Classes ``c0`` to ``c9``, for the parts of a bar."""

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


def chart(section: Lines | Ranges | ShareBars) -> str:
    """The chart as one ``svg`` element, with title and description for screen readers."""
    if isinstance(section, Lines):
        body, height, told = _lines(section)
    elif isinstance(section, Ranges):
        body, height, told = _ranges(section)
    else:
        body, height, told = _shares(section)
    return framed(section, body, height, told)


def framed(
    section: Lines | Ranges | ShareBars | Heat | Scatter,
    body: Iterable[str],
    height: float,
    told: str,
    width: float = WIDTH,
) -> str:
    """The ``svg`` element around the shapes. One that is wider than others scrolls in its box."""
    name = f"{section.id}-chart"
    size = f'class="chart own" width="{width:g}"' if width > WIDTH else 'class="chart"'
    return (
        f'<svg {size} viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{section.title}</title>'
        f'<desc id="{name}-d">{told}</desc>{"".join(body)}</svg>'
    )


def length_of(text: str) -> float:
    """About how wide an escaped text is, in pixels."""
    return CHARACTER * len(html.unescape(text))


def fitted(text: str, room: float) -> str:
    """An escaped text, cut at its end where it is wider than ``room`` pixels."""
    if length_of(text) <= room:
        return text
    return f"{html.escape(html.unescape(text)[: max(1, int(room / CHARACTER) - 1)].rstrip())}…"


def _lines(section: Lines) -> tuple[list[str], float, str]:
    points = [point for series in section.series for point in series.points]
    marked = [mark.at for mark in section.marks]
    ended = max((length_of(series.label) for series in section.series), default=0.0)
    right = WIDTH - min(MAX_RIGHT, max(RIGHT, ended + 16))
    top = TOP + max(10, 16 * len(section.marks))  # the axis' name is above the highest tick
    bottom = top + LINES_HEIGHT - TOP - BOTTOM
    x = scale(section.x, [*(point.x for point in points), *marked], LEFT, right)
    ends = [each for point in points for each in (point.y, point.high) if each is not None]
    lows = [point.low for point in points if point.low]
    y = scale(section.y, [*ends, *lows, *(limit.at for limit in section.limits)], bottom, top)
    body = [*grid(y, LEFT, right), *bottom_ticks(x, bottom), *names(section.x, section.y, bottom)]
    body += _marks(section.marks, x, top, bottom)
    body += _limits(section.limits, y, right)
    for number, series in enumerate(section.series):
        body += _series(series, number, x, y)
    last = [series.points[-1] for series in section.series if series.points]
    named = [series for series in section.series if series.points]
    heights = spread_out([y.at(point.y) for point in last], 15, top + 4, bottom)
    for number, (series, height) in enumerate(zip(named, heights, strict=True)):
        body.append(
            f'<text class="end t{number % COLORS}" x="{right + 8:g}" y="{height + 4:.1f}">'
            f"{fitted(series.label, WIDTH - right - 8)}</text>"
        )
    told = "; ".join(
        f"{series.label}: {y.text(series.points[0].y)} at {x.text(series.points[0].x)}, "
        f"{y.text(series.points[-1].y)} at {x.text(series.points[-1].x)}"
        for series in named
    )
    return body, bottom + BOTTOM, told


def _series(series: Series, number: int, x: Scale, y: Scale) -> Iterable[str]:
    color = f"c{number % COLORS}"
    known = [point for point in series.points if point.low is not None and point.high is not None]
    if len(known) > 1:
        upper = [f"{x.at(p.x):.1f},{y.at(p.high or p.y):.1f}" for p in known]
        lower = [f"{x.at(p.x):.1f},{y.at(p.low or p.y):.1f}" for p in reversed(known)]
        yield f'<polygon class="band {color}" points="{" ".join(upper + lower)}"/>'
    elif known:
        at, low, high = x.at(known[0].x), y.at(known[0].low or 0.0), y.at(known[0].high or 0.0)
        ends = "".join(f"M{at - 5:.1f} {end:.1f}h10" for end in (low, high))
        yield f'<path class="whisker" d="M{at:.1f} {low:.1f}V{high:.1f}{ends}"/>'
    if series.joined:
        drawn = " ".join(f"{x.at(point.x):.1f},{y.at(point.y):.1f}" for point in series.points)
        yield f'<polyline class="line {color}" points="{drawn}"/>'
    for point in series.points:
        at_x, at_y = x.at(point.x), y.at(point.y)
        told = f"{x.text(point.x)}: {y.text(point.y)}"
        yield (
            f'<circle class="dot {color}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="3.5">'
            f"<title>{series.label}, {told}</title></circle>"
        )


def grid(y: Scale, left: float, right: float) -> Iterable[str]:
    for tick in y.ticks():
        at = y.at(tick)
        yield f'<line class="grid" x1="{left:g}" x2="{right:g}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield (
            f'<text class="tick" x="{left - 8:g}" y="{at + 4:.1f}" text-anchor="end">'
            f"{y.text(tick)}</text>"
        )


def bottom_ticks(x: Scale, bottom: float) -> Iterable[str]:
    """The ticks of the horizontal axis; a label that would touch the one before is left out."""
    free = -math.inf
    for tick in x.ticks():
        at, text = x.at(tick), x.text(tick)
        yield (
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom:g}" y2="{bottom + 4:g}"/>'
        )
        if at - length_of(text) / 2 < free:
            continue
        free = at + length_of(text) / 2
        yield (
            f'<text class="tick" x="{at:.1f}" y="{bottom + 18:g}" text-anchor="middle">'
            f"{text}</text>"
        )


def names(x: Axis, y: Axis, bottom: float) -> Iterable[str]:
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield (
        f'<text class="name" x="{middle:g}" y="{bottom + 38:g}" text-anchor="middle">'
        f"{x.label}</text>"
    )
    yield f'<text class="name" x="4" y="{TOP - 2:g}">{y.label}</text>'


def _marks(marks: Sequence[Mark], x: Scale, top: float, bottom: float) -> Iterable[str]:
    """A line for each mark; each label has a line of text of its own above the chart."""
    for number, mark in enumerate(marks):
        at = x.at(mark.at)
        height = top - 6 - 16 * (len(marks) - 1 - number)
        room = len(mark.label) * CHARACTER
        anchor, shift = ("end", -4) if at + room > WIDTH else ("start", 4)
        yield (
            f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{height - 8:g}" y2="{bottom:g}"/>'
        )
        yield (
            f'<text class="tick" x="{at + shift:.1f}" y="{height:g}" text-anchor="{anchor}">'
            f"{mark.label}</text>"
        )


def _limits(limits: Sequence[Mark], y: Scale, right: float) -> Iterable[str]:
    """A line across the chart for each limit, with its label above it at the left."""
    for limit in limits:
        at = y.at(limit.at)
        yield (f'<line class="mark" x1="{LEFT:g}" x2="{right:g}" y1="{at:.1f}" y2="{at:.1f}"/>')
    wanted = [y.at(limit.at) - 5 for limit in limits]
    heights = spread_out(wanted, 14, y.end + 4, y.start)
    for limit, height in zip(limits, heights, strict=True):
        yield (f'<text class="tick halo" x="{LEFT + 6:g}" y="{height:.1f}">{limit.label}</text>')


def _ranges(section: Ranges) -> tuple[list[str], float, str]:
    """Bars, each below its label and its figures, which a phone shows without scrolling."""
    right = WIDTH - EDGE
    named = min(MAX_LABELS, max((length_of(row.label) + 16 for row in section.rows), default=0.0))
    top = TOP + 16 * len(section.marks)
    bottom = top + TALL_ROW * len(section.rows)
    shown = [value for row in section.rows for value in (row.value, row.high) if value is not None]
    shown += [mark.at for mark in section.marks]
    full = section.full or max(shown, default=1.0)
    x = scale(section.axis, [min(value, full) for value in shown], EDGE, right)
    body = [*bottom_ticks(x, bottom), *_marks(section.marks, x, top, bottom)]
    origin = x.at(section.origin)
    for number, row in enumerate(section.rows):
        head = float(top + TALL_ROW * number + 16)
        middle = head + 14
        end = x.at(row.value)
        kind = "bar bound" if row.mark else "bar"
        if row.tone != "plain":
            kind = f"bar {row.tone}"
        start, width = min(origin, end), abs(end - origin)
        text = f"{row.text} {row.mark}".strip()
        body.append(
            f'<text class="label halo" x="{EDGE}" y="{head:g}">'
            f"{fitted(row.label, named)}<title>{row.label}</title></text>"
            f'<rect class="{kind}" x="{start:.1f}" y="{middle - BAR / 2:g}" '
            f'width="{max(width, 1):.1f}" height="{BAR}"/>'
            f'<text class="figure halo" x="{EDGE + named:g}" y="{head:g}">'
            f"{fitted(text, right - EDGE - named)}</text>"
        )
        cut = row.value > x.high * 1.0001
        if row.low is not None and row.high is not None and not cut:
            low, high = x.at(row.low), x.at(row.high)
            ends = "".join(f"M{at:.1f} {middle - 5:g}v10" for at in (low, high))
            body.append(f'<path class="whisker" d="M{low:.1f} {middle:g}H{high:.1f}{ends}"/>')
        if cut:
            body.append(
                f'<path class="cut" d="M{right - 12:g} {middle - 9:g}l-6 18m6 -18"/>'
                f'<path class="cut" d="M{right - 6:g} {middle - 9:g}l-6 18"/>'
            )
    if section.origin > section.axis.start:
        body.append(
            f'<line class="axis" x1="{origin:.1f}" x2="{origin:.1f}" y1="{top:g}" y2="{bottom:g}"/>'
        )
    middle = WIDTH / 2
    body.append(
        f'<text class="name" x="{middle:g}" y="{bottom + 38:g}" text-anchor="middle">'
        f"{section.axis.label}</text>"
    )
    told = "; ".join(f"{row.label}: {row.text}" for row in section.rows)
    return body, bottom + BOTTOM, told


def _shares(section: ShareBars) -> tuple[list[str], float, str]:
    drawn = [at for at in range(len(section.parts)) if any(row[1][at] > 0 for row in section.rows)]
    color = {at: number % PART_COLORS for number, at in enumerate(drawn)}
    right = WIDTH - 20
    body = [
        f'<pattern id="{section.id}-h{number}" width="8" height="8" '
        f'patternUnits="userSpaceOnUse"><path class="hatch" d="{HATCHES[number]}"/></pattern>'
        for number in sorted(set(color.values()))
        if HATCHES[number]
    ]
    at_x, at_y = float(LABELS), 6
    for at in drawn:
        room = 38 + length_of(section.parts[at])
        if at_x > LABELS and at_x + room > WIDTH:  # the legend goes on in another line
            at_x, at_y = float(LABELS), at_y + 22
        where = f'x="{at_x:g}" y="{at_y}" width="16" height="16"'
        body.append(
            f'<rect class="part c{color[at]}" {where}/>{_hatched(section, color[at], where)}'
            f'<text class="tick" x="{at_x + 21:g}" y="{at_y + 12}">{section.parts[at]}</text>'
        )
        at_x += room
    top = at_y + 28
    bottom = top + ROW * len(section.rows)
    for number, (label, shares) in enumerate(section.rows):
        y = top + ROW * number
        body.append(
            f'<text class="label" x="{LABELS - 10:g}" y="{y + 17:g}" text-anchor="end">'
            f"{label}</text>"
        )
        start = float(LABELS)
        for at in drawn:
            width = (right - LABELS) * max(0.0, min(1.0, shares[at]))
            if width <= 0:
                continue
            text = text_of(shares[at], "share")
            where = f'x="{start:.1f}" y="{y + 3:g}" width="{width:.1f}" height="20"'
            body.append(
                f'<rect class="part c{color[at]}" {where}>'
                f"<title>{section.parts[at]}: {text}</title></rect>"
                f"{_hatched(section, color[at], where)}"
            )
            if width > CHARACTER * len(text) + 8:
                body.append(
                    f'<text class="inside i{color[at]}" x="{start + width / 2:.1f}" '
                    f'y="{y + 17:g}" text-anchor="middle">{text}</text>'
                )
            start += width
    told = "; ".join(
        f"{label}: "
        + ", ".join(f"{section.parts[at]} {text_of(shares[at], 'share')}" for at in drawn)
        for label, shares in section.rows
    )
    return body, bottom + 10, told


def _hatched(section: ShareBars, color: int, where: str) -> str:
    """The lines over a shape of this colour, whose place is ``where``."""
    if not HATCHES[color]:
        return ""
    return f'<rect class="lines" {where} fill="url(#{section.id}-h{color})"/>'

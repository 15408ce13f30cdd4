"""Scatter charts as SVG: each point a dot, and those on the Pareto front joined and numbered.

A point on the front is a filled diamond with a number, and the others are hollow circles, so that
nobody needs to tell colours apart. The list below the chart has the name of each number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..figures import evenly
from ..sections import Scatter, Spot
from .scale import Scale, scale
from .svg import (
    BOTTOM,
    LEFT,
    LINES_HEIGHT,
    TOP,
    WIDTH,
    bottom_ticks,
    fitted,
    framed,
    grid,
    names,
)

MAX_NAMED = 12
"""Points on the front that are named below the chart; the table has all."""

LINE = 20


def scatter(section: Scatter) -> str:
    """The chart with the names of the front's points below it, as one ``svg`` element."""
    right, top = WIDTH - 24, TOP + 10
    bottom = top + LINES_HEIGHT - TOP - BOTTOM
    x = scale(section.x, [spot.x for spot in section.spots], LEFT, right)
    heights = [end for spot in section.spots for end in (spot.y, spot.high) if end is not None]
    y = scale(section.y, heights, bottom, top)
    front = sorted((spot for spot in section.spots if spot.front), key=lambda spot: spot.x)
    body = [*grid(y, LEFT, right), *bottom_ticks(x, bottom)]
    body += names(section.x, section.y, bottom)
    body += _stairs(front, x, y)
    for spot in sorted(section.spots, key=lambda spot: spot.front):
        body += _spot(spot, x, y)
    named = evenly(front, MAX_NAMED)
    # On that side of a point on the front there is no other point: it would beat this one.
    free = -6 if section.better == "more" else 16
    places = _apart([(x.at(spot.x) - 10, y.at(spot.y) + free) for spot in named], free)
    line = bottom + BOTTOM + 8
    for number, (spot, place) in enumerate(zip(named, places, strict=True), start=1):
        body.append(
            f'<text class="label halo" x="{place[0]:.1f}" y="{place[1]:.1f}" '
            f'text-anchor="middle">{number}</text>'
            f'<path class="front" d="{_diamond(LEFT - 30, line + 8)}"/>'
            f'<text class="label" x="{LEFT - 18:g}" y="{line + 12:g}">{number}</text>'
            f'<text class="label" x="{LEFT + 4:g}" y="{line + 12:g}">'
            f"{fitted(_named(spot), right - LEFT)}</text>"
        )
        line += LINE
    if len(front) > len(named):
        more = f"and {len(front) - len(named):,} more on the front"
        body.append(f'<text class="tick" x="{LEFT + 4:g}" y="{line + 12:g}">{more}</text>')
        line += LINE
    line += 4
    body.append(
        f'<text class="tick" x="{LEFT + 4:g}" y="{line + 8:g}">'
        "Nothing else is better in one of the two figures without being worse in the other."
        "</text>"
    )
    line += LINE
    told = "; ".join(_named(spot) for spot in named)
    return framed(section, body, line + 6, f"on the Pareto front: {told or 'nothing'}")


def _named(spot: Spot) -> str:
    return f"{spot.text}: {spot.label}"


def _apart(wanted: list[tuple[float, float]], side: float) -> list[tuple[float, float]]:
    """Places of numbers, in their order: one that would cover another is moved to ``side``."""
    placed: list[tuple[float, float]] = []
    for x, height in wanted:
        y = height
        while any(abs(x - a) < 14 and abs(y - b) < 15 for a, b in placed):
            y += math.copysign(1, side)
        placed.append((x, y))
    return placed


def _diamond(x: float, y: float) -> str:
    return f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z"


def _stairs(front: list[Spot], x: Scale, y: Scale) -> Iterable[str]:
    """The border of what the front beats: along, and then up at each of its points."""
    if len(front) > 1:
        path = f"M{x.at(front[0].x):.1f} {y.at(front[0].y):.1f}" + "".join(
            f"H{x.at(spot.x):.1f}V{y.at(spot.y):.1f}" for spot in front[1:]
        )
        yield f'<path class="stairs" d="{path}"/>'


def _spot(spot: Spot, x: Scale, y: Scale) -> Iterable[str]:
    at_x, at_y = x.at(spot.x), y.at(spot.y)
    if spot.low is not None and spot.high is not None:
        low, high = y.at(spot.low), y.at(spot.high)
        ends = "".join(f"M{at_x - 4:.1f} {at:.1f}h8" for at in (low, high))
        kind = "whisker" if spot.front else "whisker faint"
        yield f'<path class="{kind}" d="M{at_x:.1f} {low:.1f}V{high:.1f}{ends}"/>'
    told = f"<title>{_named(spot)}{', on the front' if spot.front else ''}</title>"
    if spot.front:
        yield f'<path class="front" d="{_diamond(at_x, at_y)}">{told}</path>'
    else:
        yield f'<circle class="off" cx="{at_x:.1f}" cy="{at_y:.1f}" r="4.5">{told}</circle>'

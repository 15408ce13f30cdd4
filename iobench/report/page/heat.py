"""Heat maps as SVG: squares whose shade is their value, with the value as text in each of them.

The shades are nine even steps of lightness (``h0`` to ``h8`` in ``page.css``), so that a print
without colour shows the same order. A square without a value has no shade but a dashed edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..sections import Heat, Square
from .svg import WIDTH, fitted, framed, length_of

SHADES = 9
MIN_SIDE, MAX_SIDE, HEIGHT = 34.0, 104.0, 38.0
"""Width and height of a square, in pixels."""

MAX_ROW_LABEL, MAX_COLUMN_LABEL = 230.0, 210.0
SLOPE = math.radians(40)
"""Of column labels that are wider than their squares."""


def shade(value: float, low: float, high: float) -> int:
    """The number of the shade, 0 to SHADES - 1; the middle one if all values are the same."""
    if not high > low:
        return SHADES // 2
    share = (min(max(value, low), high) - low) / (high - low)
    return round((SHADES - 1) * share)


def heat(section: Heat) -> str:
    """The heat map with its scale below it, as one ``svg`` element."""
    left = 16 + min(MAX_ROW_LABEL, max([44.0, length_of(section.y), *map(length_of, section.rows)]))
    texts = [length_of(text) for row in section.squares for each in row for text in _told(each)]
    room = (WIDTH - left - 12) / max(1, len(section.columns))
    side = max(MIN_SIDE, max(texts, default=0.0) + 10, min(MAX_SIDE, room))
    longest = min(MAX_COLUMN_LABEL, max(map(length_of, section.columns), default=0.0))
    sloping = longest > side - 6
    top = 24 + (longest * math.sin(SLOPE) + 18 if sloping else 20)
    end = left + side * len(section.columns)
    width = max(WIDTH, end + 12 + (longest * math.cos(SLOPE) - side / 2 if sloping else 0.0))
    body = list(_labels(section, left, top, side, sloping=sloping))
    for down, row in enumerate(section.squares):
        for along, square in enumerate(row):
            where = f"{section.y} {section.rows[down]}, {section.x} {section.columns[along]}"
            at = (left + side * along, top + HEIGHT * down)
            body += _square(section, square, where, at, side)
    bottom = top + HEIGHT * len(section.rows)
    body += _scale(section, left, bottom + 16)
    return framed(section, body, bottom + 46, _told_of(section), width)


def _told(square: Square) -> tuple[str, ...]:
    return (square.text, square.mark)


def _labels(section: Heat, left: float, top: float, side: float, *, sloping: bool) -> Iterable[str]:
    yield f'<text class="name" x="{left:g}" y="12">{section.x}</text>'
    yield f'<text class="name" x="{left - 10:g}" y="{top - 8:.1f}" text-anchor="end">' + (
        f"{fitted(section.y, left - 14)}</text>"
    )
    for number, text in enumerate(section.columns):
        x, y = left + side * (number + 0.5), top - 8
        turned = f' transform="rotate(-40 {x:.1f} {y:.1f})"' if sloping else ""
        anchor = "start" if sloping else "middle"
        yield (
            f'<text class="label" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}>'
            f"{fitted(text, MAX_COLUMN_LABEL)}<title>{text}</title></text>"
        )
    for number, text in enumerate(section.rows):
        yield (
            f'<text class="label" x="{left - 10:g}" y="{top + HEIGHT * (number + 0.5) + 4:.1f}" '
            f'text-anchor="end">{fitted(text, left - 14)}<title>{text}</title></text>'
        )


def _square(
    section: Heat, square: Square, where: str, at: tuple[float, float], side: float
) -> Iterable[str]:
    x, y = at
    shown = None if square.value is None else shade(square.value, section.low, section.high)
    kind = "lacking" if shown is None else f"h{shown}"
    marked = " chosen" if square.mark else ""
    size = f'x="{x + 1:.1f}" y="{y + 1:.1f}" width="{side - 2:.1f}" height="{HEIGHT - 2:g}"'
    told = f"{where}: {square.text}" + (f", {square.mark}" if square.mark else "")
    yield f'<rect class="square {kind}{marked}" {size}><title>{told}</title></rect>'
    ink = "tick" if shown is None else f"on{shown}"
    middle, base = x + side / 2, y + HEIGHT / 2 + (-2 if square.mark else 4)
    yield (
        f'<text class="{ink}" x="{middle:.1f}" y="{base:.1f}" text-anchor="middle">'
        f"{square.text}</text>"
    )
    if square.mark:
        yield (
            f'<text class="{ink} small" x="{middle:.1f}" y="{base + 14:.1f}" '
            f'text-anchor="middle">{square.mark}</text>'
        )


def _scale(section: Heat, left: float, y: float) -> Iterable[str]:
    low, high = (
        f"{each:,.0f}" if abs(each) >= 1000 else f"{each:.3g}"
        for each in (section.low, section.high)
    )
    start = left + length_of(low) + 8
    yield f'<text class="tick" x="{left:g}" y="{y + 12:g}">{low}</text>'
    for number in range(SHADES):
        yield (
            f'<rect class="square h{number}" x="{start + 20 * number:.1f}" y="{y:g}" '
            f'width="20" height="16"/>'
        )
    end = start + 20 * SHADES + 8
    yield f'<text class="tick" x="{end:.1f}" y="{y + 12:g}">{high} {section.unit}</text>'


def _told_of(section: Heat) -> str:
    """The smallest and the largest value with their places, for screen readers."""
    known = [
        (square.value, square.text, f"{section.rows[down]}, {section.columns[along]}")
        for down, row in enumerate(section.squares)
        for along, square in enumerate(row)
        if square.value is not None
    ]
    if not known:
        return "no square has a value"
    least, most = min(known), max(known)
    lacking = sum(len(row) for row in section.squares) - len(known)
    return (
        f"{section.y} by {section.x}: {least[1]} {section.unit} at {least[2]}, to {most[1]} at "
        f"{most[2]}; {lacking} without a value"
    )

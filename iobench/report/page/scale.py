"""Scales of charts: where a value is drawn, and which ticks an axis has. No markup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...base.units import format_count
from ..figures import BY_UNIT
from ..sections import Value

MAX_TICKS = 6
SMALLEST, LARGEST = 1e-200, 1e200
"""Smaller values are drawn as 0, larger ones as this: a record of others may hold any figure."""

_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)
_TIMES = (86400.0, 3600.0, 60.0)
"""Seconds of a day, an hour and a minute: ticks of long times are multiples of them."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values of [low, high] to positions of [start, end], in pixels.

    A logarithmic one has a ``base``. ``names``: the only ticks, by their values.
    """

    low: float
    high: float
    start: float
    end: float
    unit: str
    base: int = 0
    names: Mapping[float, str] = field(default_factory=dict)

    def at(self, value: float) -> float:
        """The position of ``value``; values outside lie on the nearest end."""
        low, high, value = (self._warped(each) for each in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))

    def _warped(self, value: float) -> float:
        value = min(value, LARGEST)
        return math.log(max(value, self.low)) if self.base else value

    def ticks(self) -> list[float]:
        """The names' values, or at most MAX_TICKS + 1 values; all within the scale."""
        if self.names:
            return sorted(self.names)
        if not self.base:
            return _linear_ticks(self.low, self.high, self.unit)
        first = math.ceil(math.log(self.low, self.base) - 1e-9)
        last = math.floor(math.log(self.high, self.base) + 1e-9)
        step = max(1, math.ceil((last - first + 1) / (MAX_TICKS + 2)))
        return [float(self.base) ** power for power in range(first, last + 1, step)]

    def text(self, value: float) -> str:
        """How people see a value of this axis."""
        return self.names.get(value) or shown_in(self.unit, value)


def scale_of(
    values: Iterable[float],
    ends: tuple[float, float],
    unit: str,
    *,
    base: int = 0,
    least: float = 0.0,
    names: Mapping[float, str] | None = None,
) -> Scale:
    """A scale that holds the values: a linear one from ``least``, else from the smallest."""
    known = [0.0 if value < SMALLEST else min(value, LARGEST) for value in values]
    if not base:
        top = max(known, default=least + 1.0)
        top = max(top, least) + 0.05 * max(top - least, 0.0)
        top = top if top - least > SMALLEST else least + 1.0
        return Scale(least, top, *ends, unit, names=names or {})
    known = [value for value in known if value > 0] or [1.0]
    low, high = min(known), max(known)
    if base == 10:
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
    if high <= low:
        low, high = low / 2, high * 2
    return Scale(low, high, *ends, unit, base, names or {})


def _linear_ticks(low: float, high: float, unit: str) -> list[float]:
    span = high - low
    if span <= 0:
        return [low]
    size = 1.0
    if unit == "s":
        size = next((each for each in _TIMES if span >= 4 * each), 1.0)
    elif unit == "bytes" and span >= 1:
        size = 1024.0 ** max(0, math.floor(math.log(span, 1024)))
    raw = span / size / MAX_TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    if power == 0 or not math.isfinite(power):
        return [low]
    # Things that are counted have no halves: 0, 5, 10 and not 0, 2.5, 5.
    whole = unit == "count" and span >= 2
    steps = [nice * power * size for nice in _NICE if nice * power >= raw * (1 - 1e-9)]
    step = next(step for step in (*steps, 1.0) if not whole or step == int(step))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def finite(value: Value) -> float | None:
    """The value of a cell, if it is a figure that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def shown_in(unit: str, value: float) -> str:
    """A value in base units, as people see it."""
    if unit == "ratio":
        return f"{value:.3g} x"
    if unit in BY_UNIT and unit not in ("samples/s", "count"):
        return BY_UNIT[unit](value)
    return format_count(value) if value == 0 or abs(value) >= 0.01 else f"{value:.2g}"


def spread_out(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, in the same order, at least ``gap`` apart, within bounds.

    If there is no room for all, they are spread evenly.
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    if len(order) > 1 and (len(order) - 1) * gap > high - low:
        gap = (high - low) / (len(order) - 1)
    placed = [0.0] * len(wanted)
    floor = low
    for index in order:
        placed[index] = floor = max(floor, wanted[index])
        floor += gap
    ceiling = high
    for index in reversed(order):
        placed[index] = ceiling = min(ceiling, placed[index])
        ceiling -= gap
    return placed

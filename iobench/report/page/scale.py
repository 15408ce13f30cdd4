"""Scales of charts: where a value is drawn, and which ticks an axis has. No markup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...schema.metrics import Metric, Unit
from ...units import format_count
from ..figures import format_of
from ..sections import Axis

MAX_TICKS = 6
SMALLEST, LARGEST = 1e-200, 1e200
"""Smaller values are drawn as 0, larger ones as this: a record of others may hold any figure."""

_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)
_TIMES = (86400.0, 3600.0, 60.0)
"""Seconds of a day, an hour and a minute: ticks of long times are multiples of them."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values of [low, high] to positions of [start, end], in pixels."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The position of ``value``; values outside lie on the nearest end."""
        low, high, value = (self._warped(each) for each in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))

    def _warped(self, value: float) -> float:
        value = min(value, LARGEST)
        return value if self.axis.scale == "linear" else math.log(max(value, self.low))

    def ticks(self) -> list[float]:
        """The axis' own ticks, or at most MAX_TICKS + 1 values; all within the scale."""
        if self.axis.ticks:
            edge = self.high * (1 + 1e-9)
            return [value for value, _ in self.axis.ticks if self.low <= value <= edge]
        if self.axis.scale == "linear":
            counted = self.axis.unit == "count" and self.high - self.low >= 2
            binary = self.axis.unit == "bytes"
            times = self.axis.unit == "s"
            return _linear_ticks(self.low, self.high, binary=binary, whole=counted, seconds=times)
        base = 2.0 if self.axis.scale == "log2" else 10.0
        first = math.ceil(math.log(self.low, base) - 1e-9)
        last = math.floor(math.log(self.high, base) + 1e-9)
        step = max(1, math.ceil((last - first + 1) / (MAX_TICKS + 2)))
        return [base**power for power in range(first, last + 1, step)]

    def text(self, value: float) -> str:
        """How people see a value of this axis."""
        return dict(self.axis.ticks).get(value) or text_of(value, self.axis.unit)


def scale(axis: Axis, values: Iterable[float], start: float, end: float) -> Scale:
    """A scale that holds the values: from the start of a linear axis, else from the smallest."""
    known = [
        0.0 if value < SMALLEST else min(value, LARGEST)
        for value in values
        if not math.isnan(value)
    ]
    if axis.scale == "linear":
        top = max(known, default=axis.start + 1.0)
        top = max(top, axis.start) + 0.05 * max(top - axis.start, 0.0)
        if not top - axis.start > SMALLEST:
            top = axis.start + 1.0
        return Scale(axis, axis.start, top, start, end)
    known = [value for value in known if value > 0] or [1.0]
    low, high = min(known), max(known)
    if axis.scale == "log10":
        last = high
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
        if axis.ticks:  # names at the ends of lines stand where the lines end
            high = last
    if high <= low:
        low, high = low / 2, high * 2
    return Scale(axis, low, high, start, end)


def _linear_ticks(
    low: float, high: float, *, binary: bool, whole: bool, seconds: bool
) -> list[float]:
    span = high - low
    if span <= 0:
        return [low]
    if seconds:
        unit = next((each for each in _TIMES if span >= 4 * each), 1.0)
    else:
        unit = 1024.0 ** max(0, math.floor(math.log(span, 1024))) if binary and span >= 1 else 1.0
    raw = span / unit / MAX_TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    if power == 0 or not math.isfinite(power):
        return [low]
    steps = (nice * power * unit for nice in _NICE if nice * power >= raw * (1 - 1e-9))
    # Things that are counted have no halves: 0, 5, 10 and not 0, 2.5, 5.
    step = next(step for step in (*steps, 1.0) if not whole or step == int(step))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def text_of(value: float, unit: Unit) -> str:
    """A value in base units, as people see it."""
    if unit == "ratio":
        return f"{value:.3g} x"
    if unit in ("samples/s", "count"):
        return format_count(value) if value == 0 or abs(value) >= 0.01 else f"{value:.2g}"
    return format_of(Metric(name="", unit=unit, label="", of="verdict"))(value)


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

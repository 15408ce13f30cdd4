"""How to format a figure, by its unit."""

from __future__ import annotations

from collections.abc import Callable

from ..schema.metrics import Metric, Unit
from ..units import format_bytes, format_count, format_duration, format_percent, format_rate

Format = Callable[[float], str]

_BY_UNIT: dict[Unit, Format] = {
    "samples/s": format_count,
    "count": format_count,
    "bytes/s": format_rate,
    "bytes": format_bytes,
    "s": format_duration,
    "share": format_percent,
    "ratio": lambda ratio: f"{ratio:.2f} x",
}


def format_of(metric: Metric) -> Format:
    """The function that turns the metric's value, in base units, into text."""
    return _BY_UNIT[metric.unit]

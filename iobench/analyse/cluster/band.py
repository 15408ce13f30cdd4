"""A predicted figure with its interval, which may have no value between its ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

Z95 = 1.959964
"""Standard deviations from the middle to an end of a 95 % interval."""


class Band(NamedTuple):
    """``low`` to ``high``: the 95 % interval. ``value`` is None if nothing tells where in it."""

    value: float | None
    low: float
    high: float

    def moved(self, change: Callable[[float], float]) -> Band:
        """The band of a figure that follows from this one, and that grows or falls with it."""
        ends = change(self.low), change(self.high)
        return Band(None if self.value is None else change(self.value), min(ends), max(ends))

    def drawn(self, normal: Floats) -> Floats:
        """The figure for each standard normal deviate, above 0; ``value`` must be known."""
        middle = (self.low + self.high) / 2 if self.value is None else self.value
        found: Floats = np.maximum(middle + normal * (self.high - self.low) / (2 * Z95), 1e-12)
        return found


def band(ways: Floats) -> Band:
    """The median of the ways, and the interval that has 95 % of them."""
    low, value, high = (float(each) for each in np.quantile(ways, (0.025, 0.5, 0.975)))
    return Band(value, low, high)


def either(worst: Floats, likely: Floats | None, best: Floats, *, same: float) -> Band:
    """From the low end of the worst case to the high end of the best one.

    The value is that of the likely case. Without one, it is the middle of both cases if they are
    the same within the share ``same``, and None otherwise.
    """
    one, other = band(worst), band(best)
    low, high = min(one.low, other.low), max(one.high, other.high)
    if likely is not None:
        return Band(band(likely).value, low, high)
    assert one.value is not None
    assert other.value is not None
    apart = abs(one.value - other.value) > same * max(abs(one.value), abs(other.value))
    return Band(None if apart else (one.value + other.value) / 2, low, high)

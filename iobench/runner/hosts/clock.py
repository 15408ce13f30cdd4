"""The clock of another host, as seen from this one: by how much it is ahead, and how sure that is.

Each echo says that the other clock showed some instant between two instants of this one. The offset
lies within half of the round trip, so the shortest of many round trips tells it best (D. L. Mills,
"Internet time synchronization", 1991, the minimum filter). All clocks are monotonic, which nobody
sets; they start at the boot of each host, and run at slightly different speeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

ECHOES = 200

MAX_DRIFT = 100e-6
"""By how much the speeds of two quartz clocks differ at most, as a share; most by less than 20e-6.
"""

MIN_SPAN_S = 10.0
"""Offsets that were measured within a shorter time say nothing of the clocks' speeds."""


class Echo(NamedTuple):
    """Instants in nanoseconds: ``sent`` and ``back`` on this clock, ``there`` on the other one."""

    sent: int
    there: int
    back: int


class Offset(NamedTuple):
    """The other clock minus this one, in nanoseconds, at the instant ``at_ns`` of this clock.

    ``error_ns``: half of the round trip, the largest error that the offset can have.
    """

    at_ns: int
    offset_ns: int
    error_ns: int


def offset_of(echoes: Sequence[Echo]) -> Offset:
    """The offset by the echo with the shortest round trip. Raises ValueError without any echo."""
    best = min(echoes, key=lambda echo: echo.back - echo.sent)
    middle = (best.sent + best.back) // 2
    return Offset(middle, best.there - middle, max(1, (best.back - best.sent + 1) // 2))


@dataclass
class Clock:
    """All offsets that were measured of another host's clock, and what follows from them."""

    known: list[Offset] = field(default_factory=list)

    def there(self, at_ns: int) -> int:
        """What the other clock shows when this one shows ``at_ns``.

        By the offset whose error is the smallest by then, if the clocks' speeds differ by
        ``MAX_DRIFT``: one that was measured beside working ranks may be worse than an older one.
        """

        def error_by_then(known: Offset) -> float:
            return known.error_ns + MAX_DRIFT * abs(at_ns - known.at_ns)

        best = min(reversed(self.known), key=error_by_then)
        drifted = (self.drift or 0.0) * (at_ns - best.at_ns)
        return at_ns + best.offset_ns + round(drifted)

    @property
    def drift(self) -> float | None:
        """By how much the other clock is faster, as a share; None: the time was too short to tell.

        Also None if the offsets' errors allow for no drift at all.
        """
        first, last = self.known[0], self.known[-1]
        span = last.at_ns - first.at_ns
        if span < MIN_SPAN_S * 1e9:
            return None
        at = np.array([each.at_ns - first.at_ns for each in self.known], dtype=np.float64)
        offsets = np.array(
            [each.offset_ns - first.offset_ns for each in self.known], dtype=np.float64
        )
        weights = 1.0 / np.array([each.error_ns for each in self.known], dtype=np.float64)
        slope = float(np.polyfit(at, offsets, 1, w=weights)[0]) if len(at) > 1 else 0.0
        return slope if abs(slope) * span > first.error_ns + last.error_ns else None

    @property
    def error_ns(self) -> int:
        """The largest error of any of the offsets."""
        return max(each.error_ns for each in self.known)

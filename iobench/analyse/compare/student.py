"""Student's t distribution for any whole number of degrees of freedom, without scipy.

Source: M. Abramowitz and I. A. Stegun, "Handbook of Mathematical Functions", 1964, 26.7.3 and
26.7.4: the probability as a finite series, which is exact.
"""

from __future__ import annotations

import math
from functools import lru_cache

MAX_DEGREES = 500
"""Above it the normal distribution is used, with the approximation 26.7.8."""


def two_sided_p(t: float, degrees: int) -> float:
    """The probability of a value beyond -``t`` or ``t``. ``degrees``: at least 1."""
    if math.isinf(t):
        return 0.0
    if degrees > MAX_DEGREES:
        # the normal value that is about as probable
        normal = t * (1 - 1 / (4 * degrees)) / math.sqrt(1 + t * t / (2 * degrees))
        return math.erfc(abs(normal) / math.sqrt(2))
    angle = math.atan(abs(t) / math.sqrt(degrees))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total, factor = 0.0, 1 + odd
    for _ in range(degrees // 2):
        total += term
        term *= square * factor / (factor + 1)
        factor += 2
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1 - within))


@lru_cache(maxsize=1024)
def quantile(degrees: int, level: float = 0.05) -> float:
    """The t beyond which, on both sides together, the probability is ``level``."""
    low, high = 0.0, 1.0
    while two_sided_p(high, degrees) > level:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if two_sided_p(middle, degrees) > level else (low, middle)
    return high

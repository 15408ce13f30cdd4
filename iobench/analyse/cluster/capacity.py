"""How much many hosts get together: the universal scalability law, and what limits it.

N. J. Gunther, "Guerrilla Capacity Planning" (2007): N hosts get
X(N) = N x / (1 + a (N - 1) + b N (N - 1)), where x is the rate of one host, a the contention for
what they share, and b the cost of keeping them coherent. It is linear in 1 / x, a / x and b / x, so
the fit is least squares of relative errors, with a and b of 0 or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

MIN_COUNTS = 3
"""Different numbers of hosts without which there is no fit of all three parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    """``one``: the rate of one host. ``contention`` and ``coherence``: a and b, 0 or more."""

    one: float
    contention: float
    coherence: float

    def rate(self, hosts: float) -> float:
        """What so many hosts get together; past the peak it stays at the peak.

        Hosts that would make all of them slower need not be used.
        """
        number = min(hosts, max(1.0, self.peak))
        loss = self.contention * (number - 1) + self.coherence * number * (number - 1)
        return number * self.one / (1 + loss)

    @property
    def peak(self) -> float:
        """The number of hosts beyond which all of them together get less."""
        if self.coherence <= 0:
            return math.inf
        return math.sqrt(max(0.0, 1 - self.contention) / self.coherence)


def fit_scaling(hosts: Sequence[float], rates: Sequence[float]) -> Scaling:
    """The law that is nearest to the measured ``rates`` of ``hosts``.

    With two different numbers of hosts there is no coherence in it, and with one no contention.

    Raises ValueError unless there are as many rates as hosts, at least one, and all above 0.
    """
    number, rate = np.asarray(hosts, dtype=np.float64), np.asarray(rates, dtype=np.float64)
    if not len(number) or number.shape != rate.shape or not (number > 0).all() & (rate > 0).all():
        raise ValueError("a rate above 0 is needed for each number of hosts")
    # Of 1 / x, a / x and b / x, each row relative to what was measured.
    columns = np.stack([np.ones(len(number)), number - 1, number * (number - 1)], axis=1)
    rows = columns * (rate / number)[:, None]
    counts = len(np.unique(number))
    best, least = np.array([1.0 / np.max(rate / number), 0.0, 0.0]), math.inf
    for used in _choices(min(counts, MIN_COUNTS)):
        some = np.linalg.lstsq(rows[:, used], np.ones(len(number)), rcond=None)[0]
        found = np.zeros(3)
        found[list(used)] = some
        off = float(np.square(rows @ found - 1).sum())
        if found[0] > 0 and (found >= 0).all() and off < least - 1e-15:
            best, least = found, off
    one = 1 / float(best[0])
    return Scaling(one=one, contention=float(best[1]) * one, coherence=float(best[2]) * one)


def _choices(parameters: int) -> list[tuple[int, ...]]:
    """Which parameters are not 0, the fewest first: the others are at their bound."""
    rest = range(1, parameters)
    return [(0, *some) for many in range(parameters) for some in combinations(rest, many)]

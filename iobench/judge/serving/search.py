"""The search for the largest rate that holds a limit: it decides which rate is tried next."""

from __future__ import annotations

import math

from ...record.serving import FoundRate

STEP = 2.0
"""Rates are doubled until one fails."""

CLOSE = 1.1
"""The search ends where the rate that fails is at most so many times the one that holds."""

WINDOWS = 3
"""Windows of each of the two rates at the end; the most of them decide."""


class RateSearch:
    """Rates from ``least`` to ``most`` requests/s: doubled, then bisected, then tried again.

    One window may be disturbed, so the rates at the edge are tried several times in turns. Where
    most of their windows disagree with the first one, the search goes on.
    """

    def __init__(self, *, least: float, most: float, first: float = 32.0) -> None:
        self.least, self.most, self.bound = least, most, ""
        self._first = min(max(first, least), most)
        self._tries: dict[float, list[bool]] = {}

    def tried(self, rate: float, *, held: bool) -> None:
        """Hear what became of a window."""
        self._tries.setdefault(rate, []).append(held)

    def next_rate(self) -> float | None:
        """The rate of the next window; None: the search has ended."""
        low, high = self._edge()
        if low is None and high is None:
            return self._first
        if high is None:
            assert low is not None
            if low < self.most:
                return min(self.most, STEP * low)
        elif low is None:
            if high > self.least:
                return max(self.least, high / STEP)
            self.bound = f"even {high:g} requests/s do not hold the limit"
            return None
        elif high > CLOSE * low:
            return math.sqrt(low * high)
        edge = [rate for rate in (low, high) if rate is not None]
        few = min(edge, key=lambda rate: len(self._tries[rate]))
        return few if len(self._tries[few]) < WINDOWS else None

    def _holds(self, rate: float) -> bool:
        tries = self._tries[rate]
        return 2 * sum(tries) > len(tries)

    def _edge(self) -> tuple[float | None, float | None]:
        """The largest rate that holds below every one that fails, and the smallest that fails."""
        high = min((rate for rate in self._tries if not self._holds(rate)), default=None)
        low = max(
            (rate for rate in self._tries if self._holds(rate) and (high is None or rate < high)),
            default=None,
        )
        return low, high

    def found(self) -> FoundRate:
        """What is known so far."""
        low, high = self._edge()
        bound = self.bound if high is None or low is None else ""
        if high is None and low is not None and not bound:
            bound = f"no rate above {low:g} requests/s was tried"
        return FoundRate(low=low, high=high, bound=bound)

"""The time of a command: when it ends, what its parts have taken, and whether the next one fits."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from ..base.errors import UsageError
from ..base.units import format_duration

END_S = 1.3
"""What is kept for the end of the process: the verdict is found, and the files are written."""

LATE_S, LATE = 5.0, 0.1
"""A budget is kept if it is exceeded by no more than these seconds, or by this share of it."""

USUAL_S = 300.0
"""The most that a run takes of whose time nothing is asked. Longer is worth a warning."""

MIN_WINDOW_S = 2.0
"""Requests arrive for no shorter time in a window that is made shorter to fit."""

AROUND_S, AROUND = 1.5, 0.25
"""What a window of requests takes besides, and its share of the time for which they arrive: its
data is prepared before it, and requests that wait are answered after it."""

Given = Literal["repetitions", "steps", "calibration", "ablations", "duration"]


@dataclass(kw_only=True)
class Budget:
    """The time of a whole command, to which all is fitted that is not ``given``.

    ``seconds`` as the user gave them, from ``began_s`` on by ``time.monotonic()``. None: there is
    no limit, and everything fits. ``end_s`` is kept for the end. ``strict``: a command for which
    they are too short is refused. ``usual``: nobody asked for this limit, so what a run does
    without one is shortened to it, and never extended to fill it. ``limits``: seconds that all
    trials of a part may take together, for the parts that have such a limit of their own.
    """

    seconds: float | None = None
    began_s: float = field(default_factory=lambda: time.monotonic())
    end_s: float = END_S
    given: frozenset[Given] = frozenset()
    strict: bool = True
    usual: bool = False
    limits: dict[str, float] = field(default_factory=dict)
    _taken: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of_run(
        cls, seconds: float | None, *, given: frozenset[Given], whole: bool, began_s: float
    ) -> Budget:
        """The budget of a run: the usual one, unless ``seconds`` or parts of it are given.

        ``whole``: what the run was asked for is not to be shortened.
        """
        usual = seconds is None and not given and not whole
        return cls(
            seconds=USUAL_S if usual else seconds,
            began_s=began_s,
            given=given,
            strict=not usual,
            usual=usual,
        )

    @property
    def limited(self) -> bool:
        return self.seconds is not None

    def fitted(self, name: Given) -> bool:
        """Whether this is fitted to the budget: there is one, and the user did not give it."""
        return self.limited and name not in self.given

    @property
    def used_s(self) -> float:
        return time.monotonic() - self.began_s

    @property
    def left_s(self) -> float:
        """Seconds that are left for measuring; infinite without a limit."""
        if self.seconds is None:
            return math.inf
        return max(0.0, self.seconds - self.end_s - self.used_s)

    def keeping(self, share: float) -> Budget:
        """The same, without this share of what is left, which is for what comes later."""
        return replace(self, end_s=self.end_s + share * self.left_s) if self.limited else self

    @property
    def slack_s(self) -> float:
        """By how much what decides the answer may end late, by an estimate that is no promise."""
        return 0.8 * max(LATE_S, LATE * (self.seconds or 0.0))

    # What the parts have taken

    def took(self, part: str, seconds: float) -> None:
        """One trial of a part has taken so long."""
        self._taken.setdefault(part, []).append(seconds)

    @contextmanager
    def trial(self, part: str) -> Iterator[None]:
        """Count the time of the body as one trial of a part, also if it fails."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.took(part, time.monotonic() - began)

    def trials(self, part: str) -> int:
        return len(self._taken.get(part, ()))

    def spent_s(self, part: str) -> float:
        """Seconds of all trials of a part together."""
        return sum(self._taken.get(part, ()))

    def mean_s(self, part: str) -> float | None:
        """Seconds of a trial of a part; None before the first one."""
        return self.spent_s(part) / self.trials(part) if self.trials(part) else None

    def last_s(self, part: str) -> float:
        return self._taken[part][-1] if self.trials(part) else 0.0

    def longest_s(self, part: str) -> float:
        return max(self._taken.get(part, ()), default=0.0)

    # Whether the next one fits

    def fits(self, seconds: float, part: str = "", *, keeping_s: float = 0.0) -> bool:
        """Whether what takes so long ends in time, within the limit of its part if that has one.

        ``keeping_s``: what has to fit after it.
        """
        limit_s = self.limits.get(part, math.inf)
        return self.left_s >= seconds + keeping_s and limit_s - self.spent_s(part) >= seconds

    def window_s(
        self,
        usual_s: float,
        windows: int,
        *,
        least: int,
        fewer: int = 0,
        useful_s: float = 0.0,
        besides_s: float | None = None,
    ) -> float:
        """Seconds for which requests arrive in each of so many windows, so that all of them fit.

        At most ``usual_s``, otherwise in tenths of a second, and ``MIN_WINDOW_S`` at least: fewer
        windows fit then. So do ``fewer`` of them, rather than windows shorter than ``useful_s``.
        ``besides_s``: what a window was seen to take besides. Raises UsageError if not even
        ``least`` of them do.
        """

        def fitting_s(number: int) -> float:
            each_s = self.left_s / number
            usual_s = (each_s - AROUND_S) / (1 + AROUND)
            return math.floor(10 * (usual_s if besides_s is None else each_s - besides_s)) / 10

        if not self.fitted("duration"):
            return usual_s
        shortest = min(usual_s, MIN_WINDOW_S)
        least_s = least * (shortest * (1 + AROUND) + AROUND_S)
        if not self.fits(least_s):
            raise self.too_short(least_s)
        useful_s = min(useful_s, fitting_s(fewer or windows))
        return min(usual_s, max(shortest, fitting_s(windows), useful_s))

    def ends_in_time(self, seconds: float) -> bool:
        """Whether what decides the answer ends with the budget, or as little late as one may be."""
        return (self.seconds or math.inf) - self.end_s - self.used_s + self.slack_s >= seconds

    # What to tell the user

    def too_short(self, least_s: float, *, what: str = "this run", other: str = "") -> UsageError:
        """The error of a command that takes at least ``least_s`` from now on.

        ``other``: what the user can do besides giving more time.
        """
        least = math.ceil(self.used_s + self.end_s + least_s)
        return UsageError(
            f"--budget {self.seconds:g}s is too short for {what}, which takes at least "
            f"{format_duration(least)}",
            remedy=f"give at least {least}s{other}",
        )

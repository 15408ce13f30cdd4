"""The time that a user gives to a whole run."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal

from ..errors import UsageError
from ..units import format_duration

END_S = 1.3
"""What is kept for the end of the process: the verdict is found, and the files are written."""

Given = Literal["repetitions", "steps", "calibration", "knock_outs"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The time of a whole run, to which all is fitted that is not ``given``.

    ``seconds`` as the user gave them; ``ends_s``: when they are over, by ``time.monotonic()``.
    ``strict``: a run for which they are too short is refused.
    """

    seconds: float
    ends_s: float
    given: frozenset[Given] = frozenset()
    strict: bool = True

    @property
    def left_s(self) -> float:
        """Seconds that are left for measuring."""
        return max(0.0, self.ends_s - END_S - time.monotonic())

    def too_short(self, missing_s: float) -> UsageError:
        """The error of a run that takes at least ``missing_s`` longer."""
        least = math.ceil(self.seconds + missing_s)
        fewer = ", or leave --repeat, --calibration, --knockouts and steps to it"
        return UsageError(
            f"--budget {format_duration(self.seconds)} is too short for this run, which takes at "
            f"least {least}s",
            remedy=f"give at least {least}s{fewer if self.given else ''}",
        )

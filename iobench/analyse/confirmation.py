"""Whether fresh runs bear advice out."""

from __future__ import annotations

from dataclasses import dataclass

from .compare import Comparison
from .recommend import Recommendation
from .statistics import NOISE


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """``comparison``: today's settings as the baseline, the advised ones as the candidate, on runs that the advice did not see.

    ``notes``: what the budgets did not allow, turns included.
    """

    advice: Recommendation
    comparison: Comparison
    directory: str
    notes: tuple[str, ...] = ()

    @property
    def confirmed(self) -> bool:
        """Better; or no difference, where the advice was smaller settings that do as well and promised no gain above noise."""
        difference, gain = self.comparison.difference, self.advice.gain
        if gain is not None and gain <= 1 + NOISE:
            return difference in ("better", "same")
        return difference == "better"

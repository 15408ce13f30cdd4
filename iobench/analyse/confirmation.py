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
        """Better; or no slower, where the advice was smaller settings that do as well and promised no gain above noise.

        No slower is no difference and a rate within noise of today's: a spread that hides a loss confirms nothing.
        """
        if self.better:
            return True
        gain, row = (
            self.advice.gain,
            next(row for row in self.comparison.rows if row.metric == "samples_per_s"),
        )
        ratio = row.judgement.ratio
        return (
            gain is not None
            and gain <= 1 + NOISE
            and self.comparison.difference == "same"
            and (ratio or 0.0) >= 1 - NOISE
        )

    @property
    def better(self) -> bool:
        return self.comparison.difference == "better"

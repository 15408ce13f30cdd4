"""Whether fresh runs bear advice out."""

from __future__ import annotations

from dataclasses import dataclass

from .compare import Comparison
from .recommend import Recommendation
from .statistics import NOISE


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """``comparison``: today's settings as the baseline, the advised ones as the candidate, on runs that the advice did not see."""

    advice: Recommendation
    comparison: Comparison
    directory: str

    @property
    def confirmed(self) -> bool:
        """Better; or no slower, where the sweep's own interval did not promise more than noise.

        No slower is no difference and a rate within noise of today's: a spread that hides a loss confirms nothing.
        """
        if self.better:
            return True
        low, row = self.advice.gain_low, next(row for row in self.comparison.rows if row.metric == "samples_per_s")
        ratio = row.judgement.ratio
        return low is not None and low <= 1 + NOISE and self.comparison.difference == "same" and (ratio or 0.0) >= 1 - NOISE

    @property
    def better(self) -> bool:
        return self.comparison.difference == "better"

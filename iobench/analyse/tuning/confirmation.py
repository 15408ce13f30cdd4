"""Check whether fresh runs confirm advice."""

from __future__ import annotations

from dataclasses import dataclass

from ..compare.runs import Comparison
from ..compare.statistics import NOISE
from .recommend import Recommendation

MIN_SHARE_OF_GAIN = 0.5
"""Share of a promised gain that fresh runs must show: a promise of 2 x needs at least 1.5 x."""


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """The result of fresh runs, which the advice did not use.

    In ``comparison``, today's settings are the baseline and the advised ones the candidate.
    ``notes`` says what the budgets did not allow, including repetitions that were left out.
    """

    advice: Recommendation
    comparison: Comparison
    directory: str
    notes: tuple[str, ...] = ()

    @property
    def confirmed(self) -> bool:
        """Whether fresh runs show what was promised.

        A promised gain is confirmed if the rate improves by at least half of that gain. Advice
        without a gain above noise (smaller settings that are as good) is also confirmed if the
        comparison finds no difference, and the rate is within noise of today's.
        """
        gain = self.advice.gain
        ratio = self._ratio
        if self.better:
            promised = max(0.0, (gain or 1.0) - 1)
            return ratio - 1 >= MIN_SHARE_OF_GAIN * promised
        return (
            gain is not None
            and gain <= 1 + NOISE
            and self.comparison.difference == "same"
            and ratio >= 1 - NOISE
        )

    @property
    def better(self) -> bool:
        """Whether the advised settings are faster than today's, by any amount."""
        return self.comparison.difference == "better"

    @property
    def _ratio(self) -> float:
        rows = self.comparison.rows
        return next(row for row in rows if row.metric == "samples_per_s").judgement.ratio or 0.0

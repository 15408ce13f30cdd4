"""Check whether fresh runs confirm advice."""

from __future__ import annotations

from dataclasses import dataclass

from ...schema.verdict import Answer, Estimate
from ..compare.comparison import Comparison
from ..verdict.promise import answer
from .recommend import Recommendation


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
    def promised(self) -> Estimate | None:
        """The gain that the sweep promised; None if it had no runs with today's settings."""
        advice = self.advice
        if advice.gain is None:
            return None
        return Estimate(value=advice.gain, low=advice.gain_low, high=advice.gain_high)

    @property
    def found(self) -> Estimate | None:
        """The gain of the fresh runs, with its interval."""
        row = next(row for row in self.comparison.rows if row.metric == "samples_per_s")
        return row.claim.ratio

    @property
    def answer(self) -> Answer:
        """Whether fresh runs show what was promised, by the same rule as for the advice of a run.

        Without a promise, nothing tells whether it was kept.
        """
        return "not told" if self.promised is None else answer(self.promised, self.found)

    @property
    def confirmed(self) -> bool:
        return self.answer == "kept"

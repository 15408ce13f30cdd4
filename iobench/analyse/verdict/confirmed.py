"""Advice that was tried: the gain that was found, and whether it is the one that was promised."""

from __future__ import annotations

from collections.abc import Sequence

from ...schema.verdict import Advice, Answer, Confirmation, Estimate, Verdict
from ..compare.statistics import NOISE, ratio_estimate


def gain_of(advice: Advice) -> Estimate | None:
    """The gain of a change: what was found if it was tried, else what is predicted.

    None if it is neither.
    """
    if advice.found is not None or advice.predicted_gain is None:
        return advice.found
    return Estimate(value=max(0.0, advice.predicted_gain), low=advice.low, high=advice.high)


def answer(promised: Estimate, found: Estimate | None) -> Answer:
    """Whether a promise was kept.

    ``not kept``: the whole interval of the found gain is below that of the promised one, which is
    taken to be wider by the noise threshold; or the found gain is none, although one above noise
    was promised. ``not told``: the interval has room for the promised gain and for none. Finding
    more than was promised keeps the promise.
    """
    if found is None or found.low is None or found.high is None:
        return "not told"
    least = promised.value if promised.low is None else promised.low
    if found.high < least * (1 - NOISE):
        return "not kept"
    if promised.value <= 1 + NOISE:  # smaller settings, which need to be no slower
        return "kept" if found.low >= 1 - NOISE else "not told"
    if found.low > 1:
        return "kept"
    return "not kept" if found.high <= 1 + NOISE else "not told"


def told_again(confirmation: Confirmation) -> Confirmation:
    """The confirmation with what follows from its turns computed again."""
    found = ratio_estimate(
        [(turn.samples_per_s, turn.base_samples_per_s) for turn in confirmation.turns]
    )
    return confirmation.model_copy(
        update={"found": found, "answer": answer(confirmation.promised, found)}
    )


def with_found(verdict: Verdict, confirmations: Sequence[Confirmation]) -> Verdict:
    """The verdict, in whose advice what was found stands beside what was predicted.

    The largest gain is the first again, by what was found where that is known.
    """
    known = {tuple(each.settings): each.found for each in confirmations if each.found is not None}
    if not known:
        return verdict
    advice = [
        each.model_copy(update={"found": known.get(tuple(each.settings))})
        for each in verdict.advice
    ]
    return verdict.model_copy(update={"advice": sorted(advice, key=_order)})


def _order(advice: Advice) -> float:
    gain = gain_of(advice)
    return -gain.value if gain is not None else 0.0

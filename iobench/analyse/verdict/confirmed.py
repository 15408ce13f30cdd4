"""Advice that was tried: the gain that was found, and whether it is the one that was promised."""

from __future__ import annotations

from collections.abc import Sequence

from ...schema.verdict import Advice, Answer, Confirmation, Estimate, Verdict
from ..compare.statistics import NOISE, ratio_estimate
from .model import WORTH

ENOUGH_OF_BOUGHT = 1 / 3
"""Free advice comes first if it brings this part of what the best bought one does (logarithms)."""


def in_order(several: Sequence[Advice], enough: float | None) -> list[Advice]:
    """Advice in the order of what to do: what is free, and brings enough to matter, comes first.

    ``enough``: the gain with which the accelerators are as busy as is required; None: not known.
    A free change matters if it brings that, or ENOUGH_OF_BOUGHT of the best one that has to be
    bought or made anew. Otherwise the larger gain is first. What brought nothing when it was tried
    comes last.
    """
    bought = max(
        (gain.value for each in several if not _free(each) and (gain := gain_of(each))), default=1.0
    )
    least = max(1.0, bought) ** ENOUGH_OF_BOUGHT

    def key(advice: Advice) -> tuple[bool, bool, float]:
        gain = gain_of(advice)
        useless = advice.found is not None and advice.found.value < WORTH
        matters = gain is None or gain.value >= min(least, enough or least)
        first = _free(advice) and matters
        return useless, not first, -gain.value if gain is not None else 0.0

    return sorted(several, key=key)


def _free(advice: Advice) -> bool:
    return bool(advice.settings) or advice.id == "pack"


def gain_of(advice: Advice) -> Estimate | None:
    """The gain of a change: what was found if it was tried, else what is predicted.

    None if it is neither.
    """
    if advice.found is not None or advice.predicted_gain is None:
        return advice.found
    return Estimate(value=max(0.0, advice.predicted_gain), low=advice.low, high=advice.high)


def answer(promised: Estimate, found: Estimate | None, *, bound: bool = False) -> Answer:
    """Whether a promise was kept.

    ``not kept``: the whole interval of the found gain is below that of the promised one, which is
    taken to be wider by the noise threshold; or the found gain is none, although one above noise
    was promised. ``not told``: the interval has room for the promised gain and for none. Finding
    more than was promised keeps the promise. ``bound``: at most so much was promised, so that any
    gain keeps it.
    """
    if found is None or found.low is None or found.high is None:
        return "not told"
    least = promised.value if promised.low is None else promised.low
    if not bound and found.high < least * (1 - NOISE):
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
        update={
            "found": found,
            "answer": answer(confirmation.promised, found, bound=confirmation.at_most),
        }
    )


def with_bounds(
    confirmations: Sequence[Confirmation], advice: Sequence[Advice]
) -> list[Confirmation]:
    """The confirmations, in which a promise is an upper bound where the run's advice says so."""
    bounds = {tuple(each.settings) for each in advice if each.at_most and each.settings}
    return [
        told_again(each.model_copy(update={"at_most": True}))
        if not each.promised_by and tuple(each.settings) in bounds
        else told_again(each)
        for each in confirmations
    ]


def with_found(
    verdict: Verdict, confirmations: Sequence[Confirmation], enough: float | None
) -> Verdict:
    """The verdict, in whose advice what was found stands beside what was predicted.

    They are ``in_order`` again, by what was found where that is known.
    """
    known = {tuple(each.settings): each.found for each in confirmations if each.found is not None}
    if not known:
        return verdict
    advice = [
        each.model_copy(update={"found": known.get(tuple(each.settings))})
        for each in verdict.advice
    ]
    return verdict.model_copy(update={"advice": in_order(advice, enough)})

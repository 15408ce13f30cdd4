"""What a change may promise, and whether it kept the promise when it was tried.

A gain is a factor on the measured rate, from the model in which a ceiling moves. Stages overlap, so
the lowest ceiling is the rate; workers that fetch and prepare in turns reach the serial rate. A
part of the measured rate is not explained by the model. It stays if the same stage limits the run
after the change. If another stage does, its ceiling is compared with the measured rate itself.

Nothing is promised more than leaving its stage out brought, or than the accelerators take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..base.units import format_factor
from ..record.verdict import Advice, AdviceId, Answer, Confirmation, Estimate, Verdict
from .evidence import Evidence
from .statistics import NOISE, ratio_estimate

CEILINGS = ("raw", "fetch", "prep", "loader", "cpu")

WORTH = 1 + NOISE
"""Advice needs at least this predicted gain, since smaller ones are within the noise."""

SERIAL = "serial"


def reached(evidence: Evidence) -> Evidence:
    """Raise each ceiling that the run exceeded to the rate of the run.

    Such a ceiling was measured on a busier host; unchanged, it would promise too large a gain.
    """
    return replace(
        evidence,
        **{
            name: max(rate, evidence.between_saves)
            for name in CEILINGS
            if (rate := getattr(evidence, name)) and evidence.between_saves is not None
        },
    )


def limit_of(
    evidence: Evidence, moved: Mapping[str, float | None], *, in_turns: bool | None = None
) -> tuple[str, float] | None:
    """(stage, samples/s) of the lowest ceiling, if those in ``moved`` had these rates.

    A rate of None removes a ceiling. The result is None if no ceiling is left. ``in_turns``:
    whether workers fetch and prepare in turns; None: as in the run.
    """
    ceilings = {
        "storage": evidence.storage,
        "prep": evidence.prep,
        "loader": evidence.loader,
        "cpu": evidence.cpu,
        "accelerator": evidence.accelerator,
        **moved,
    }
    known = {stage: rate for stage, rate in ceilings.items() if rate}
    if evidence.in_turns if in_turns is None else in_turns:
        turns = [known.pop(stage) for stage in ("storage", "prep", "loader") if stage in known]
        if turns:
            known[SERIAL] = 1 / sum(1 / rate for rate in turns)
    if not known:
        return None
    lowest = min(known, key=lambda stage: known[stage])
    return lowest, known[lowest]


def model_gain(evidence: Evidence, **moved: float | None) -> float | None:
    """Factor on the measured samples/s if the ceilings in ``moved`` had these rates.

    A rate of None removes a ceiling. The result is None if the model can't tell.
    """
    now, then = limit_of(evidence, {}), limit_of(evidence, moved)
    if now is None or then is None:
        return None
    if now[0] == then[0] or not evidence.measured:
        return evidence.with_saves(then[1]) / evidence.with_saves(now[1])
    return evidence.with_saves(then[1]) / evidence.measured


class Effect(NamedTuple):
    """What a change brings (None: nothing tells), and the facts for its words."""

    gain: Estimate | None
    facts: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class AdvisedChange:
    """A change that can be advised: a check, the ceiling that moves, and words.

    ``check`` returns None where the change is no advice; else what it brings, and the facts that
    its words name in braces. ``moves``: the stage whose ceiling moves, so that no more is promised
    than leaving out that stage brought; empty: the stage on which the advice is given.
    """

    id: AdviceId
    check: Callable[[Evidence], Effect | None]
    change: str
    basis: str
    settings: tuple[str, ...]
    moves: str


def advised(
    name: AdviceId, *settings: str, change: str, basis: str, moves: str = ""
) -> Callable[[Callable[[Evidence], Effect | None]], AdvisedChange]:
    """Make a change of its check. ``settings``: those that apply it, where settings alone can."""

    def made(check: Callable[[Evidence], Effect | None]) -> AdvisedChange:
        return AdvisedChange(name, check, change, basis, settings, moves)

    return made


def moving(evidence: Evidence, ceilings: Mapping[str, float | None], **facts: object) -> Effect:
    """What it brings, by the model, if these ceilings had other rates; None removes a ceiling."""
    return bringing(model_gain(evidence, **ceilings), **facts)


def bringing(gain: Estimate | float | None, **facts: object) -> Effect:
    """What it brings, where a test or a curve tells."""
    return Effect(Estimate(value=gain) if isinstance(gain, float | int) else gain, facts)


def advice_of(one: AdvisedChange, evidence: Evidence) -> Advice | None:
    """The advice to make a change, with what it promises; None where it is no advice."""
    effect = one.check(evidence)
    if effect is None:
        return None
    gain, facts = effect
    return Advice(
        id=one.id,
        change=one.change.format_map(facts),
        basis=one.basis.format_map(facts),
        settings=[setting.format_map(facts) for setting in one.settings],
        predicted_gain=None if gain is None else gain.value,
        low=None if gain is None else gain.low,
        high=None if gain is None else gain.high,
    )


def at_most(found: Estimate, bound: Estimate | None) -> Estimate:
    """A promise that is not larger than what a test found, with the interval of that test."""
    if bound is None:
        return found
    if found.value >= bound.value:
        if bound.low is None or found.low is None:
            return bound
        return bound.model_copy(update={"low": min(bound.low, found.low)})
    if found.low is None or found.high is None:
        # A part of what the test found. How exact the model is was not measured.
        return found
    if bound.low is None or bound.high is None:
        return found.model_copy(update={"high": max(found.value, min(found.high, bound.value))})
    high = max(found.value, min(found.high, bound.high))
    return found.model_copy(update={"low": min(found.low, found.value), "high": high})


WIDEST = 20.0
"""An interval that goes this factor below or above its value excludes nothing."""


def demanded(evidence: Evidence, share: float = 1.0) -> float | None:
    """The factor at which the accelerators have this share of what they demand; None: not known.

    The saves of the run stay as they are.
    """
    if not evidence.accelerator or not evidence.measured:
        return None
    return evidence.with_saves(share * evidence.accelerator) / evidence.measured


def possible(evidence: Evidence, stage: str) -> float | None:
    """The largest factor of a change of a stage: the accelerators have all that they demand.

    Without the fill, the run has the rate of its lowest ceiling at most, or that which it had after
    it: batches that are read during the fill count in what its events tell, as if they had been
    read after it.
    """
    most, limit = demanded(evidence), limit_of(evidence, {})
    if stage == "checkpoint" and evidence.accelerator and evidence.measured:
        return evidence.accelerator / evidence.measured
    if stage == "cpu" and most is not None and evidence.measured and evidence.alone:
        return max(most, evidence.alone / evidence.measured)  # the steps are faster, too
    if stage != "fill" or limit is None or not evidence.measured:
        return most
    reached = max(evidence.with_saves(limit[1]), evidence.after_start) / evidence.measured
    return reached if most is None else min(most, reached)


def required_gain(evidence: Evidence) -> float | None:
    """The factor at which the accelerators are as busy as is required; None if it is not known."""
    return demanded(evidence, evidence.required)


def limited(advice: Advice, tested: Estimate | None, most: float | None) -> Advice:
    """The advice with a gain that is possible, and whether that gain is the most that is possible.

    ``tested``: what leaving out its stage brought. ``most``: what the accelerators demand.
    """
    gain, bound = advice.predicted_gain, advice.at_most
    if gain is None and tested is None:
        return advice
    if gain is None:
        found = tested or Estimate(value=0.0)
    else:
        found = at_most(Estimate(value=gain, low=advice.low, high=advice.high), tested)
    bound = bound or (tested is not None and found.value >= tested.value)
    if most is not None and _reaches(found, most):
        bound = bound or found.value >= most
        found = _below(found, most)
    return advice.model_copy(
        update={
            "predicted_gain": found.value,
            "low": found.low,
            "high": found.high,
            "at_most": bound,
        }
    )


def _reaches(gain: Estimate, most: float) -> bool:
    return max(gain.value, gain.high or 0.0) >= most


def _below(gain: Estimate, most: float) -> Estimate:
    """The gain, cut at ``most``; without an interval where all of it is cut."""
    if gain.low is None or gain.high is None or gain.low >= most:
        return Estimate(value=min(gain.value, most), n=gain.n)
    return gain.model_copy(update={"value": min(gain.value, most), "high": min(gain.high, most)})


def tells_nothing(gain: Estimate) -> bool:
    """Whether the interval of a gain has room for none, so that nothing is promised."""
    return gain.low is not None and gain.high is not None and gain.low <= 1


def promised(advice: Advice) -> Estimate | None:
    """The gain that an advice promises; None without one."""
    if advice.predicted_gain is None:
        return None
    return Estimate(value=max(0.0, advice.predicted_gain), low=advice.low, high=advice.high)


def shown(gain: Estimate, *, bound: bool = False) -> str:
    """``1.37 x [1.30, 1.44]``, ``at most 6.34 x``; a wide one reads ``0.75 x (inconclusive)``."""
    upper = "at most " if bound else ""
    if gain.low is None or gain.high is None:
        return upper + format_factor(gain.value)
    text = f"{upper}{gain.value:.2f} x"
    if gain.low <= gain.value / WIDEST or gain.high >= WIDEST * gain.value:
        return f"{text} (inconclusive)"
    return f"{text} [{gain.low:.2f}, {gain.high:.2f}]"


def told(advice: Advice) -> str:
    """What an advice brought when it was tried, or else what it promises; empty for neither."""
    gain = gain_of(advice)
    return "" if gain is None else shown(gain, bound=advice.at_most and advice.found is None)


def in_headline(advice: Advice) -> str:
    """The gain for a headline: nothing where its interval has room for none.

    Of an upper bound, how well it is known is left to the list.
    """
    gain = gain_of(advice)
    if gain is None or tells_nothing(gain):
        return ""
    if advice.at_most and advice.found is None:
        return f"at most {format_factor(gain.value)}"
    return shown(gain)


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
    """Whether nothing has to be bought: settings, other shards, or a cache less."""
    return bool(advice.settings) or advice.id in ("pack", "local-cache")


def gain_of(advice: Advice) -> Estimate | None:
    """The gain of a change: what was found if it was tried, else what is predicted.

    None if it is neither.
    """
    return promised(advice) if advice.found is None else advice.found


def answer(promised: Estimate, found: Estimate | None, *, bound: bool = False) -> Answer:
    """Whether a promise was kept.

    ``not kept``: the whole interval of the found gain is below that of the promised one, which is
    taken to be wider by the noise threshold; or the found gain is none, although one above noise
    was promised. ``inconclusive``: the interval has room for the promised gain and for none.
    Finding more than was promised keeps the promise. ``bound``: at most so much was promised, so
    that any gain keeps it.
    """
    if found is None or found.low is None or found.high is None:
        return "inconclusive"
    least = promised.value if promised.low is None else promised.low
    if not bound and found.high < least * (1 - NOISE):
        return "not kept"
    if promised.value <= 1 + NOISE:  # smaller settings, which need to be no slower
        return "kept" if found.low >= 1 - NOISE else "inconclusive"
    if found.low > 1:
        return "kept"
    return "not kept" if found.high <= 1 + NOISE else "inconclusive"


def told_again(confirmation: Confirmation) -> Confirmation:
    """The confirmation with what follows from its rounds computed again."""
    found = ratio_estimate(
        [(one.samples_per_s, one.base_samples_per_s) for one in confirmation.rounds]
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

"""What an advice may promise: no more than a test found, and no more than the accelerators take."""

from __future__ import annotations

from ...schema.verdict import Advice, Estimate
from .evidence import Evidence
from .model import at_most

WIDEST = 20.0
"""An interval that goes this factor below or above its value excludes nothing."""


def demanded(evidence: Evidence) -> float | None:
    """The factor at which the accelerators have all that they demand; None if it is not known."""
    if not evidence.accelerator or not evidence.measured:
        return None
    return evidence.accelerator / evidence.measured


def required_gain(evidence: Evidence) -> float | None:
    """The factor at which the accelerators are as busy as is required; None if it is not known."""
    most = demanded(evidence)
    return None if most is None else evidence.required * most


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
    text = f"{'at most ' if bound else ''}{gain.value:.2f} x"
    if gain.low is None or gain.high is None:
        return text
    if gain.low <= gain.value / WIDEST or gain.high >= WIDEST * gain.value:
        return f"{text} (inconclusive)"
    return f"{text} [{gain.low:.2f}, {gain.high:.2f}]"


def told(advice: Advice) -> str:
    """What an advice brought when it was tried, or else what it promises; empty for neither."""
    if advice.found is not None:
        return shown(advice.found)
    gain = promised(advice)
    return "" if gain is None else shown(gain, bound=advice.at_most)


def in_headline(advice: Advice) -> str:
    """The gain for a headline: nothing where its interval has room for none.

    Of an upper bound, how well it is known is left to the list.
    """
    gain = advice.found if advice.found is not None else promised(advice)
    if gain is None or tells_nothing(gain):
        return ""
    if advice.at_most and advice.found is None:
        return f"at most {gain.value:.2f} x"
    return shown(gain)

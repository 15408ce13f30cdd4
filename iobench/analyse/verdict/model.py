"""What a run would reach if a ceiling moved, as a factor on the measured rate.

Stages overlap, so the lowest ceiling is the rate; workers that fetch and prepare in turns reach the
serial rate. A part of the measured rate is not explained by the model. It stays if the same stage
limits the run after the change. If another stage does, its ceiling is compared with the measured
rate itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...schema.verdict import Estimate
from ..compare.statistics import NOISE
from .evidence import Evidence

CEILINGS = ("raw", "fetch", "prep", "harness", "cpu")

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
            name: max(rate, evidence.measured)
            for name in CEILINGS
            if (rate := getattr(evidence, name)) and evidence.measured is not None
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
        "harness": evidence.harness,
        "cpu": evidence.cpu,
        "accelerator": evidence.accelerator,
        **moved,
    }
    known = {stage: rate for stage, rate in ceilings.items() if rate}
    if evidence.in_turns if in_turns is None else in_turns:
        turns = [known.pop(stage) for stage in ("storage", "prep", "harness") if stage in known]
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
        return then[1] / now[1]
    return then[1] / evidence.measured


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

"""What binds, by the stages that were left out in turns with the repetitions.

``gain(stage)`` is the rate without the stage over the rate with it. The stage with the largest
gain binds, if its interval excludes 1 by the noise threshold. The accelerator is what the others
are to feed, so it binds only where none of them does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...schema.verdict import Estimate, Stage
from ..compare.statistics import NOISE
from . import by_ceilings as inferred
from .evidence import Decision, Evidence

FEW_ROUNDS = 0.15
"""A gain of one or two rounds has to be larger than this.

One round has no interval. That of two rounds (Student's t, one degree of freedom) is far too wide
to decide anything, although both may agree.
"""

MIN_ROUNDS = 3
"""Rounds from which on the interval of a gain decides."""

MIN_SHARED = 0.2
"""Fetch and prep share the CPU if each of them needs at least this part of its time."""

_IN_ONE = "your loader reads and prepares in one, and its workers' times tell which took longer"

MOSTLY = 0.5
"""A part of a time that is larger than the rest of it."""

_NOT_LEFT_OUT = (
    "the page cache brings less than what is lost beside it, and that time is your loader's own"
)

_MADE = "the batches that were waited for were mostly made already, and on their way"

_HAND_OVER = "your loader takes most of the time even over samples that are kept in memory"

UNEVEN = 0.5
"""Leaving out the barrier has to bring this part of what another stage brings (in logarithms)."""


def interval(gain: Estimate) -> tuple[float, float]:
    """The interval of a gain; one of a few rounds is taken as known to within ``FEW_ROUNDS``."""
    low, high = gain.value / (1 + FEW_ROUNDS), gain.value * (1 + FEW_ROUNDS)
    if gain.low is None or gain.high is None:
        return low, high
    if gain.n < MIN_ROUNDS:
        return max(low, gain.low), min(high, gain.high)
    return gain.low, gain.high


def convinces(gain: Estimate | None, unsteady: float = 0.0) -> bool:
    """Whether a gain excludes 1 by the noise threshold.

    ``unsteady``: by how much the fastest repetition was faster than the slowest one. A gain of one
    or two rounds that is not larger may be no more than that.
    """
    if gain is None:
        return False
    if gain.low is not None and gain.low > 1 + NOISE:
        return True
    few = gain.low is None or gain.n < MIN_ROUNDS
    return few and gain.value > 1 + max(FEW_ROUNDS, unsteady)


def by_test(evidence: Evidence) -> Decision:
    """What binds, from the gains of the stages that were left out."""
    found: dict[Stage, Estimate] = {
        stage: gain
        for stage, gain in stage_gains(evidence.gains).items()
        if stage != "accelerator" and convinces(gain, evidence.unsteady)
    }
    if evidence.cached and found.pop("storage", None) is not None and not found:
        return Decision(
            binds="undecided",
            basis="tested",
            reason="reading limits the run, but a cache served the reads",
        )
    if not found:
        return _by_elimination(evidence)
    top = max(found, key=lambda stage: found[stage].value)
    if _leaves_most(evidence, found[top]) and (why := _handing_over(evidence)):
        return Decision(binds="harness", reason=why)
    if top == "storage" and _is_prep_unseen(evidence, found[top]):
        return Decision(binds="prep", reason=_NOT_LEFT_OUT)
    if _is_uneven(found, top):
        return Decision(binds="sync", basis="tested")
    if top in ("storage", "prep") and _shares_cpu(evidence, found):
        return Decision(
            binds="cpu",
            basis="tested",
            reason="the stages share the cores, so each of them slows the others",
        )
    if top == "prep" and _reads_in_prep(evidence):
        # Reading and preparing were left out together: the workers' times tell them apart.
        waited = inferred.waited_for(evidence)
        other: tuple[Stage, ...] = () if waited is not None else ("storage",)
        return Decision(binds=waited or "prep", also=other, basis="tested", reason=_IN_ONE)
    low, _ = interval(found[top])
    also = [stage for stage in found if stage != top and interval(found[stage])[1] >= low]
    also.sort(key=lambda stage: -found[stage].value)
    return Decision(binds=top, also=tuple(also), basis="tested")


def _handing_over(evidence: Evidence) -> str:
    """Why most of the time of a user's loader goes into collating and handing over, or empty.

    Neither can be left out. So they bind where all that was left out brings less than what is lost.
    """
    own = evidence.own
    if not evidence.subject.users:
        return ""
    if own is not None and own.wait_s and (own.hand_over_s or 0.0) > MOSTLY * own.wait_s:
        return _MADE
    harness = evidence.harness
    return _HAND_OVER if harness and (evidence.measured or 0.0) > MOSTLY * harness else ""


def _is_prep_unseen(evidence: Evidence, storage: Estimate) -> bool:
    """Whether a loader of the user's own could not run without its dataset, and this is its cost.

    Only the storage was left out then, which may bring something without being what binds.
    """
    alone = evidence.subject.users and "prep" not in evidence.gains
    return alone and _leaves_most(evidence, storage)


def _leaves_most(evidence: Evidence, gain: Estimate) -> bool:
    """Whether a gain is smaller than what is lost beside it."""
    busy = evidence.utilization
    return bool(busy) and interval(gain)[1] < math.sqrt(1 / (busy or 1.0))


def _reads_in_prep(evidence: Evidence) -> bool:
    """Whether a loader of the user's own ran without its dataset, but never with a cached one."""
    return evidence.subject.users and "storage" not in evidence.gains and not evidence.cached


def stage_gains(gains: Mapping[str, Estimate]) -> dict[Stage, Estimate]:
    """The gains of the stages that can be left out."""
    stages: tuple[Stage, ...] = ("storage", "prep", "accelerator", "sync", "saves", "fill")
    return {stage: gains[stage] for stage in stages if stage in gains}


def _is_uneven(found: Mapping[Stage, Estimate], top: Stage) -> bool:
    """Whether ranks wait for each other, and not all of them for the slow stage.

    Without its stage a slow rank is as fast as the others, so that stage gains, too.
    """
    if "sync" not in found or top not in ("storage", "prep"):
        return False
    return math.log(found["sync"].value) >= UNEVEN * math.log(found[top].value)


def _shares_cpu(evidence: Evidence, found: Mapping[Stage, Estimate]) -> bool:
    """Whether the CPU is spent, and not by preparation alone."""
    if not evidence.cpu_spent:
        return False
    costs = evidence.cpu_costs
    if costs:
        return costs["storage"] >= MIN_SHARED * sum(costs.values())
    return "storage" in found


def _by_elimination(evidence: Evidence) -> Decision:
    """No stage but the accelerator gains anything that could be told from noise."""
    busy, accelerator = evidence.utilization, evidence.gains.get("accelerator")
    if busy is None:
        if convinces(accelerator, evidence.unsteady):
            return Decision(binds="accelerator", basis="tested")
        if evidence.drained:
            # Batches from the fill hide what a stage costs, so that no gain refutes none.
            if _keeps_up(evidence):
                return Decision(binds="accelerator")
            return inferred.by_inference(evidence)
        return _left(evidence)
    if busy >= inferred.FED:
        return Decision(binds="accelerator", basis="tested")
    # All waiting together would bring 1 / busy: the accelerator has to bring more.
    if accelerator is not None and convinces(accelerator, evidence.unsteady):
        low, _ = interval(accelerator)
        if low * busy > 1:
            return Decision(binds="accelerator", basis="tested")
    return _left(evidence)


def _keeps_up(evidence: Evidence) -> bool:
    """Whether each ceiling is enough for the utilization that is required."""
    stages = (None if evidence.cached else evidence.storage, evidence.prep, evidence.harness)
    known = [rate for rate in (*stages, evidence.cpu) if rate is not None]
    demand = evidence.accelerator
    return bool(known) and demand is not None and min(known) >= evidence.required * demand


def _left(evidence: Evidence) -> Decision:
    """What the ceilings say of the stages that were not left out."""
    if evidence.cpu_spent:
        return Decision(binds="cpu", reason="no stage alone gains, and all cores are busy")
    if why := _handing_over(evidence):
        return Decision(binds="harness", reason=why)
    if evidence.harness and (evidence.measured or 0) >= inferred.MIN_EXPLAINED * evidence.harness:
        return Decision(binds="harness", reason="no other stage gains anything if it is left out")
    guess = inferred.by_inference(evidence, refuted=_refuted(evidence))
    known = guess.binds == "undecided" or guess.binds in evidence.gains
    if known or guess.binds == "accelerator":
        tried = ", ".join(stage for stage in evidence.gains if stage != "accelerator")
        return Decision(
            binds="undecided",
            basis="tested",
            reason=f"leaving out a stage ({tried or 'the accelerator'}) brought no gain that "
            "could be told from noise",
        )
    return guess


def _refuted(evidence: Evidence) -> tuple[Stage, ...]:
    """The storage, if leaving it out of a loader of the user's own brought nothing.

    Time in which such a loader waits is counted as reading, but it may be any other wait.
    """
    tested = evidence.subject.users and "storage" in evidence.gains
    return ("storage",) if tested else ()

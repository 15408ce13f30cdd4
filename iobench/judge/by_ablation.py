"""The bottleneck, by the stages that were left out in turns with the repetitions.

``gain(stage)`` is the rate without the stage over the rate with it. The stage with the largest
gain is the bottleneck, if its interval excludes 1 by the noise threshold. The accelerator is what
the others are to feed, so it is the bottleneck only where none of them does. Each check is a row of
``bottleneck``, and returns None where it has no answer.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..record.verdict import Estimate, Stage
from .by_ceilings import FED, MIN_EXPLAINED, waited_for
from .evidence import Case, Decision, Evidence
from .figures.ablations import interval, is_told

MIN_SHARED = 0.2
"""Fetch and prep share the CPU if each of them needs at least this part of its time."""

MOSTLY = 0.5
"""A part of a time that is larger than the rest of it."""

UNEVEN = 0.5
"""Leaving out the barrier has to bring this part of what another stage brings (in logarithms)."""


def only_reading_gains(case: Case) -> Decision | None:
    if case.gaining:
        return None
    return Decision(
        bottleneck="undecided",
        basis="tested",
        reason="reading limits the run, but a cache served the reads",
    )


def hand_over_costs_more(case: Case) -> Decision | None:
    why = _handing_over(case.evidence)
    if not why or not _leaves_most(case.evidence, case.gaining[case.top]):
        return None
    return Decision(bottleneck="loader", reason=why)


def prep_was_not_left_out(case: Case) -> Decision | None:
    """A loader of the user's own could not run without its dataset, and this is its cost.

    Only the storage was left out then, which may bring something without being the bottleneck.
    """
    alone = case.evidence.subject.users and "prep" not in case.evidence.gains
    if case.top != "storage" or not alone:
        return None
    if not _leaves_most(case.evidence, case.gaining["storage"]):
        return None
    return Decision(
        bottleneck="prep",
        reason="the page cache brings less than what is lost beside it, and that time is your "
        "loader's own",
    )


def ranks_are_uneven(case: Case) -> Decision | None:
    """Ranks wait for each other, and not all of them for the slow stage.

    Without its stage a slow rank is as fast as the others, so that stage gains, too.
    """
    found = case.gaining
    if "sync" not in found or case.top not in ("storage", "prep"):
        return None
    if math.log(found["sync"].value) < UNEVEN * math.log(found[case.top].value):
        return None
    return Decision(bottleneck="sync", basis="tested")


def cores_are_shared(case: Case) -> Decision | None:
    """The CPU is spent, and not by preparation alone."""
    costs = case.evidence.cpu_costs
    if case.top not in ("storage", "prep") or not case.evidence.cpu_spent:
        return None
    needed = "storage" in case.gaining
    if costs:
        needed = costs["storage"] >= MIN_SHARED * sum(costs.values())
    if not needed:
        return None
    return Decision(
        bottleneck="cpu",
        basis="tested",
        reason="the stages share the cores, so each of them slows the others",
    )


def read_and_prepared_in_one(case: Case) -> Decision | None:
    """A loader of the user's own ran without its dataset, but never with a cached one.

    Reading and preparing were left out together: the workers' times tell them apart.
    """
    evidence = case.evidence
    in_one = evidence.subject.users and "storage" not in evidence.gains
    if case.top != "prep" or not in_one or evidence.cached:
        return None
    waited = waited_for(evidence)
    other: tuple[Stage, ...] = () if waited is not None else ("storage",)
    return Decision(
        bottleneck=waited or "prep",
        also=other,
        basis="tested",
        reason="your loader reads and prepares in one, and its workers' times tell which took "
        "longer",
    )


def largest_gain(case: Case) -> Decision:
    found, top = case.gaining, case.top
    low, _ = interval(found[top])
    also = [stage for stage in found if stage != top and interval(found[stage])[1] >= low]
    also.sort(key=lambda stage: -found[stage].value)
    return Decision(bottleneck=top, also=tuple(also), basis="tested")


def accelerator_gains_alone(case: Case) -> Decision | None:
    evidence = case.evidence
    if evidence.utilization is not None or not _accelerator_gains(evidence):
        return None
    return Decision(bottleneck="accelerator", basis="tested")


def ceilings_keep_up(case: Case) -> Decision | None:
    """Each ceiling is enough for the utilization that is required."""
    evidence, demand = case.evidence, case.evidence.accelerator
    stages = (None if evidence.cached else evidence.storage, evidence.prep, evidence.loader)
    known = [rate for rate in (*stages, evidence.cpu) if rate is not None]
    if not evidence.drained or not known or demand is None:
        return None
    if min(known) < evidence.required * demand:
        return None
    return Decision(bottleneck="accelerator")


def accelerators_are_busy(case: Case) -> Decision | None:
    busy = case.evidence.utilization
    if busy is None or busy < FED:
        return None
    return Decision(bottleneck="accelerator", basis="tested")


def accelerator_gains_most(case: Case) -> Decision | None:
    """All waiting together would bring 1 / busy: the accelerator has to bring more."""
    evidence, busy = case.evidence, case.evidence.utilization
    if busy is None or not _accelerator_gains(evidence):
        return None
    low, _ = interval(evidence.gains["accelerator"])
    return Decision(bottleneck="accelerator", basis="tested") if low * busy > 1 else None


def cores_are_busy(case: Case) -> Decision | None:
    if not case.evidence.cpu_spent:
        return None
    return Decision(bottleneck="cpu", reason="no stage alone gains, and all cores are busy")


def hand_over_costs_most(case: Case) -> Decision | None:
    why = _handing_over(case.evidence)
    return Decision(bottleneck="loader", reason=why) if why else None


def loader_explains_it(case: Case) -> Decision | None:
    loader, measured = case.evidence.loader, case.evidence.measured or 0.0
    if not loader or measured < MIN_EXPLAINED * loader:
        return None
    return Decision(bottleneck="loader", reason="no other stage gains anything if it is left out")


def fill_gains(case: Case) -> Decision | None:
    """It was computed from the events, without a run in which anything was left out."""
    evidence = case.evidence
    if not is_told(evidence.gains.get("fill"), evidence.unsteady):
        return None
    return Decision(bottleneck="fill", basis="inferred")


def refuting(case: Case) -> Case:
    """The case without the storage, if leaving it out of a user's loader brought nothing.

    Time in which such a loader waits is counted as reading, but it may be any other wait.
    """
    tested = case.evidence.subject.users and "storage" in case.evidence.gains
    return replace(case, refuted=("storage",)) if tested else case


def _accelerator_gains(evidence: Evidence) -> bool:
    return is_told(evidence.gains.get("accelerator"), evidence.unsteady)


def _leaves_most(evidence: Evidence, gain: Estimate) -> bool:
    """Whether a gain is smaller than what is lost beside it."""
    busy = evidence.utilization
    return bool(busy) and interval(gain)[1] < math.sqrt(1 / (busy or 1.0))


def _handing_over(evidence: Evidence) -> str:
    """Why most of the time of a user's loader goes into collating and handing over, or empty.

    Neither can be left out. So they bind where all that was left out brings less than what is lost.
    """
    own, loader = evidence.own, evidence.loader
    if not evidence.subject.users:
        return ""
    if own is not None and own.wait_s and (own.hand_over_s or 0.0) > MOSTLY * own.wait_s:
        return "the batches that were waited for were mostly made already, and on their way"
    if loader and (evidence.measured or 0.0) > MOSTLY * loader:
        return "your loader takes most of the time even over samples that are kept in memory"
    return ""

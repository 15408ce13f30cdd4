"""The bottleneck, inferred from the ceilings and from where the time went.

Model: a data-loading roofline. The stages (fetch, prep, loader, accelerator) overlap, so the
predicted rate is the lowest ceiling. Fetch and prep run in the same workers, which also hand the
batches over. If the workers do not read ahead, the true rate lies between the prediction and the
serial rate 1 / (1/fetch + 1/prep + 1/loader); the rule ``verdict.gap`` reports when the measured
rate differs by more than 20 %. Each check is a row of ``bottleneck``, and returns None where it has
no answer.
"""

from __future__ import annotations

from ..record.verdict import Stage
from .evidence import IN_TURNS, Case, Decision, Evidence
from .statistics import NOISE
from .watched import CLEAR, why_filling

MIN_EXPLAINED = 0.8
"""A ceiling explains the measured rate if the rate is at least this share of the ceiling."""

FED = 0.95
"""Accelerators that are as busy as this wait for nothing that is significant."""

DOMINANT = 0.8
"""A stage that needs this part of the CPU time is named itself, and not the CPU."""


def lost_beside_loading(case: Case) -> Decision | None:
    """The part beside loading that took the most time, if it took more than all waiting."""
    shares = case.evidence.shares
    stages: dict[Stage, float | None] = {
        "checkpoint": shares.saves,
        "fill": shares.fill,
        "sync": shares.sync,
    }
    known = {stage: share for stage, share in stages.items() if share}
    if not known:
        return None
    top = max(known, key=lambda stage: known[stage])
    waiting = shares.wait or 0.0
    gain = 1 / max(1 - known[top], 1e-9)
    if gain <= 1 + NOISE or known[top] <= waiting:
        return None
    return Decision(bottleneck=top, reason=why_filling(case.evidence) if top == "fill" else "")


def accelerators_are_busy(case: Case) -> Decision | None:
    busy = case.evidence.utilization
    return Decision(bottleneck="accelerator") if busy is not None and busy >= FED else None


def nothing_is_known(case: Case) -> Decision | None:
    if case.ceilings:
        return None
    why = case.evidence.cached or "no ceiling of storage, prep or loader was measured"
    return Decision(bottleneck="undecided", reason=why)


def cores_are_shared(case: Case) -> Decision | None:
    """The CPU ceiling explains the rate, and no stage takes nearly all of the CPU time.

    How busy the CPU was decides where that is recorded.
    """
    evidence, parts = case.evidence, case.evidence.cpu_costs.values()
    if not evidence.cpu or not evidence.measured or not parts:
        return None
    busy = evidence.cpu_busy is None or evidence.cpu_spent
    explains = MIN_EXPLAINED * evidence.cpu <= evidence.measured
    lowest = evidence.cpu * (1 + NOISE) < case.ceilings[case.lowest]
    if not (busy and explains and lowest and max(parts) < DOMINANT * sum(parts)):
        return None
    return Decision(
        bottleneck="cpu", reason="the stages share the cores, and all of them are taken"
    )


def utilization_is_missing(case: Case) -> Decision | None:
    if case.evidence.utilization is not None or not case.missing:
        return None
    return Decision(
        bottleneck="undecided",
        reason=f"{' and '.join(case.missing)} was not measured, nor was the accelerators' "
        "utilization",
    )


def demand_is_lowest(case: Case) -> Decision | None:
    return Decision(bottleneck="accelerator") if case.evidence.utilization is None else None


def workers_took_longest(case: Case) -> Decision | None:
    """A ceiling may have been measured while the storage was faster."""
    waited: Stage | None = waited_for(case.evidence)
    if waited in case.refuted:
        waited = "prep"  # the worker waited while it made a batch, for something else
    if waited is None:
        return None
    return Decision(
        bottleneck=waited,
        reason=f"the workers took longest for {'reads' if waited == 'storage' else waited}, "
        "although its ceiling alone is above the demand",
    )


def in_turns(case: Case) -> Decision | None:
    """Fetch and prep are too slow if a worker does them one after the other."""
    serial, measured = case.evidence.serial, case.evidence.measured or 0.0
    if serial is None or case.lowest not in ("storage", "prep"):
        return None
    if serial >= FED * (case.evidence.accelerator or 0.0) or measured < (1 - IN_TURNS) * serial:
        return None
    return Decision(
        bottleneck=case.lowest,
        reason="each worker fetches samples and prepares them one after the other",
    )


def nothing_explains_the_waits(case: Case) -> Decision:
    also = f", and {' and '.join(case.missing)} was not measured" if case.missing else ""
    above = "the measured ceilings are" if case.missing else "every ceiling alone is"
    return Decision(
        bottleneck="undecided",
        reason=f"the accelerators wait although {above} above their demand{also}",
    )


def rivals(case: Case) -> Decision | None:
    """Ceilings that are the same as the lowest one within noise, or whose intervals overlap."""
    near = [stage for stage in case.ceilings if stage != case.lowest and _is_near(case, stage)]
    if not near:
        return None
    return Decision(
        bottleneck="undecided",
        reason=f"the ceilings of {case.lowest} and {' and '.join(near)} can't be told apart",
    )


def _is_near(case: Case, stage: Stage) -> bool:
    if case.ceilings[stage] <= case.ceilings[case.lowest] * (1 + NOISE):
        return True
    one, other = (case.evidence.intervals.get(each) for each in (case.lowest, stage))
    return one is not None and other is not None and one[1] >= other[0]


def a_ceiling_is_missing(case: Case) -> Decision | None:
    share = (case.evidence.measured or 0.0) / case.ceilings[case.lowest]
    if not case.missing or share >= MIN_EXPLAINED:
        return None
    return Decision(
        bottleneck="undecided",
        reason=f"{' and '.join(case.missing)} was not measured, and {case.lowest} alone does not "
        f"explain why the run reached only {share:.0%} of its ceiling",
    )


def reading_takes_all_cores(case: Case) -> Decision | None:
    evidence = case.evidence
    if case.lowest != "storage" or not evidence.client_bound:
        return None
    return Decision(
        bottleneck="cpu",
        reason=f"reading alone takes {evidence.fetch_cores:.1f} of {evidence.cores:g} cores",
    )


def lowest_ceiling(case: Case) -> Decision:
    return Decision(bottleneck=case.lowest)


def waited_for(evidence: Evidence) -> Stage | None:
    """The stage for which batches were waited, if one of fetch and prep clearly took longer.

    A loader of the user's own is divided by its CPU time: on a busy host, its waits for a core
    would look like preparing.
    """
    fetch, prep = evidence.shares.fetch, evidence.shares.prep
    share = evidence.own.cpu_share if evidence.own is not None else None
    if share is not None and fetch is not None and prep is not None:
        fetch, prep = (fetch + prep) * (1 - share), (fetch + prep) * share
    if fetch is None or prep is None or fetch + prep <= NOISE:
        return None
    if fetch >= CLEAR * prep and not evidence.cached:
        return "storage"
    return "prep" if prep >= CLEAR * fetch else None

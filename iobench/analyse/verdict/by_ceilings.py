"""What binds, inferred from the ceilings and from where the time went.

Model: a data-loading roofline. The stages (fetch, prep, harness, accelerator) overlap, so the
predicted rate is the lowest ceiling. Fetch and prep run in the same workers, which also hand the
batches over. If the workers do not read ahead, the true rate lies between the prediction and the
serial rate 1 / (1/fetch + 1/prep + 1/harness); the rule ``verdict.gap`` reports when the measured
rate differs by more than 20 %.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...schema.verdict import Stage
from ..compare.statistics import NOISE
from .evidence import IN_TURNS, Decision, Evidence
from .watched import CLEAR, by_waits, why_filling

MIN_EXPLAINED = 0.8
"""A ceiling explains the measured rate if the rate is at least this share of the ceiling."""

FED = 0.95
"""Accelerators that are as busy as this wait for nothing that could be told from noise."""

DOMINANT = 0.8
"""A stage that needs this part of the CPU time is named itself, and not the CPU."""


def by_inference(evidence: Evidence, *, refuted: Collection[Stage] = ()) -> Decision:
    """What binds without any stage left out. ``refuted``: stages that are known not to bind."""
    lost = _lost_beside_loading(evidence)
    if lost is not None:
        return Decision(binds=lost, reason=why_filling(evidence) if lost == "fill" else "")
    if evidence.utilization is not None and evidence.utilization >= FED:
        return Decision(binds="accelerator")
    if evidence.watched is not None:
        return by_waits(evidence, evidence.watched)
    stages: dict[Stage, float | None] = {
        "storage": None if evidence.cached else evidence.storage,
        "prep": evidence.prep,
        "harness": evidence.harness,
    }
    stages = {stage: rate for stage, rate in stages.items() if stage not in refuted}
    known = {stage: rate for stage, rate in stages.items() if rate is not None}
    # For a library, the hand-over of batches is part of its prep.
    missing = [
        stage
        for stage, rate in stages.items()
        if rate is None
        and not (stage == "harness" and evidence.subject.reads_itself)
        and not (stage == "storage" and evidence.cached)
    ]
    if not known:
        why = evidence.cached or "no ceiling of storage, prep or harness was measured"
        return Decision(binds="undecided", reason=why)
    if _shares_cpu(evidence, known):
        return Decision(binds="cpu", reason="the stages share the cores, and all of them are taken")
    lowest = min(known, key=lambda stage: known[stage])
    if evidence.accelerator is not None and evidence.accelerator * (1 + NOISE) < known[lowest]:
        return _every_stage_above_demand(evidence, lowest, missing, refuted)
    rivals = [
        stage for stage in known if stage != lowest and _is_near(evidence, known, lowest, stage)
    ]
    if rivals:
        return Decision(
            binds="undecided",
            reason=f"the ceilings of {lowest} and {' and '.join(rivals)} can't be told apart",
        )
    measured = evidence.measured or 0.0
    if missing and measured < MIN_EXPLAINED * known[lowest]:
        return Decision(
            binds="undecided",
            reason=f"{' and '.join(missing)} was not measured, and {lowest} alone does not explain "
            f"why the run reached only {measured / known[lowest]:.0%} of its ceiling",
        )
    if lowest == "storage" and evidence.client_bound:
        return Decision(
            binds="cpu",
            reason=f"reading alone takes {evidence.fetch_cores:.1f} of {evidence.cores:g} cores",
        )
    return Decision(binds=lowest)


def _is_near(evidence: Evidence, known: Mapping[Stage, float], lowest: Stage, stage: Stage) -> bool:
    """Whether two ceilings are the same within noise, or their intervals overlap."""
    if known[stage] <= known[lowest] * (1 + NOISE):
        return True
    one, other = evidence.intervals.get(lowest), evidence.intervals.get(stage)
    return one is not None and other is not None and one[1] >= other[0]


def _lost_beside_loading(evidence: Evidence) -> Stage | None:
    """The part beside loading that took the most time, if it took more than all waiting."""
    shares = evidence.shares
    stages: dict[Stage, float | None] = {
        "saves": shares.saves,
        "fill": shares.fill,
        "sync": shares.sync,
    }
    known = {stage: share for stage, share in stages.items() if share}
    if not known:
        return None
    top = max(known, key=lambda stage: known[stage])
    waiting = shares.wait
    if waiting is None:  # an older record: all time that is neither busy nor saves
        waiting = (1 - (evidence.utilization or 0.0)) * (1 - (shares.saves or 0.0))
    gain = 1 / max(1 - known[top], 1e-9)
    return top if gain > 1 + NOISE and known[top] > waiting else None


def _shares_cpu(evidence: Evidence, known: Mapping[Stage, float]) -> bool:
    """Whether the CPU ceiling explains the rate, and no stage takes nearly all of the CPU time.

    How busy the CPU was decides where that is recorded.
    """
    if not evidence.cpu or not evidence.measured or not evidence.cpu_costs:
        return False
    busy = evidence.cpu_busy is None or evidence.cpu_spent
    parts = evidence.cpu_costs.values()
    return (
        busy
        and MIN_EXPLAINED * evidence.cpu <= evidence.measured
        and evidence.cpu * (1 + NOISE) < min(known.values())
        and max(parts) < DOMINANT * sum(parts)
    )


def _every_stage_above_demand(
    evidence: Evidence, lowest: Stage, missing: list[Stage], refuted: Collection[Stage]
) -> Decision:
    """For waiting accelerators whose demand is below every ceiling.

    Fetch and prep may still be too slow if a worker does them one after the other, and a ceiling
    may have been measured while the storage was faster.
    """
    assert evidence.accelerator is not None
    if evidence.utilization is None:
        if missing:
            return Decision(
                binds="undecided",
                reason=f"{' and '.join(missing)} was not measured, nor was the accelerators' "
                "utilization",
            )
        return Decision(binds="accelerator")
    waited: Stage | None = waited_for(evidence)
    if waited in refuted:
        waited = "prep"  # the worker waited while it made a batch, for something else
    if waited is not None:
        return Decision(
            binds=waited,
            reason=f"the workers took longest for {'reads' if waited == 'storage' else waited}, "
            "although its ceiling alone is above the demand",
        )
    if (
        evidence.serial is not None
        and evidence.serial < FED * evidence.accelerator
        and (evidence.measured or 0) >= (1 - IN_TURNS) * evidence.serial
        and lowest in ("storage", "prep")
    ):
        return Decision(
            binds=lowest, reason="each worker fetches samples and prepares them one after the other"
        )
    also = f", and {' and '.join(missing)} was not measured" if missing else ""
    above = "the measured ceilings are" if missing else "every ceiling alone is"
    return Decision(
        binds="undecided",
        reason=f"the accelerators wait although {above} above their demand{also}",
    )


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

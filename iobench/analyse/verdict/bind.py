"""Find the stage that limits a run, by how much, and what that means for the accelerators.

Model: a data-loading roofline. The stages (fetch, prep, harness, accelerator) overlap, so the
predicted rate is the lowest ceiling. Fetch and prep run in the same workers, which also hand the
batches over. If the workers do not read ahead, the true rate lies between the prediction and the
serial rate 1 / (1/fetch + 1/prep + 1/harness); the rule ``verdict.gap`` reports when the measured
rate differs by more than 20 %.

Stalls are defined as in DS-Analyzer (Mohan et al., VLDB 2021). Let T1, T3 and T2 be the time per
sample of the accelerator alone, with everything but fetch, and of the real run. Then
``prep_stall = (T3 - T1) / T2`` and ``fetch_stall = (T2 - T3) / T2``.
"""

from __future__ import annotations

from typing import Literal

from ...schema.record import TrainingRecord
from ...schema.verdict import Verdict
from ...schema.workload import OWN_LOADER
from ..compare.statistics import NOISE
from .advice import advise
from .evidence import Evidence, accelerators_fed, gather, is_null_accelerator
from .metrics import NULL_ACCELERATOR
from .sentence import sentence

Binds = Literal["storage", "prep", "harness", "accelerator", "undecided"]

MIN_EXPLAINED = 0.8
"""A ceiling explains the measured rate if the rate is at least this share of the ceiling."""


def verdict(doc: TrainingRecord) -> Verdict:
    """The verdict on ``doc``, from its ceilings and metrics.

    A figure that cannot be computed is None, and ``not_measured`` gives the reason.
    """
    evidence = gather(doc)
    binds, reason = bind(evidence)
    missing: dict[str, str] = {}
    prep_stall, fetch_stall = _stalls(evidence, missing)
    demand, storage = evidence.accelerator, evidence.storage
    no_demand = (
        NULL_ACCELERATOR if is_null_accelerator(doc) else "the accelerators' demand is not known"
    )
    headroom = storage / demand if storage is not None and demand else None
    fed = accelerators_fed(storage, evidence.per_accelerator, evidence.required)
    if headroom is None:
        missing["headroom"] = missing["accelerators_fed"] = (
            "neither fetch nor raw storage was measured" if demand else no_demand
        )
    if evidence.utilization is None:
        reasons = [
            repetition.not_measured.get("accelerator_utilization_sustained", "")
            for repetition in doc.job.repetitions
        ]
        missing["starved"] = next(
            (text for text in reasons if text),
            "accelerator utilization is in no complete repetition",
        )
    if evidence.predicted is None:
        missing["predicted_samples_per_s"] = "no ceiling was measured"
    if evidence.measured is None:
        missing["measured_samples_per_s"] = "no repetition was completed"
    return Verdict(
        binds=binds,
        sentence=sentence(evidence, binds, reason, headroom, fed),
        starved=None if evidence.utilization is None else not evidence.fed,
        headroom=headroom,
        accelerators_fed=fed,
        predicted_samples_per_s=evidence.predicted,
        measured_samples_per_s=evidence.measured,
        fetch_stall=fetch_stall,
        prep_stall=prep_stall,
        advice=advise(evidence, binds),
        not_measured=missing,
    )


def bind(evidence: Evidence) -> tuple[Binds, str]:
    """The stage that limits the run, and the reason if it is not simply the lowest ceiling."""
    if evidence.fed:
        return "accelerator", ""
    # For a library, the hand-over of batches is part of its prep.
    stages: dict[Binds, float | None] = {
        "storage": evidence.storage,
        "prep": evidence.prep,
        "harness": evidence.harness,
    }
    known = {stage: rate for stage, rate in stages.items() if rate is not None}
    missing = [
        stage
        for stage, rate in stages.items()
        if rate is None and not (stage == "harness" and evidence.kind != OWN_LOADER)
    ]
    if evidence.measured is None:
        return "undecided", "no repetition was completed"
    if not known:
        return "undecided", "no ceiling of storage, prep or harness was measured"
    lowest = min(known, key=lambda stage: known[stage])
    if evidence.accelerator is not None and evidence.accelerator * (1 + NOISE) < known[lowest]:
        return _every_stage_above_demand(evidence, lowest, missing)
    rivals = [
        stage for stage in known if stage != lowest and known[stage] <= known[lowest] * (1 + NOISE)
    ]
    if rivals:
        return (
            "undecided",
            f"{lowest} and {' and '.join(rivals)} are within {NOISE:.0%} of each other",
        )
    if missing and evidence.measured < MIN_EXPLAINED * known[lowest]:
        share = evidence.measured / known[lowest]
        return (
            "undecided",
            (
                f"{' and '.join(missing)} was not measured, and {lowest} alone does not explain "
                f"why the run reached only {share:.0%} of its ceiling"
            ),
        )
    if lowest == "storage" and evidence.client_bound:
        return (
            "harness",
            f"reading alone takes {evidence.fetch_cores:.1f} of {evidence.cores:g} cores",
        )
    return lowest, ""


def _every_stage_above_demand(
    evidence: Evidence, lowest: Binds, missing: list[Binds]
) -> tuple[Binds, str]:
    """For waiting accelerators whose demand is below every ceiling.

    Fetch and prep may still be too slow if a worker does them one after the other.
    """
    assert evidence.accelerator is not None
    if evidence.utilization is None:
        if missing:
            return (
                "undecided",
                f"{' and '.join(missing)} was not measured, nor was the accelerators' utilization",
            )
        return "accelerator", ""
    if (
        evidence.serial is not None
        and evidence.serial < evidence.required * evidence.accelerator
        and lowest in ("storage", "prep")
    ):
        return (
            lowest,
            "each worker fetches samples and prepares them one after the other",
        )
    if missing:
        return (
            "undecided",
            (
                "the accelerators wait although the measured ceilings are above their demand, "
                f"and {' and '.join(missing)} was not measured"
            ),
        )
    return "undecided", "the accelerators wait although every ceiling alone is above their demand"


def _stalls(evidence: Evidence, missing: dict[str, str]) -> tuple[float | None, float | None]:
    """(prep stall, fetch stall) as shares of the time, 0 to 1.

    The prep stall includes the harness, which DS-Analyzer does not separate.
    """
    reason = ""
    if evidence.accelerator is None:
        reason = NULL_ACCELERATOR
    elif evidence.prep is None:
        reason = "the prep ceiling was not measured"
    elif evidence.measured is None:
        reason = "no repetition was completed"
    if reason or evidence.accelerator is None or evidence.prep is None or evidence.measured is None:
        missing["prep_stall"] = missing["fetch_stall"] = reason
        return None, None
    without_fetch = min(
        rate for rate in (evidence.accelerator, evidence.prep, evidence.harness) if rate is not None
    )
    prep = evidence.measured / without_fetch - evidence.measured / evidence.accelerator
    fetch = 1 - evidence.measured / without_fetch
    return min(1.0, max(0.0, prep)), min(1.0, max(0.0, fetch))

"""The verdict on a run: what binds, whether the accelerators starve, and what would help.

Two questions have two answers. Starved? compares the accelerators' utilization with what the
workload requires. What binds? is answered whether they starve or not (``decide``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...schema.record import TrainingRecord
from ...schema.verdict import Estimate, Fed, Verdict
from .advice import advise
from .confirmed import with_found
from .contention import contention
from .decide import decide, served_by_cache
from .decision import Decision
from .evidence import DRAINED, Evidence, gather, is_null_accelerator
from .fed import fed, with_potential
from .in_flight import run_reads_in_flight, run_requests_per_batch
from .limits import storage_bound
from .metrics import NULL_ACCELERATOR
from .promise import required_gain
from .ranktime import usual_slow_rank
from .sentence import explanation, sentence
from .stalls import stalls
from .stragglers import stragglers


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """The evidence of a record, what binds, and the rest of the verdict, which follows from it."""

    evidence: Evidence
    decision: Decision


def judged(doc: TrainingRecord) -> Judged:
    """What binds, from the evidence in ``doc``."""
    evidence = replace(
        gather(doc),
        cached=served_by_cache(doc),
        reads_in_flight=float(run_reads_in_flight(doc)),
        requests_per_batch=run_requests_per_batch(doc),
    )
    return Judged(evidence=evidence, decision=decide(evidence))


def verdict(doc: TrainingRecord, bounds: Mapping[str, Estimate] | None = None) -> Verdict:
    """The verdict on ``doc``, from its ceilings, metrics and knock-outs.

    ``bounds``: the most that changes of a stage bring, where no stage was left out of this run.
    A figure that cannot be computed is None, and ``not_measured`` gives the reason.
    """
    found = judged(doc)
    evidence, decision = found.evidence, found.decision
    missing: dict[str, str] = {}
    prep_stall, fetch_stall = stalls(evidence, missing)
    bound = storage_bound(evidence)
    if bound is not None and _blamed(decision):
        if evidence.lasting is not None:
            # The same reads in flight got more before the fall, so their number is not the limit,
            # and the curve is that of the time before it.
            bound = "operations or bandwidth"
        elif stragglers(evidence, bound) is not None:
            bound = "stragglers"
    can_feed = fed(
        doc,
        blamed=may_starve(decision),
        certain=does_starve(decision),
        cached=evidence.cached,
        held_up=bound == "stragglers",
    )
    advice = advise(replace(evidence, gains={**(bounds or {}), **evidence.gains}), decision, bound)
    gains = dict(evidence.gains)
    cores = next((each for each in advice if each.id == "cores"), None)
    if decision.binds == "cpu" and cores is not None and cores.predicted_gain is not None:
        gains["cpu"] = Estimate(value=cores.predicted_gain, low=cores.low, high=cores.high)
    slow = usual_slow_rank([each for each in doc.job.repetitions if each.complete])
    _missing(doc, evidence, can_feed, missing)
    answer = Verdict(
        binds=decision.binds,
        also=list(decision.also),
        basis=decision.basis,
        sentence="",
        starved=None if evidence.utilization is None else not evidence.fed,
        headroom=_headroom(doc, evidence, can_feed, missing),
        contention=contention(doc),
        accelerators_fed=can_feed.accelerators,
        fed=can_feed,
        storage_bound=bound,
        slowest_rank=slow.rank if slow is not None else None,
        gains=gains,
        predicted_samples_per_s=evidence.predicted,
        measured_samples_per_s=None if evidence.modelled else evidence.measured,
        fetch_stall=fetch_stall,
        prep_stall=prep_stall,
        too_short=str(decision.too_short) if decision.too_short else "",
        advice=advice,
        not_measured=missing,
    )
    answer = with_found(answer, doc.job.confirmations, required_gain(evidence))
    can_feed = with_potential(can_feed, evidence, answer.advice)
    answer = answer.model_copy(update={"fed": can_feed})
    return answer.model_copy(
        update={
            "sentence": sentence(evidence, decision, answer),
            "explanation": explanation(evidence, decision, answer),
        }
    )


def _missing(
    doc: TrainingRecord, evidence: Evidence, can_feed: Fed, missing: dict[str, str]
) -> None:
    """Add the reasons for the figures that are not there."""
    if can_feed.accelerators is None:
        missing["accelerators_fed"] = can_feed.not_measured
    if evidence.utilization is None:
        missing["starved"] = DRAINED if evidence.drained else _no_utilization(doc)
    if evidence.predicted is None:
        missing["predicted_samples_per_s"] = "no ceiling was measured"
    if evidence.measured is None:
        missing["measured_samples_per_s"] = "no repetition was completed"


def _headroom(
    doc: TrainingRecord, evidence: Evidence, can_feed: Fed, missing: dict[str, str]
) -> float | None:
    demand = evidence.accelerator
    storage = evidence.measured if can_feed.basis == "run" else evidence.storage
    if evidence.cached:
        missing["headroom"] = f"{evidence.cached}: what the storage delivers was not measured"
    elif storage is not None and demand:
        return storage / demand
    else:
        missing["headroom"] = (
            "neither fetch nor raw storage was measured" if demand else _no_demand(doc)
        )
    return None


def _no_demand(doc: TrainingRecord) -> str:
    if is_null_accelerator(doc):
        return NULL_ACCELERATOR
    return "the accelerators' demand is not known"


def _no_utilization(doc: TrainingRecord) -> str:
    reasons = [
        repetition.not_measured.get("accelerator_utilization_sustained", "")
        for repetition in doc.job.repetitions
    ]
    known = [text for text in reasons if text]
    return known[0] if known else "accelerator utilization is in no complete repetition"


def _blamed(decision: Decision) -> bool:
    return "storage" in (decision.binds, *decision.also)


def may_starve(decision: Decision) -> bool:
    """Whether it may be the storage that keeps the accelerators waiting.

    Ranks that wait for each other wait for the slowest read of all of them.
    """
    return decision.binds == "undecided" or does_starve(decision)


def does_starve(decision: Decision) -> bool:
    """Whether the storage itself is known to keep the accelerators waiting.

    A storage that costs something beside another stage that costs more is not what they wait for.
    """
    return bool({"storage", "sync"} & {decision.binds, *decision.also})

"""The verdict on a run: what binds, whether the accelerators starve, and what would help.

Two questions have two answers. Starved? compares the accelerators' utilization with what the
workload requires. What binds? is answered whether they starve or not (``decide``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...schema.record import TrainingRecord
from ...schema.verdict import Estimate, Fed, Verdict
from .advice import advise
from .confirmed import with_found
from .contention import contention
from .decide import decide, served_by_cache
from .decision import Decision
from .evidence import Evidence, gather, is_null_accelerator
from .fed import fed
from .in_flight import run_reads_in_flight, run_requests_per_batch
from .limits import storage_bound
from .metrics import NULL_ACCELERATOR
from .ranktime import usual_slow_rank
from .sentence import explanation, sentence
from .stalls import stalls
from .tested import convinces


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


def verdict(doc: TrainingRecord) -> Verdict:
    """The verdict on ``doc``, from its ceilings, metrics and knock-outs.

    A figure that cannot be computed is None, and ``not_measured`` gives the reason.
    """
    found = judged(doc)
    evidence, decision = found.evidence, found.decision
    missing: dict[str, str] = {}
    prep_stall, fetch_stall = stalls(evidence, missing)
    bound = storage_bound(evidence)
    can_feed = fed(
        doc,
        blamed=may_starve(evidence, decision),
        certain=does_starve(evidence, decision),
        cached=evidence.cached,
    )
    advice = advise(evidence, decision, bound)
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
        headroom=_headroom(doc, evidence, missing),
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
    answer = with_found(answer, doc.job.confirmations)
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
        missing["starved"] = _no_utilization(doc)
    if evidence.predicted is None:
        missing["predicted_samples_per_s"] = "no ceiling was measured"
    if evidence.measured is None:
        missing["measured_samples_per_s"] = "no repetition was completed"


def _headroom(doc: TrainingRecord, evidence: Evidence, missing: dict[str, str]) -> float | None:
    demand, storage = evidence.accelerator, evidence.storage
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


def may_starve(evidence: Evidence, decision: Decision) -> bool:
    """Whether it may be the storage that keeps the accelerators waiting.

    Ranks that wait for each other wait for the slowest read of all of them.
    """
    blamed = {"storage", "undecided", "sync"} & {decision.binds, *decision.also}
    return bool(blamed) or does_starve(evidence, decision)


def does_starve(evidence: Evidence, decision: Decision) -> bool:
    """Whether the storage itself is known to keep the accelerators waiting."""
    tested = not evidence.cached and convinces(evidence.gains.get("storage"))
    return tested or decision.binds in ("storage", "sync")

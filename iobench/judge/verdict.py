"""The verdict on a run: the bottleneck, whether the accelerators starve, and what would help.

Two questions have two answers. Starved? compares the accelerators' utilization with what the
workload requires. What is the bottleneck? is answered whether they starve or not (``decide``).

The stalls (shares of the time that accelerators waited for fetch and for prep) come from the run's
own events where they are recorded. Otherwise they are as in DS-Analyzer (Mohan et al., VLDB
2021): let T1, T3 and T2 be the time per sample of the accelerator alone, with everything but fetch,
and of the real run. Then ``prep_stall = (T3 - T1) / T2`` and ``fetch_stall = (T2 - T3) / T2``. The
time of saves counts in neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..record.run import TrainingRecord
from ..record.verdict import Estimate, Fed, Verdict
from .advice import advise
from .evidence import DRAINED, Decision, Evidence
from .fed import fed, with_potential
from .figures.metrics import NULL_ACCELERATOR
from .figures.ranktime import usual_slow_rank
from .judged import Judged, is_null_accelerator
from .limits import storage_bound, stragglers
from .promise import required_gain, with_found
from .rules_speed import contention
from .sentence import explanation, sentence


def verdict(judged: Judged, bounds: Mapping[str, Estimate] | None = None) -> Verdict:
    """The verdict on a record, from its ceilings, metrics and ablations.

    ``bounds``: the most that changes of a stage bring, where no stage was left out of this run.
    A figure that cannot be computed is None, and ``not_measured`` gives the reason.
    """
    doc, evidence, decision = judged.record, judged.evidence, judged.decision
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
    can_feed = fed(judged, held_up=bound == "stragglers")
    advice = advise(replace(evidence, gains={**(bounds or {}), **evidence.gains}), decision, bound)
    gains = dict(evidence.gains)
    cores = next((each for each in advice if each.id == "cores"), None)
    if decision.bottleneck == "cpu" and cores is not None and cores.predicted_gain is not None:
        gains["cpu"] = Estimate(value=cores.predicted_gain, low=cores.low, high=cores.high)
    slow = usual_slow_rank([each for each in doc.job.repetitions if each.complete])
    _missing(doc, evidence, can_feed, missing)
    answer = Verdict(
        bottleneck=decision.bottleneck,
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
    return "storage" in (decision.bottleneck, *decision.also)


def stalls(evidence: Evidence, missing: dict[str, str]) -> tuple[float | None, float | None]:
    """(prep stall, fetch stall) as shares of the time without saves, 0 to 1; together at most 1.

    A reason for each None is added to ``missing``. Without events of its own, the prep stall
    includes the loader, which DS-Analyzer does not separate.
    """
    shares = evidence.shares
    saves = shares.saves or 0.0
    if evidence.accelerator is None:
        return _no_stalls(missing, NULL_ACCELERATOR)
    if shares.fetch is not None and shares.prep is not None and saves < 1:
        loading = 1 - saves
        prep = _as_share(shares.prep / loading)
        return prep, min(1 - prep, _as_share(shares.fetch / loading))
    if evidence.prep is None:
        return _no_stalls(missing, "the prep ceiling was not measured")
    if evidence.measured is None or saves >= 1:
        return _no_stalls(missing, "no repetition was completed")
    measured = evidence.measured / (1 - saves)
    without_fetch = min(
        rate for rate in (evidence.accelerator, evidence.prep, evidence.loader) if rate is not None
    )
    prep = _as_share(measured / without_fetch - measured / evidence.accelerator)
    return prep, min(1 - prep, _as_share(1 - measured / without_fetch))


def _no_stalls(missing: dict[str, str], reason: str) -> tuple[None, None]:
    missing["prep_stall"] = missing["fetch_stall"] = reason
    return None, None


def _as_share(value: float) -> float:
    return min(1.0, max(0.0, value))

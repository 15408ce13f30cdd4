"""The verdict on a run: the bottleneck, whether the accelerators starve, and what would help.

Two questions have two answers. Starved? compares the accelerators' utilization with what the
workload requires. What is the bottleneck? is answered whether they starve or not (``decide``).

The stalls (shares of the time that accelerators waited for fetch and for prep) come from the run's
own events where they are recorded. Otherwise they are as in DS-Analyzer (Mohan et al., VLDB
2021): let T1, T3 and T2 be the time per sample of the accelerator alone, with everything but fetch,
and of the real run. Then ``prep_stall = (T3 - T1) / T2`` and ``fetch_stall = (T2 - T3) / T2``. The
time of saves counts in neither.

Of the advice, ``SITUATIONS`` is the table of what is advised where, in the order in which it is
applied; the words and the check of each change are in ``changes_storage`` and ``changes_host``. The
changes of the bottleneck come first, by predicted gain. A gain is a factor on the measured
samples/s. No change is promised more than the accelerators demand. Where a stage was left out in
turns with the repetitions, no change of that stage is promised more than that test found. Otherwise
the gain is that of the roofline model, in which one ceiling moves and the others stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..record.curve import Bound
from ..record.run import TrainingRecord
from ..record.verdict import Advice, Estimate, Fed, Verdict
from ..settings.workload import Subject
from . import changes_host as host
from . import changes_storage as storage
from .changes_storage import storage_bound, stragglers
from .evidence import DRAINED, Decision, Evidence
from .fed import fed, with_potential
from .figures.ablations import is_told
from .figures.metrics import NULL_ACCELERATOR
from .figures.ranktime import usual_slow_rank
from .judged import Judged, is_null_accelerator
from .promise import (
    WORTH,
    AdvisedChange,
    advice_of,
    demanded,
    in_order,
    limited,
    possible,
    reached,
    required_gain,
    shown,
    with_found,
)
from .rules_ranks import slow_host_names
from .rules_speed import contention
from .sentence import explanation, sentence
from .watched import CAUSES, watched_advice, watched_nothing


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
        headroom=_headroom(evidence, can_feed, missing),
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
            "sentence": sentence(evidence, decision, answer, slow_host_names(doc)),
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


def _headroom(evidence: Evidence, can_feed: Fed, missing: dict[str, str]) -> float | None:
    demand = evidence.accelerator
    lasts = evidence.lasting if can_feed.basis == "run" else None
    storage = evidence.storage if lasts is None else lasts.after
    if evidence.cached:
        missing["headroom"] = f"{evidence.cached}: what the storage delivers was not measured"
    elif storage is not None and demand:
        return storage / demand
    else:
        missing["headroom"] = (
            "neither fetch nor raw storage was measured" if demand else _no_demand(evidence)
        )
    return None


def _no_demand(evidence: Evidence) -> str:
    if is_null_accelerator(evidence.job):
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
        return _no_stalls(missing, _no_demand(evidence))
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


When = Callable[[Evidence, Bound | None], bool]


def _bound_by(known: Bound) -> When:
    return lambda _, bound: bound == known


def _where(holds: Callable[[Evidence], bool]) -> When:
    return lambda evidence, _: holds(evidence)


def _is_advice(change: AdvisedChange) -> When:
    return lambda evidence, _: change.check(evidence) is not None


def _otherwise(_: Evidence, __: Bound | None) -> bool:
    return True


class Situation(NamedTuple):
    """What is advised on a stage. Of a group of changes, it is the first that is advice there."""

    stage: str
    when: When
    changes: tuple[AdvisedChange | tuple[AdvisedChange, ...], ...]


MORE_READS = (storage.concurrent_reads, storage.workers_that_read)
CHEAPER_SAMPLES = (host.cheaper_codec, host.less_decoding)

SITUATIONS = (
    Situation(
        "storage",
        _is_advice(storage.reads_instead_of_a_map),
        (storage.reads_instead_of_a_map, storage.faster_storage),
    ),
    Situation(
        "storage",
        _is_advice(storage.no_local_cache),
        (storage.no_local_cache, storage.faster_storage),
    ),
    Situation("storage", _bound_by("latency"), ((*MORE_READS, storage.faster_storage),)),
    Situation("storage", _bound_by("stragglers"), ((storage.more_batches, *MORE_READS),)),
    Situation("storage", _bound_by("client"), (host.direct_reads, host.twice_the_cores)),
    Situation("storage", _bound_by("metadata"), (storage.FEWER_OPENS, storage.faster_storage)),
    Situation("storage", _bound_by("operations"), (storage.LARGER_READS, storage.faster_storage)),
    Situation("storage", _bound_by("bandwidth"), (storage.compression, storage.faster_storage)),
    Situation(
        "storage",
        _bound_by("unknown"),
        (storage.PERHAPS_LARGER_READS, storage.compression, storage.faster_than_more_reads),
    ),
    Situation(
        "storage",
        _otherwise,
        (storage.PERHAPS_LARGER_READS, storage.compression, storage.faster_than_larger_reads),
    ),
    Situation("prep", _is_advice(host.batches_in_any_order), (host.batches_in_any_order,)),
    Situation("prep", _where(host.mostly_waits), (host.workers_that_wait,)),
    Situation("prep", _where(host.mostly_sleeps), (host.workers_that_sleep, host.another_loader)),
    Situation(
        "prep",
        _otherwise,
        (
            (host.workers_that_sleep, host.workers_for_idle_cores, host.cores_for_preparation),
            host.another_loader,
            CHEAPER_SAMPLES,
        ),
    ),
    Situation("cpu", _otherwise, (host.twice_the_cores, host.direct_reads, CHEAPER_SAMPLES)),
    Situation(
        "loader", _otherwise, ((host.ring_transport, host.cores_for_workers, host.larger_batches),)
    ),
    Situation("fill", _otherwise, ((host.whole_epochs, host.first_batches, host.longer_epochs),)),
    Situation("sync", _otherwise, (host.no_barrier,)),
    Situation("checkpoint", _otherwise, (host.faster_saves,)),
    Situation("log", _otherwise, (host.faster_log,)),
)
"""What is advised on each stage; its first situation that holds decides."""


STAGES = frozenset(each.stage for each in SITUATIONS)

EACH_ONCE = "let each sample be delivered once in an epoch, and measure again"

_OURS = ("loader.", "reader.")


def advise(evidence: Evidence, decision: Decision, bound: Bound | None) -> list[Advice]:
    """Changes worth making. ``bound`` is what limits the storage.

    If nothing is worth a change, the only entry says so. It is empty if nothing is known.
    """
    evidence = evidence.as_read()
    if decision.too_short is not None:
        return [
            Advice(
                id="longer-run",
                change=f"measure for longer: {decision.too_short.command}",
                basis=decision.too_short.why,
            )
        ]
    if evidence.repeated:
        # What the loader costs is that of a loader that does too much.
        return [Advice(change=EACH_ONCE, basis=evidence.repeated)]
    if evidence.start is not None:
        start = _of_each((host.faster_start,), evidence)
        rest = advise(replace(evidence, start=None), decision, bound)
        return [*start, *(each for each in rest if each.id not in ("none", "first-batches"))]
    beside = [
        limited(each, None, demanded(evidence))
        for each in _of_each((host.workers_beside_steps,), evidence)
    ]
    if beside:
        rest = advise(replace(evidence, workers=evidence.accelerators), decision, bound)
        return [*beside, *(each for each in rest if each.id not in ("none", "workers"))]
    if decision.bottleneck == "accelerator":
        only = watched_nothing if evidence.watched else host.nothing
        return _of_each((only,), evidence)
    if decision.bottleneck == "loader" and (sampler := advice_of(host.faster_sampler, evidence)):
        return [sampler]
    if evidence.watched and decision.bottleneck in CAUSES:
        return watched_advice(evidence, decision)
    if decision.bottleneck == "prep" and host.collates_most(evidence):
        return _of_each((host.workers_beside_training, host.less_collating), evidence)
    evidence = reached(_with_tested_ceiling(evidence, decision))
    found = [
        each
        for stage in _stages(evidence, decision)
        for each in _of_stage(stage, evidence, bound, beside_fill="fill" in decision.also)
    ]
    if evidence.subject.users:
        found = [_of_user(each) for each in found if _moves(evidence.subject, each)]
    once = {_same(each): each for each in reversed(found)}  # the first of several
    return [each for each in found if once[_same(each)] is each]


def _with_tested_ceiling(evidence: Evidence, decision: Decision) -> Evidence:
    """The evidence in which preparation without a ceiling, which binds by test, has the run's rate.

    What limits a run delivers no more than the run got. A user's loader has times of its own.
    """
    tested = decision.basis == "tested" and decision.bottleneck == "prep" and not decision.also
    if not tested or evidence.prep is not None or evidence.subject.users:
        return evidence
    return replace(evidence, prep=evidence.measured)


def _of_stage(
    stage: str, evidence: Evidence, bound: Bound | None, *, beside_fill: bool
) -> list[Advice]:
    """The advice on a stage in its order, without that which promises too little.

    ``beside_fill``: the fill of the epochs takes about as much, and ceilings know nothing of it.
    """
    gain, most = evidence.gains.get(stage), possible(evidence, stage)
    several = [*_applying(stage, evidence, bound)]
    longer = [each for _, each in several if each.id == "longer-run"]
    promising = [
        limited(
            each.model_copy(update={"at_most": each.at_most or beside_fill}),
            evidence.gains.get(change.moves or stage),
            most,
        )
        for change, each in several
        if each.id != "longer-run"
    ]
    worth = [each for each in promising if (each.predicted_gain or 0) >= WORTH]
    if not worth and gain is not None and is_told(gain, evidence.unsteady):
        worth = [_of_unknown_gain(each, gain) for each in promising[:1]]
    return in_order(worth, required_gain(evidence)) + longer


def _of_each(changes: Sequence[AdvisedChange], evidence: Evidence) -> list[Advice]:
    return [each for change in changes if (each := advice_of(change, evidence)) is not None]


def _applying(
    stage: str, evidence: Evidence, bound: Bound | None
) -> Iterator[tuple[AdvisedChange, Advice]]:
    """The changes that are advised on a stage, with their words and what they promise."""
    known = (each for each in SITUATIONS if each.stage == stage)
    for group in next(each.changes for each in known if each.when(evidence, bound)):
        for change in group if isinstance(group, tuple) else (group,):
            if (found := advice_of(change, evidence)) is not None:
                yield change, found
                break


def _moves(subject: Subject, advice: Advice) -> bool:
    """Whether the settings of an advice change what the loader under test does."""
    return all(subject.moved_by(each.partition("=")[0]) for each in advice.settings)


def _of_user(advice: Advice) -> Advice:
    """The advice without settings of iobench's: the user's own code makes the change."""
    mine = any(each.startswith(_OURS) for each in advice.settings)
    return advice.model_copy(update={"settings": []}) if mine else advice


def _same(advice: Advice) -> tuple[str, ...]:
    """What two lines have in common that advise the same change, perhaps for different stages."""
    return (advice.id, *advice.settings) if advice.id else (advice.change,)


def _of_unknown_gain(advice: Advice, tested: Estimate) -> Advice:
    """Advice on a stage that gains by test, where the ceilings say that it does not."""
    return advice.model_copy(
        update={
            "predicted_gain": None,
            "low": None,
            "high": None,
            "at_most": False,
            "basis": f"leaving the stage out brings {shown(tested)}, but its ceiling does not "
            "tell how much of that this change brings",
        }
    )


def _stages(evidence: Evidence, decision: Decision) -> list[str]:
    """The stages about which there is advice: the bottleneck, what may be it, the rest."""
    stages: list[str] = [decision.bottleneck, *decision.also]
    others = [
        stage
        for stage, gain in evidence.gains.items()
        if is_told(gain, evidence.unsteady) and not (stage == "storage" and evidence.cached)
    ]
    stages += sorted(others, key=lambda stage: -evidence.gains[stage].value)
    return [stage for stage in dict.fromkeys(stages) if stage in STAGES]

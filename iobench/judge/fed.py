"""How many accelerators the storage can feed, with an interval, and what a barrier costs them.

What was measured overrides what was modelled: the search for the largest number comes first, then
the run's own utilization, then the plateau of the storage's curve, then the fetch ceiling.

``fed`` and ``with_potential`` are the only source of the numbers: what the storage feeds as the job
reads it (``today``), and what it could feed with more reads in flight or with advice that keeps the
storage (``potential``). All sentences and tables take them from there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Literal, NamedTuple

from ..record.run import TrainingRecord
from ..record.training import Ceiling, FindMax
from ..record.verdict import Advice, AdviceId, Estimate, Fed, FedAt
from .changes_storage import gets_all
from .evidence import Decision, Evidence
from .figures.curve import highest, is_known
from .figures.in_flight import run_reads_in_flight
from .figures.metrics import NULL_ACCELERATOR
from .figures.search import may_be_more
from .judged import Judged, is_null_accelerator, raw_has_too_few_reads, storage_today
from .promise import promised, tells_nothing

MAX_FED = 10**9

SAME_STORAGE: frozenset[AdviceId] = frozenset(
    {"concurrency", "workers", "pack", "order", "direct", "mapping", "compress"}
)
"""Advice that gets more from the storage that was measured, and needs no other one."""

UTILIZATION = "accelerator_utilization_sustained"


@dataclass(frozen=True, kw_only=True)
class StorageSupply:
    """What the storage delivers in samples/s, with the reads in flight that it takes.

    ``low`` and ``high`` are its interval, if there is one; ``high`` is also None where it may
    deliver more than was tried. ``today``: with the run's own reads in flight, which are fewer than
    it takes if ``too_few``. It is never more than ``value``.
    """

    value: float
    low: float | None
    high: float | None
    reads_in_flight: float
    today: float | None
    too_few: bool = False
    # by a search, after the rate of the run fell, by the storage's curve, or by the fetch ceiling
    basis: Literal["find-max", "run", "plateau", "fetch"]


def fed(judged: Judged, *, held_up: bool = False) -> Fed:
    """The number of accelerators that the storage keeps at the required utilization.

    An accelerator at the utilization u takes u times its full demand, so the number is the
    storage's rate over u times that demand. If the storage limits the run, or may do so, and the
    run's accelerators starve, the number is less than theirs. Where it is not certain that the
    storage is to blame, the interval still reaches to what the storage delivers alone.
    ``held_up``: the run gets less than the storage has, since its reads are too late, and not too
    many, so more accelerators get more.
    """
    doc, evidence = judged.record, judged.evidence
    blamed = may_starve(judged.decision)
    search = doc.job.find_max
    supply = None if evidence.cached else _before(judged)
    if supply is not None and blamed and not evidence.fed:
        supply = _lasting(judged) or supply
    if supply is not None and held_up:
        supply = replace(supply, too_few=True)
    each = _each(evidence)
    if search is not None and (search.accelerators is not None or not search.bound):
        found = _by_search(doc, search)
    elif supply is not None and each > 0:
        found = _measured(_by_supply(supply, each), judged, supply, each)
    else:
        found = Fed(accelerators=None, not_measured=_why_not(doc, evidence))
    most = None
    rate = evidence.between_saves
    if supply is not None and blamed and rate is not None and not evidence.fed:
        most = _RunRate(rate, grows=supply.too_few)
    return found.model_copy(update={"at": _at(doc, evidence, found, supply, most)})


def _why_not(doc: TrainingRecord, evidence: Evidence) -> str:
    if not evidence.per_accelerator:
        null = is_null_accelerator(doc.job)
        return NULL_ACCELERATOR if null else "the accelerators' demand is not known"
    if evidence.cached:
        return f"{evidence.cached}: what the storage delivers was not measured"
    return "neither fetch nor raw storage was measured"


def supply_of(judged: Judged) -> StorageSupply | None:
    """What the storage delivers: after a lasting fall of its rate, what the run received then.

    Else the plateau of its curve, or its highest point, or the fetch ceiling.
    """
    found = _recorded(judged)
    lasts = _lasting(judged) if found is not None and found.basis == "run" else None
    return lasts or _before(judged)


def _lasting(judged: Judged) -> StorageSupply | None:
    """What a run received after its rate fell to stay; None if it did not."""
    lasts = judged.evidence.lasting
    if lasts is None:
        return None
    several = lasts.low < lasts.high
    return StorageSupply(
        value=lasts.after,
        low=lasts.low if several else None,
        high=lasts.high if several else None,
        reads_in_flight=judged.evidence.in_flight,
        today=lasts.after,
        basis="run",
    )


def _before(judged: Judged) -> StorageSupply | None:
    """The plateau of the storage's curve, or its highest point, or the fetch ceiling.

    The fetch ceiling is what the job's own reader gets with its own reads in flight, in a longer
    time than a point of the curve has. So the storage delivers at least as much.
    """
    curve, ceiling = _from_curve(judged.record) or _from_model(judged), _from_ceiling(judged)
    if curve is None or ceiling is None or judged.evidence.fetch is None:
        return curve or ceiling
    if ceiling.value <= curve.value:
        too_few = curve.too_few and not gets_all(judged.evidence)
        return replace(curve, today=ceiling.value, too_few=too_few)
    low = max((each for each in (curve.low, ceiling.low) if each is not None), default=None)
    return replace(
        ceiling,
        low=None if low is None else min(low, ceiling.value),
        high=None if curve.high is None else max(curve.high, ceiling.high or ceiling.value),
        reads_in_flight=min(ceiling.reads_in_flight, curve.reads_in_flight),
    )


def delivered(judged: Judged) -> StorageSupply | None:
    """What the storage delivers, where the run's own utilization and its search may correct that.

    A search tells it from the number that it found, and a run that starves because of the storage
    from what it received. A search that ended before the storage did tells only the least of it.
    """
    supply, evidence = supply_of(judged), judged.evidence
    found, each = _recorded(judged), _each(evidence)
    if found is None or found.accelerators is None or not each > 0:
        return supply
    if found.basis == "find-max":
        if found.accelerators == 0:
            return supply
        least = StorageSupply(
            value=found.accelerators * each,
            low=None if found.low is None else found.low * each,
            high=None if found.high is None else (found.high + 1) * each,
            reads_in_flight=found.reads_in_flight or 1.0,
            today=None,
            basis="find-max",
        )
        if found.high is not None or supply is None or supply.value <= least.value:
            return least
        return supply if supply.low is None else replace(supply, low=max(supply.low, least.value))
    capped = supply is not None and found.accelerators < _number(supply.value, each)
    rate = evidence.between_saves
    if supply is None or not capped or supply.too_few or rate is None:
        return supply
    basis = "fetch" if supply.basis == "plateau" else supply.basis
    most = min(rate, supply.value)
    return replace(supply, value=most, low=None, high=None, today=rate, basis=basis)


def _recorded(judged: Judged) -> Fed | None:
    found = judged.record.job.verdict
    return found.fed if found is not None else None


def _each(evidence: Evidence) -> float:
    """What an accelerator takes at the required utilization, in samples/s; 0: not known."""
    return evidence.required * (evidence.per_accelerator or 0.0)


def with_potential(found: Fed, evidence: Evidence, advice: Sequence[Advice]) -> Fed:
    """``found`` with what the same storage could feed if the advice on it is followed.

    What was tried (``Advice.found``) counts before what is promised, and before the curve.
    """
    each, rate, busy = _each(evidence), evidence.measured, evidence.utilization
    if found.accelerators is None or found.basis == "find-max" or evidence.fed:
        return found
    if found.accelerators >= evidence.accelerators or not each or rate is None or busy is None:
        return found
    several = [one for one in advice if one.id in SAME_STORAGE]
    gains = [one.found.value for one in several if one.found is not None]
    tried = bool(gains)
    promises = [gain for one in several if (gain := promised(one)) is not None]
    gains = gains or [gain.value for gain in promises if not tells_nothing(gain)]
    demand = evidence.accelerator or math.inf  # the ranks of the run take no more between saves
    now, *then = (min(evidence.without_saves(rate * gain), demand) for gain in (1.0, *gains))
    numbers = [_number(other, each) for other in then]
    if any(other / now * busy >= evidence.required for other in then):
        numbers.append(max(evidence.accelerators, found.potential or 0))
    elif not tried and found.potential is not None:
        numbers.append(found.potential)
    most = max(numbers, default=0)
    return found.model_copy(update={"potential": most if most > found.accelerators else None})


def _from_curve(doc: TrainingRecord) -> StorageSupply | None:
    """The plateau, or the highest point where there is none: then there may be more."""
    found, raw = doc.job.curve, doc.job.ceilings.get("storage_raw", Ceiling())
    size = raw.details.read_bytes_per_sample
    if found is None or not size or raw_has_too_few_reads(doc):
        return None
    curve = found.curve
    best = highest(curve.points)
    if best is None or best.reads_per_s.value <= 0:
        return None
    rate, takes = curve.plateau_bytes_per_s, curve.knee_in_flight
    client = any(point.client for point in curve.points if point.in_flight >= (takes or 0))
    bounded = rate is not None and not client
    if rate is None or takes is None:
        rate, takes = best.bytes_per_s, best.in_flight
    in_flight = found.in_flight
    return StorageSupply(
        value=rate.value / size,
        low=rate.low / size if rate.low is not None and is_known(rate) else None,
        high=rate.high / size if rate.high is not None and is_known(rate) and bounded else None,
        reads_in_flight=float(takes),
        today=storage_today(doc),
        too_few=bool(in_flight) and (in_flight or 0.0) < takes,
        basis="plateau",
    )


def _from_model(judged: Judged) -> StorageSupply | None:
    """Of a what-if from a run with a plateau: the modelled one, since nothing has its curve."""
    evidence, recorded = judged.evidence, _recorded(judged)
    if not evidence.modelled or evidence.raw is None:
        return None
    if recorded is None or recorded.basis != "plateau":
        return None
    return StorageSupply(
        value=evidence.raw,
        low=None,
        high=None,
        reads_in_flight=evidence.in_flight,
        today=None,
        basis="plateau",
    )


def _from_ceiling(judged: Judged) -> StorageSupply | None:
    """The fetch ceiling with its interval; raw storage, which is higher, without it."""
    evidence = judged.evidence
    rate = evidence.storage
    if rate is None:
        return None
    name = "fetch" if evidence.fetch is not None else "storage_raw"
    windows = judged.record.job.ceilings.get(name, Ceiling()).windows
    low, high = (windows.low, windows.high) if windows else (None, None)
    return StorageSupply(
        value=rate,
        low=None if low is None else min(low, rate),
        high=None if high is None else max(high, rate),
        reads_in_flight=evidence.in_flight,
        today=rate,
        basis="fetch",
    )


def _number(samples_per_s: float, each: float) -> int:
    """How many accelerators that take ``each`` samples/s a rate feeds."""
    return math.floor(min(samples_per_s / each + 1e-9, MAX_FED))


def _by_supply(supply: StorageSupply, each: float) -> Fed:
    return Fed(
        accelerators=_number(supply.value, each),
        low=None if supply.low is None else _number(supply.low, each),
        high=None if supply.high is None else _number(supply.high, each),
        reads_in_flight=supply.reads_in_flight,
        today=None if supply.today is None else _number(supply.today, each),
        basis=supply.basis,
    )


def _by_search(doc: TrainingRecord, search: FindMax) -> Fed:
    number = search.accelerators or 0
    return Fed(
        accelerators=number,
        low=search.low,
        high=None if may_be_more(search) else search.high,
        reads_in_flight=float(run_reads_in_flight(doc, ranks=number)) if number else None,
        basis="find-max",
    )


def _measured(found: Fed, judged: Judged, supply: StorageSupply, each: float) -> Fed:
    """What the run's own utilization says, which overrides the model.

    If the ranks of the run were fed, the storage feeds at least as many. If they starve because of
    the storage, it feeds fewer; ``potential`` keeps what it could feed with more reads in flight.
    """
    evidence, certain = judged.evidence, does_starve(judged.decision)
    ranks, number = evidence.accelerators, found.accelerators
    if evidence.utilization is None or number is None:
        return found
    low, high, today = found.low, found.high, found.today
    if evidence.fed:
        return found.model_copy(
            update={
                "accelerators": max(number, ranks),
                "low": None if low is None else max(low, ranks),
                "high": None if high is None else max(high, ranks),
                "today": None if today is None else max(today, ranks),
            }
        )
    if not may_starve(judged.decision):
        return found
    most = ranks - 1
    if evidence.between_saves is not None:
        today = _number(evidence.between_saves, each)
    if certain and not (low is None and high is None):
        high = min(most if high is None else high, most)
    elif not certain and high is None:
        low, high = low or 0, number
    return found.model_copy(
        update={
            "accelerators": min(number, most),
            "low": None if low is None else min(low, most),
            "high": high,
            "today": None if today is None else min(today, most, number),
            "potential": number if supply.too_few and number > most else None,
        }
    )


class _RunRate(NamedTuple):
    """What a run received between its saves that starves because of the storage, in samples/s.

    ``grows``: more ranks have more reads in flight, and get more in proportion.
    """

    rate: float
    grows: bool

    def by(self, ranks: int, own: int) -> float:
        return self.rate * ranks / own if self.grows else self.rate


def _at(
    doc: TrainingRecord,
    evidence: Evidence,
    found: Fed,
    supply: StorageSupply | None,
    received: _RunRate | None,
) -> list[FedAt]:
    """The run's own number of ranks, as measured for what lasts, and larger ones, extrapolated.

    More ranks are slowed by the slowest of them, and by a storage that delivers less than they
    take. The smaller one of both utilizations counts.
    """
    answers = []
    summary, lasts = doc.metrics.get(UTILIZATION), evidence.utilization
    if summary is not None and summary.n and lasts is not None:
        share = lasts / summary.median if summary.median else 1.0
        low, high = (min(1.0, share * end) for end in (summary.min, summary.max))
        answers.append(
            FedAt(
                ranks=evidence.accelerators,
                accelerator_utilization=Estimate(value=lasts, low=low, high=high, n=summary.n),
                fed=evidence.fed,
                how="measured",
            )
        )
    together: dict[int, list[Estimate]] = {}
    for repetition in doc.job.repetitions:
        for one in repetition.at_more_ranks if repetition.complete else ():
            if one.accelerator_utilization is not None and one.ranks > evidence.accelerators:
                together.setdefault(one.ranks, []).append(one.accelerator_utilization)
    for ranks, estimates in sorted(together.items()):
        utilization = _limited(_median_of(estimates), ranks, evidence, supply)
        if received is not None and evidence.per_accelerator:
            most = received.by(ranks, evidence.accelerators) / (ranks * evidence.per_accelerator)
            utilization = utilization.each(partial(min, most))
        answers.append(
            FedAt(
                ranks=ranks,
                accelerator_utilization=utilization,
                fed=_is_fed(utilization, ranks, evidence.required, found),
                how="extrapolated",
            )
        )
    return answers


def _median_of(estimates: Sequence[Estimate]) -> Estimate:
    """The median of the repetitions, with an interval that covers theirs."""
    return Estimate(
        value=median(each.value for each in estimates),
        low=min(each.value if each.low is None else each.low for each in estimates),
        high=max(each.value if each.high is None else each.high for each in estimates),
        n=len(estimates),
    )


def _limited(
    utilization: Estimate, ranks: int, evidence: Evidence, supply: StorageSupply | None
) -> Estimate:
    """At most what the storage's rate over the demand of the ranks allows."""
    demand = ranks * (evidence.per_accelerator or 0.0)
    if supply is None or not demand > 0:
        return utilization
    low, high = utilization.low, utilization.high
    least = supply.value if supply.low is None else supply.low
    return Estimate(
        value=min(utilization.value, supply.value / demand),
        low=None if low is None else min(low, least / demand),
        high=high if high is None or supply.high is None else min(high, supply.high / demand),
        n=utilization.n,
    )


def _is_fed(utilization: Estimate, ranks: int, required: float, found: Fed) -> bool | None:
    """None where neither is certain: that the ranks are fed, and that they are not."""
    if found.high is not None and ranks > found.high:
        return False
    if utilization.high is not None and utilization.high < required:
        return False
    surely = found.accelerators if found.low is None else found.low
    enough = surely is None or ranks <= surely
    certain = utilization.low is not None and utilization.low >= required
    return True if enough and certain else None


def may_starve(decision: Decision) -> bool:
    """Whether it may be the storage that keeps the accelerators waiting.

    Ranks that wait for each other wait for the slowest read of all of them.
    """
    return decision.bottleneck == "undecided" or does_starve(decision)


def does_starve(decision: Decision) -> bool:
    """Whether the storage itself is known to keep the accelerators waiting.

    A storage that costs something beside another stage that costs more is not what they wait for.
    """
    return bool({"storage", "sync"} & {decision.bottleneck, *decision.also})

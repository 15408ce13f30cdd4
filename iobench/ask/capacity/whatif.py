"""Predict recorded runs under a change: other storage, other settings, or more hosts.

On its own hosts the change moves the ceilings of a run (``ceilings``). The result has the new
verdict, and the error of the model on the recorded run itself. More hosts: see ``more_hosts``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal, NamedTuple

from ...base.documents import UNPRINTED
from ...base.errors import UsageError
from ...base.units import format_count
from ...judge.bottleneck import decide
from ...judge.evidence import Evidence
from ...judge.figures.ablations import MIN_ROUNDS, interval
from ...judge.figures.events import Events
from ...judge.figures.ranktime import Shares
from ...judge.judged import judge
from ...judge.promise import limit_of
from ...judge.rebuild import conclude
from ...judge.verdict import verdict
from ...record.run import Summary, TrainingRecord
from ...record.training import FindMax, FindMaxPoint
from ...record.verdict import Estimate, Verdict
from .ceilings import Change, Explanation, Settings, changed_settings, moved_ceilings
from .jobs import jobs_of
from .more_hosts import HostsPrediction, on_more_hosts

_OF_STORAGE = ("storage_bandwidth", "latency", "cache_bytes", "network_bytes_per_s")
"""The changes of what is in front of the reader."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The result of the models. Rates are in samples/s over all accelerators."""

    run_id: str
    changes: tuple[str, ...]
    bases: tuple[str, ...]  # the models that were used, and the limits of their validity
    recorded: Verdict | None
    model_error: float | None  # (predicted - measured) / measured of the recorded run
    # Prediction if the model has the same error here; None if another stage is the limit then.
    corrected_samples_per_s: float | None
    what_if: TrainingRecord  # predicted ceilings, settings, metrics and verdict; no repetitions
    before: TrainingRecord = field(metadata=UNPRINTED)
    tried: TriedRate | None = field(metadata=UNPRINTED)  # its rate was measured, not predicted


def what_if(
    runs: Sequence[tuple[TrainingRecord, Events]], change: Change
) -> Prediction | HostsPrediction:
    """Predict recorded runs under ``change``: the ceilings of one, or the job on more hosts.

    Each run has its events, which only more hosts need; they are empty if none were kept. Raises
    UsageError for a change that is not valid, or runs that can't be predicted from.
    """
    if change.more is not None:
        return on_more_hosts(jobs_of(runs), change.more)
    return _with_ceilings_moved(runs[0][0], change)


def _with_ceilings_moved(doc: TrainingRecord, change: Change) -> Prediction:
    """Predict ``doc`` on its own hosts.

    Raises UsageError for a change that is not valid, or a run without ceilings.
    """
    if change.empty:
        raise UsageError(
            "no change was given",
            remedy="give one, e.g. --storage-bandwidth 2x or --workers 16",
        )
    doc = conclude(doc)
    before = judge(doc).evidence
    if doc.job.subject.watched:
        raise UsageError(
            f"run {doc.run_id} is a training that was watched: no stage was measured alone, so it "
            "is not known what a change would bring",
            remedy="measure the same loader with: iobench run --loader MODULE:FUNCTION",
        )
    if before.storage is None and before.prep is None and before.loader is None:
        raise UsageError(
            f"run {doc.run_id} has no ceilings",
            remedy="name a run that measured its ceilings (without --calibration 0s)",
        )
    of_storage = any(getattr(change, name) is not None for name in _OF_STORAGE)
    if of_storage and before.raw is None and before.cached:
        raise UsageError(
            f"run {doc.run_id} does not tell what its storage delivers, which can't be changed "
            f"then: {before.cached}",
            remedy="name a run whose reads came from the storage (cache: cold)",
        )
    on_cpu = doc.job.trained and (doc.job.workload.accelerator.device or "cpu") == "cpu"
    if on_cpu and change.accelerators is not None and _search_of(doc, change) is None:
        raise UsageError(
            f"run {doc.run_id} trained on the CPU of its host, where other ranks share its cores, "
            "so that their steps would take another time",
            remedy="measure it with: iobench train MODEL --accelerators N",
        )
    why = Explanation()
    settings = changed_settings(doc, change, why)
    changed = doc.model_copy(update={"findings": []}).with_job(
        workload=settings.workload,
        accelerators=settings.ranks,
        loader=settings.loader,
        ceilings=moved_ceilings(doc, before, change, settings, why),
        repetitions=[],
        # A search for the largest number of accelerators is of this storage, and these settings.
        find_max=_search_of(doc, change),
        ablations=[],
        confirmations=[],
        no_ablations="the figures are predicted",
        curve=None,
    )
    turns = before.in_turns
    now = limit_of(before, {}, in_turns=turns)
    after = judge(changed).evidence
    then = limit_of(after, {}, in_turns=turns)
    search = _tried(changed.job.find_max, changed.job.accelerators)
    tried = search or _confirmed(doc, before, change, settings)
    if tried is not None:
        then = tried.source, tried.samples_per_s
        why.models.append(
            f"{tried.source} measured {format_count(tried.samples_per_s)} samples/s"
            f"{tried.bound and f' {tried.bound}'}, which overrides the models"
        )
    saves = _saves(before, settings.ranks)
    if saves.of_a_sample_s:
        why.models.append("a save stops the training as long as in the run, after as many steps")
    without = _without_storage(before, change)
    rate = None if then is None else then[1]
    if rate is not None and tried is None:
        rate = saves.beside(rate)
        if without is not None and rate > without.value:
            # The storage was left out of the recorded run, and no storage is faster than none.
            rate = min(rate, max(without.value, without.high or 0.0))
    changed = changed.model_copy(update={"metrics": _metrics(after, rate, saves, tried)})
    modelled = _saves(before, before.accelerators).beside(now[1]) if now else None
    error = modelled / before.measured - 1 if modelled and before.measured else None
    same = now is not None and then is not None and now[0] == then[0]
    return Prediction(
        run_id=doc.run_id,
        changes=tuple(why.changes),
        bases=tuple(why.models),
        recorded=doc.job.verdict,
        model_error=error,
        corrected_samples_per_s=None
        if error is None or error <= -1 or rate is None or not same
        else rate / (1 + error),
        what_if=changed.with_job(verdict=_verdict(changed, saves, _bounds(without, rate))),
        before=doc,
        tried=tried,
    )


class _Saves(NamedTuple):
    """Seconds in which the training stands still for saves, for each sample of all ranks."""

    of_a_sample_s: float

    def beside(self, rate: float) -> float:
        """Samples/s with the saves, of a job that takes ``rate`` between them."""
        return 1 / (1 / rate + self.of_a_sample_s)

    def between(self, rate: float) -> float:
        """Samples/s between the saves, of a job that takes ``rate`` with them."""
        return 1 / max(1 / rate - self.of_a_sample_s, 1e-9)


def _saves(before: Evidence, ranks: int) -> _Saves:
    """A save takes as long as in the recorded run, and comes after as many steps of its ranks."""
    share = before.shares.saves or 0.0
    return _Saves(share / before.measured * before.accelerators / ranks if before.measured else 0.0)


def _without_storage(before: Evidence, change: Change) -> Estimate | None:
    """The samples/s of the recorded run without its storage, if the change is one of that alone.

    None if it was not left out, or if the change concerns other stages, too.
    """
    storage = replace(change, step_time=None, workers=None, accelerators=None)
    gain = before.gains.get("storage")
    if change != storage or gain is None or not before.measured:
        return None
    low, high = interval(gain)
    if gain.n < MIN_ROUNDS:  # two rounds may differ by more than their interval says
        high = max(high, *_rounds_without_storage(before))
    return Estimate(
        value=max(1.0, gain.value) * before.measured,
        low=max(1.0, low) * before.measured,
        high=max(1.0, high) * before.measured,
        n=gain.n,
    )


def _rounds_without_storage(before: Evidence) -> list[float]:
    """The gain of each round, and 0."""
    found = [0.0]
    for ablation in before.job.ablations:
        for one in ablation.rounds if ablation.stage == "storage" else ():
            if one.complete and one.samples_per_s and one.base_samples_per_s:
                found.append(one.samples_per_s / one.base_samples_per_s)
    return found


def _bounds(without: Estimate | None, rate: float | None) -> dict[str, Estimate]:
    """What leaving out the storage brings after the change, with which the job has ``rate``."""
    if without is None or not rate:
        return {}
    low, high = (without.low or without.value) / rate, (without.high or without.value) / rate
    return {"storage": Estimate(value=without.value / rate, low=low, high=high, n=without.n)}


def _search_of(doc: TrainingRecord, change: Change) -> FindMax | None:
    search = doc.job.find_max
    same = change == Change(accelerators=change.accelerators)
    return search if search and search.points and same else None


class TriedRate(NamedTuple):
    """What a search measured for a number of accelerators, or a trial of advice for its settings.

    ``bound`` is empty if this number was tried. It is "at most" for a number above one that
    starved: the rate is the highest that was delivered, and the utilization is not known. It is "at
    least" for a number below one that was fed: each accelerator gets what it got there.
    """

    samples_per_s: float
    utilization: float | None
    bound: Literal["", "at most", "at least"]
    source: str = "the search for the largest number of accelerators"


def _tried(search: FindMax | None, ranks: int) -> TriedRate | None:
    """What the search says about ``ranks`` accelerators; None if it says nothing."""
    points = [point for point in search.points if point.samples_per_s] if search else []
    here = [point for point in points if point.accelerators == ranks]
    if here:
        utilizations = [share for point in here if (share := _share(point)) is not None]
        return TriedRate(
            median(point.samples_per_s or 0.0 for point in here),
            median(utilizations) if utilizations else None,
            "",
        )
    failed = [point.accelerators for point in points if not point.passed]
    if failed and ranks > min(failed):
        return TriedRate(max(point.samples_per_s or 0.0 for point in points), None, "at most")
    fed = [point for point in points if point.passed and point.accelerators > ranks]
    if fed:
        nearest = min(fed, key=lambda point: point.accelerators)
        rate = (nearest.samples_per_s or 0.0) * ranks / nearest.accelerators
        return TriedRate(rate, _share(nearest), "at least")
    return None


def _confirmed(
    doc: TrainingRecord, before: Evidence, change: Change, settings: Settings
) -> TriedRate | None:
    """What the run found when it tried just this change as advice; None if it did not."""
    if change != Change(concurrency=change.concurrency, workers=change.workers):
        return None
    asked = set()
    if change.concurrency is not None:
        asked.add(f"reader.concurrency={settings.workload.reader.concurrency}")
    if change.workers is not None:
        asked.add(f"loader.workers={settings.workers}")
    for each in doc.job.confirmations:
        if each.found is not None and before.measured and set(each.settings) == asked:
            rate = each.found.value * before.measured
            return TriedRate(rate, None, "", f"the trial of {' '.join(each.settings)}")
    return None


def _share(point: FindMaxPoint) -> float | None:
    return point.accelerator_utilization_steady or point.accelerator_utilization_sustained


def _metrics(
    evidence: Evidence, rate: float | None, saves: _Saves, tried: TriedRate | None
) -> dict[str, Summary]:
    """Metrics that the model predicts, in the form of measured ones, with n = 0."""
    if rate is None:
        return {}
    figures = {"samples_per_s": rate}
    if tried is not None and tried.utilization is not None:
        figures["accelerator_utilization_sustained"] = tried.utilization
    elif evidence.accelerator:
        figures["accelerator_utilization_sustained"] = min(
            1.0, saves.between(rate) / evidence.accelerator
        )
    return {
        name: Summary(median=value, min=value, max=value, n=0) for name, value in figures.items()
    }


def _verdict(doc: TrainingRecord, saves: _Saves, bounds: Mapping[str, Estimate]) -> Verdict:
    """The verdict on the predicted document. ``bounds``: of what further changes may bring."""
    judged = judge(doc)
    evidence = judged.evidence
    if saves.of_a_sample_s and evidence.measured:
        saved = saves.of_a_sample_s * evidence.measured
        busy = evidence.measured / evidence.accelerator if evidence.accelerator else 0.0
        shares = Shares(saves=min(1.0, saved), wait=max(0.0, 1 - saved - busy))
        evidence = replace(evidence, shares=shares)
        judged = replace(judged, evidence=evidence, decision=decide(evidence))
    found = verdict(judged, bounds)
    advice = [
        each.model_copy(update={"basis": f"by the modelled ceilings: {each.basis}"})
        for each in found.advice
    ]
    return found.model_copy(update={"advice": advice, "storage_bound": None})

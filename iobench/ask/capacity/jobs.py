"""Recorded runs as the model of more hosts sees them: their steps, and what limits their hosts.

All figures are of the steady state: the time in which the pipeline fills is left out, since more
hosts do not change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from ...base.errors import UsageError
from ...base.units import counted
from ...judge.criteria import computing
from ...judge.evidence import Evidence
from ...judge.fed import supply_of
from ...judge.figures.events import Events, select
from ...judge.figures.in_flight import bytes_per_sample
from ...judge.figures.instep import OwnStepTimes, step_times
from ...judge.figures.ranktime import INDEPENDENT
from ...judge.judged import Judged, is_null_accelerator, judge
from ...judge.promise import reached
from ...record.run import TrainingRecord
from .scaling import Band, Steps, steps_of
from .sizing import handed_over, prepared

BUSY = 1
"""The batch on which a rank computes: its loader may have the next one made meanwhile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLimits:
    """What one host's own stages deliver, in samples/s, with ``ranks`` of ``workers`` each."""

    ranks: float
    workers: int
    cores: float | None
    prep: float | None = None
    loader: float | None = None
    cpu: float | None = None
    computing: float = 1.0  # share of the time for which processes that prepare compute

    def rate(self, ranks: float) -> float | None:
        """The same for another number of ranks on the host; None if nothing was measured."""
        before, after = (max(1, round(each * max(1, self.workers))) for each in (self.ranks, ranks))
        found = [] if self.cpu is None else [self.cpu]
        if self.prep is not None:
            found.append(
                prepared(
                    self.prep,
                    busy_before=before,
                    busy=after,
                    cores=self.cores,
                    computing=self.computing,
                )
            )
        if self.loader is not None:
            found.append(
                handed_over(
                    self.loader,
                    ranks_before=max(1, round(self.ranks)),
                    ranks=max(1, round(ranks)),
                    busy_before=before,
                    busy=after,
                    cores=self.cores,
                )
            )
        return min(found, default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedJob:
    """One run. Times in seconds; rates in samples/s over all of its hosts.

    ``cycles_s``: from one step to the next, the mean of each repetition. ``last_s``: how long the
    last rank of a step waits at the barrier, which is what the barrier itself costs; None without
    a barrier, or with one rank. ``storage``: what the storage delivers; None: not measured.
    """

    run_id: str
    hosts: int
    ranks: int
    batch_size: int
    busy_s: float
    cycles_s: tuple[float, ...]
    steps: Steps | None
    last_s: float | None = None
    storage: Band | None = None
    limits: HostLimits | None = None
    tokens: int = 1
    in_step: bool = True
    bytes_per_sample: float | None = None  # that the storage sends
    dataset_bytes: float | None = None
    shuffle: bool = True
    required: float = 0.9
    remarks: tuple[str, ...] = ()  # on what its figures are worth

    @property
    def per_host(self) -> float:
        return self.ranks / self.hosts

    @property
    def samples_per_s(self) -> float:
        return self.ranks * self.batch_size / float(np.median(self.cycles_s))

    @property
    def accelerator_utilization(self) -> float:
        return min(1.0, self.busy_s / float(np.median(self.cycles_s)))


def jobs_of(runs: Sequence[tuple[TrainingRecord, Events]]) -> tuple[RecordedJob, ...]:
    """The runs as jobs, the one with most hosts last. ``Events`` are empty if none were kept.

    Raises UsageError for runs that can't be predicted from, or that are not of one job.
    """
    first: tuple[TrainingRecord, dict[str, object]] | None = None
    found = []
    for doc, events in runs:
        _check(doc)
        asked = _question(doc)
        first = first or (doc, asked)
        for what, value in asked.items():
            if value != first[1][what]:
                raise UsageError(
                    f"runs {first[0].run_id} and {doc.run_id} have different {what}s: "
                    f"{first[1][what]} and {value}",
                    remedy="name runs that differ in their hosts and accelerators alone",
                )
        found.append(_job(doc, events))
    if not found:
        raise UsageError("no run was named", remedy="name a run directory, e.g. results/<run>")
    return tuple(sorted(found, key=lambda job: (job.hosts, job.ranks)))


def hosts_of(doc: TrainingRecord) -> int:
    return max(1, len(doc.job.hosts), len(doc.hosts))


def moved_per_sample(doc: TrainingRecord) -> float | None:
    """Bytes that the storage sends for a sample, with those that are read in vain."""
    size, read = bytes_per_sample(doc), doc.metrics.get("read_amplification")
    return size * read.median if size and read is not None and read.median > 0 else size


def _question(doc: TrainingRecord) -> dict[str, object]:
    workload = doc.job.workload
    return {
        "workload": workload.name,
        "batch size": workload.batch_size,
        "step time": workload.accelerator.step_time,
        "dataset": doc.job.dataset.name,
        "storage": doc.storage.url,
    }


def _check(doc: TrainingRecord) -> None:
    if doc.status != "ok":
        raise UsageError(
            f"run {doc.run_id} {'failed' if doc.status == 'failed' else 'was interrupted'}",
            remedy="name runs that ended well",
        )
    if doc.job.accelerators < hosts_of(doc):
        raise UsageError(
            f"run {doc.run_id} has {counted(doc.job.accelerators, 'accelerator')} on "
            f"{counted(hosts_of(doc), 'host')}",
            remedy="name runs with at least one accelerator on each host",
        )
    if is_null_accelerator(doc.job) or not doc.job.workload.batch_size:
        raise UsageError(
            f"the accelerators of run {doc.run_id} have no step time",
            remedy="name runs whose accelerator is emulated, recorded or a model",
        )


def _job(doc: TrainingRecord, events: Events) -> RecordedJob:
    hosts, round_steps = hosts_of(doc), max(1, doc.job.workers)
    series = [
        step_times(select(events, "measure", number), round_steps=round_steps)
        for number, repetition in enumerate(doc.job.repetitions)
        if repetition.complete and len(events.get("step", ()))
    ]
    series = [each for each in series if each]
    if not series:
        raise UsageError(
            f"run {doc.run_id} has no recorded steps to predict from",
            remedy="name a run directory with its events.parquet, whose repetitions are complete "
            "and longer than its loaders need to fill",
        )
    flat = [part for each in series for part in each]
    judged = judge(doc)
    evidence = reached(judged.evidence)
    sizes = [part.own_s.size for part in flat]
    busy_s = float(np.average([part.busy_s for part in flat], weights=sizes))
    if not busy_s > 0:
        raise UsageError(
            f"the steps of run {doc.run_id} have no busy time",
            remedy="name runs whose accelerator is emulated, recorded or a model",
        )
    return RecordedJob(
        run_id=doc.run_id,
        hosts=hosts,
        ranks=doc.job.accelerators,
        batch_size=doc.job.workload.batch_size or 1,
        busy_s=busy_s,
        cycles_s=tuple(_cycle_s(each) for each in series),
        steps=steps_of(flat, hosts=hosts, round_steps=round_steps),
        last_s=_barrier_s(doc, flat),
        storage=None if evidence.cached else _storage(judged, evidence),
        limits=_limits(doc, evidence, hosts),
        tokens=_tokens(doc),
        in_step=doc.job.workload.accelerator.sync != INDEPENDENT,
        bytes_per_sample=moved_per_sample(doc),
        dataset_bytes=_dataset_bytes(doc, evidence),
        shuffle=doc.job.workload.reader.shuffle,
        required=evidence.required,
        remarks=_remarks(doc, evidence.cached),
    )


def _remarks(doc: TrainingRecord, cached: str) -> tuple[str, ...]:
    found = []
    if cached:
        found.append(f"run {doc.run_id}: {cached}, so it does not tell what the storage delivers")
    if doc.validity == "invalid":
        rules = ", ".join(each.rule for each in doc.findings if each.level == "invalid")
        found.append(f"run {doc.run_id} is invalid: {rules}")
    return tuple(found)


def _cycle_s(series: Sequence[OwnStepTimes]) -> float:
    """From one step to the next: a rank's own step, and its wait for the others."""
    total = sum(
        float(each.own_s.sum()) + (0.0 if each.sync_s is None else float(each.sync_s.sum()))
        for each in series
    )
    return total / sum(each.own_s.size for each in series)


def _tokens(doc: TrainingRecord) -> int:
    """Batches under way in each rank: being computed on, accepted, and made by its workers."""
    workload = doc.job.workload
    made = doc.job.workers * max(1, workload.loader.prefetch_factor)
    return BUSY + workload.accelerator.staged + made


def _barrier_s(doc: TrainingRecord, series: Sequence[OwnStepTimes]) -> float | None:
    """The barrier's own cost: as measured apart on many hosts, or from the steps."""
    if not all(each.sync == "step" for each in doc.job.repetitions if each.complete):
        return None
    return _last_s(series) if doc.job.barrier_s is None else doc.job.barrier_s


def _last_s(series: Sequence[OwnStepTimes]) -> float | None:
    """The mean of the shortest wait of each step: that of the rank that came last."""
    waits = [
        float(each.sync_s.min(axis=0).mean())
        for each in series
        if each.sync_s is not None and len(each.own_s) > 1
    ]
    return max(0.0, mean(waits)) if waits else None


def _storage(judged: Judged, evidence: Evidence) -> Band | None:
    """What the storage delivers to the reads of this run, but at least what it delivered.

    What it delivered has the lowest and the highest repetition as its interval.
    """
    doc, supply = judged.record, supply_of(judged)
    if supply is None:
        return None
    rate = supply.value if supply.today is None else min(supply.today, supply.value)
    least, spread = evidence.measured or 0.0, doc.metrics.get("samples_per_s")
    slowest, fastest = (spread.min, spread.max) if spread is not None else (least, least)
    share = rate / supply.value if supply.value > 0 else 1.0
    low, high = (rate if end is None else end * share for end in (supply.low, supply.high))
    return Band(max(rate, least), max(min(low, rate), slowest), max(high, rate, fastest))


def _limits(doc: TrainingRecord, evidence: Evidence, hosts: int) -> HostLimits:
    def of_one(rate: float | None) -> float | None:
        return None if rate is None else rate / hosts

    return HostLimits(
        ranks=doc.job.accelerators / hosts,
        workers=doc.job.workers,
        cores=of_one(evidence.cores),
        prep=of_one(evidence.prep),
        loader=of_one(evidence.loader),
        cpu=of_one(evidence.cpu),
        computing=computing(evidence),
    )


def _dataset_bytes(doc: TrainingRecord, evidence: Evidence) -> float | None:
    samples, size = doc.job.dataset.samples, evidence.bytes_per_sample
    return float(samples * size) if samples and size else None

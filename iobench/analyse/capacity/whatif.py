"""Predict a recorded run under changes.

``models`` moves the ceilings. The result has the new verdict, and the error of the model on the
recorded run itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...errors import UsageError
from ...schema.job import LoaderFacts, WorkloadFacts
from ...schema.record import Summary, TrainingRecord
from ...schema.training import Ceiling, CeilingDetails, Verdict
from ...units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from ..verdict.bind import bind, verdict
from ..verdict.evidence import (
    AT_LIMIT,
    Evidence,
    gather,
    is_null_accelerator,
    step_time_s,
)
from ..verdict.rebuild import conclude
from ..verdict.sentence import sentence
from . import models
from .measured import known_latency, run_reads_in_flight, run_reads_per_sample


@dataclass(frozen=True, slots=True)
class Quantity:
    """A new value, or a factor on the recorded one (``2x``)."""

    value: float
    relative: bool = False

    def of(self, recorded: float | None, what: str) -> float:
        """The new value. Raises UsageError for a factor if there is no recorded value."""
        if not self.relative:
            return self.value
        if recorded is None:
            raise UsageError(
                f"the run recorded no {what} that can be multiplied by {self.value:g}",
                remedy="give the new value instead",
            )
        return self.value * recorded


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What changes; None keeps the recorded value."""

    storage_bandwidth: Quantity | None = None  # bytes/s
    latency: Quantity | None = None  # seconds of one read
    concurrency: Quantity | None = None  # reads in flight in each worker
    cache_bytes: int | None = None  # of this host
    pinned: bool = False  # the cache evicts nothing
    workers: Quantity | None = None  # of each accelerator
    accelerators: Quantity | None = None
    step_time: Quantity | None = None  # seconds
    # what the host's network sustains, if the storage is behind it
    network_bytes_per_s: float | None = None
    network_of: str = ""  # the instance that has this network

    @property
    def empty(self) -> bool:
        return self == Change(pinned=self.pinned)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The result of the models. Rates are in samples/s over all accelerators."""

    recorded: TrainingRecord
    document: TrainingRecord  # predicted ceilings, settings, metrics and verdict; no repetitions
    changes: tuple[str, ...]
    bases: tuple[str, ...]  # the models that were used, and the limits of their validity
    error: float | None  # (predicted - measured) / measured of the recorded run
    corrected_samples_per_s: float | None  # prediction if the model has the same error here


def what_if(doc: TrainingRecord, change: Change) -> Prediction:
    """Predict ``doc`` under ``change``.

    Raises UsageError for a change that is not valid, or a run without ceilings.
    """
    if change.empty:
        raise UsageError(
            "no change was given",
            remedy="give a change, e.g. --storage-bandwidth 2x or --workers 16",
        )
    doc = conclude(doc)
    before = gather(doc)
    if before.storage is None and before.prep is None and before.harness is None:
        raise UsageError(
            f"run {doc.run_id} measured no ceilings",
            remedy="name a run with calibration (not --calibration 0s)",
        )
    told: list[str] = []
    bases: list[str] = []
    settings = _settings(doc, change, told)
    ceilings = dict(doc.job.ceilings)
    for name, rate in _rates(doc, before, change, settings, told, bases).items():
        ceilings[name] = _moved(doc.job.ceilings.get(name, Ceiling()), rate, before)
    changed = doc.model_copy(update={"findings": []}).with_job(
        workload=settings.workload,
        accelerators=settings.ranks,
        loader=settings.loader,
        ceilings=ceilings,
        repetitions=[],
        find_max=None,
    )
    changed = changed.model_copy(update={"metrics": _metrics(changed)})
    error = before.predicted / before.measured - 1 if before.predicted and before.measured else None
    predicted = gather(changed).predicted
    return Prediction(
        recorded=doc,
        document=changed.with_job(verdict=_verdict(changed)),
        changes=tuple(told),
        bases=tuple(bases),
        error=error,
        corrected_samples_per_s=None
        if error is None or error <= -1 or predicted is None
        else predicted / (1 + error),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Settings:
    """The job's settings after the change, and the parts of the document that hold them."""

    ranks: int
    workers: int  # of each rank
    concurrency: int
    workload: WorkloadFacts
    loader: LoaderFacts

    @property
    def busy(self) -> int:
        """Processes that prepare samples: workers, or the ranks themselves."""
        return self.ranks * max(1, self.workers)

    @property
    def reads(self) -> int:
        return self.busy * self.concurrency


def _settings(doc: TrainingRecord, change: Change, told: list[str]) -> _Settings:
    before = gather(doc)
    workers = _whole(change.workers, before.workers / doc.job.accelerators, "workers", 0)
    ranks = _whole(change.accelerators, doc.job.accelerators, "accelerators", 1)
    concurrency = _whole(change.concurrency, before.concurrency, "reads in flight", 1)
    asked = doc.job.workload
    workload = asked.model_copy(
        update={
            "loader": asked.loader.model_copy(update={"workers": workers}),
            "reader": asked.reader.model_copy(update={"concurrency": concurrency}),
        }
    )
    if change.cache_bytes is not None:  # reads that a cache serves are not cold
        workload = workload.model_copy(update={"cache": "warm"})
    if change.workers is not None:
        told.append(
            f"{counted(workers, 'worker')} for each accelerator instead of "
            f"{before.workers // doc.job.accelerators}"
        )
    if change.accelerators is not None:
        told.append(
            f"{counted(ranks, 'accelerator')} on this host instead of {doc.job.accelerators}"
        )
    if change.concurrency is not None:
        told.append(
            f"{counted(concurrency, 'read')} in flight in each worker instead of "
            f"{before.concurrency}"
        )
    if change.step_time is not None:
        recorded = step_time_s(doc)
        if is_null_accelerator(doc) or recorded is None:
            raise UsageError(
                "the run's accelerator has no step time that can be changed",
                remedy="name a run with an emulated accelerator",
            )
        new = change.step_time.of(recorded, "step time")
        if new <= 0:
            raise UsageError(
                "the step time must be more than 0", remedy="write it like 100ms or 0.5x"
            )
        faster = asked.accelerator.model_copy(update={"step_time": new})
        workload = workload.model_copy(update={"accelerator": faster})
        told.append(f"a step time of {format_duration(new)} instead of {format_duration(recorded)}")
    return _Settings(
        ranks=ranks,
        workers=workers,
        concurrency=concurrency,
        workload=workload,
        loader=doc.job.loader.model_copy(update={"workers": workers}),
    )


def _whole(change: Quantity | None, recorded: float, what: str, least: int) -> int:
    if change is None:
        return int(recorded)
    value = change.of(recorded, what)
    if value != int(value) or not least <= value < 10**6:
        raise UsageError(
            f"the number of {what} must be a whole number of at least {least}, but is {value:g}"
        )
    return int(value)


def _rates(
    doc: TrainingRecord,
    before: Evidence,
    change: Change,
    after: _Settings,
    told: list[str],
    bases: list[str],
) -> dict[str, float]:
    """The known ceilings after the change, in samples/s."""
    busy_before = max(before.workers, before.accelerators)
    rates: dict[str, float] = {}
    factor, network = _bandwidth(before, change, told), _network(before, change, told)
    if before.raw is not None:
        rates["storage_raw"] = min(before.raw * factor, network)
    if before.fetch is not None:
        rates["fetch"] = _fetch(doc, before, change, after, factor, network, told, bases)
    elif change.latency is not None or change.cache_bytes is not None:
        raise UsageError(
            f"run {doc.run_id} measured no fetch ceiling, which latency and caches change",
            remedy="name a run that has one",
        )
    if before.prep is not None:
        rates["prep"] = models.prepared(
            before.prep, busy_before=busy_before, busy=after.busy, cores=before.cores
        )
    if before.harness is not None:
        rates["harness"] = models.handed_over(
            before.harness,
            ranks_before=before.accelerators,
            ranks=after.ranks,
            busy_before=busy_before,
            busy=after.busy,
            cores=before.cores,
        )
    if after.busy != busy_before:
        cores = "an unknown number of cores" if before.cores is None else f"{before.cores:g} cores"
        bases.append(
            f"prep: in proportion to {after.busy} processes instead of {busy_before}, at most one "
            f"for each of {cores} (Plumber)"
        )
    if before.accelerator is not None and before.per_accelerator is not None:
        step, recorded = after.workload.accelerator.step_time, step_time_s(doc)
        rates["accelerator"] = (
            before.per_accelerator * after.ranks * (recorded / step if step and recorded else 1.0)
        )
    return rates


def _network(before: Evidence, change: Change, told: list[str]) -> float:
    """Limit of the network in front of the storage in samples/s; infinite if none was given.

    Reads that this host's cache serves do not use the network.
    """
    if change.network_bytes_per_s is None:
        return math.inf
    if not before.bytes_per_sample:
        raise UsageError(
            "the run does not record the size of its samples, which a network's effect depends on"
        )
    told.append(
        "storage behind a network of "
        f"{format_rate(change.network_bytes_per_s)}"
        f"{f' ({change.network_of})' if change.network_of else ''}"
    )
    return change.network_bytes_per_s / before.bytes_per_sample


def _bandwidth(before: Evidence, change: Change, told: list[str]) -> float:
    if change.storage_bandwidth is None:
        return 1.0
    recorded = before.bytes_per_s(before.raw if before.raw is not None else before.fetch)
    new = change.storage_bandwidth.of(recorded, "storage bandwidth")
    if recorded is None or not 0 < new < 1e18:
        raise UsageError(
            "the storage bandwidth, recorded and new, must be more than 0",
            remedy="give e.g. 2x or 5GB/s, for a run that measured a bandwidth",
        )
    told.append(
        f"storage of {format_rate(new)} instead of {format_rate(recorded)} ({new / recorded:.3g} x)"
    )
    return new / recorded


def _fetch(
    doc: TrainingRecord,
    before: Evidence,
    change: Change,
    after: _Settings,
    factor: float,
    network: float,
    told: list[str],
    bases: list[str],
) -> float:
    assert before.fetch is not None
    requests, size = run_reads_per_sample(doc), before.bytes_per_sample
    latency, source = known_latency(doc)
    per_gb = doc.job.ceilings["fetch"].cpu_s_per_gb
    fetch = models.Fetch(
        rate=before.fetch,
        raw=before.raw,
        raw_at_limit=_raw_at_limit(doc, before),
        reads_per_sample=requests or 1.0,
        in_flight=run_reads_in_flight(doc),
        latency_s=latency,
        unloaded=bool(doc.storage.latency_s),
        cores=before.cores,
        cpu_s_per_sample=per_gb * size / 1e9 if per_gb and size else None,
    )
    new_latency = None
    if change.latency is not None:
        new_latency = change.latency.of(latency, "latency of one read")
        was = "an unknown latency" if latency is None else f"{format_duration(latency)} ({source})"
        told.append(f"{format_duration(new_latency)} for each read instead of {was}")
    stated = change.storage_bandwidth is not None and not change.storage_bandwidth.relative
    parts = models.fetch_parts(
        fetch, bandwidth=factor, stated=stated, reads=after.reads, latency_s=new_latency
    )
    if math.isfinite(network):
        parts["the network's baseline, above which a burst does not last,"] = network
    rate = min(parts.values())
    if not math.isfinite(rate):
        raise UsageError(
            "the run records nothing that limits the changed storage",
            remedy="give its bandwidth, e.g. --storage-bandwidth 5GB/s",
        )
    bases.append(_why_fetch(parts))
    if change.cache_bytes is None:
        return rate
    samples = doc.job.dataset.samples
    read = float(
        size * samples if size and samples else doc.job.dataset.stored_bytes or 0
    )  # of the columns that are read, which may be less than what is stored
    if not read:
        raise UsageError(
            f"run {doc.run_id} does not record the size of its dataset, which a cache's effect "
            "depends on"
        )
    memory = (
        fetch.client
        if math.isfinite(fetch.client)
        else max(known for known in (before.prep, before.harness, rate) if known)
    )
    kept, hits = models.with_cache(
        rate, memory=max(rate, memory), cached=change.cache_bytes / read, pinned=change.pinned
    )
    kind = "pinned" if change.pinned else "page"
    told.append(
        f"a {kind} cache of {format_bytes(change.cache_bytes)}, "
        f"{format_percent(min(1, change.cache_bytes / read))} of the dataset"
    )
    bases.append(
        f"cache: serves {format_percent(hits)} of the reads from the second epoch on; the first "
        f"still gets {_samples(rate)}"
    )
    if doc.job.loader.direct and not change.pinned:
        bases.append(
            "cache: the run read with O_DIRECT, which no page cache serves; this holds for "
            "reader.direct=false"
        )
    return kept


def _raw_at_limit(doc: TrainingRecord, before: Evidence) -> bool:
    """Whether the recorded raw rate is the limit of the storage.

    It is not if the reader measured it with more reads in flight, and the rate grew nearly in
    proportion.
    """
    more = doc.job.ceilings.get("storage_raw", Ceiling()).details.concurrency
    if not more or not before.raw or not before.fetch:
        return True
    return before.raw < AT_LIMIT * before.fetch * more / before.concurrency


def _why_fetch(parts: Mapping[str, float]) -> str:
    """A sentence on the part of the fetch model that is the limit."""
    bound = min(parts, key=lambda name: parts[name])
    known = ", ".join(
        f"{name} {_samples(value)}" for name, value in parts.items() if math.isfinite(value)
    )
    unknown = [name for name, value in parts.items() if not math.isfinite(value)]
    hint = f"; what {' and '.join(unknown)} would allow is not known" if unknown else ""
    return f"fetch: bound by {bound} (roofline and Little's law: {known}{hint})"


def _samples(rate: float) -> str:
    return f"{format_count(rate)} samples/s"


def _moved(ceiling: Ceiling, rate: float, before: Evidence) -> Ceiling:
    return ceiling.model_copy(
        update={
            "samples_per_s": rate,
            "bytes_per_s": before.bytes_per_s(rate),
            "how": f"modelled; {ceiling.how}",
            "details": CeilingDetails(),
        }
    )


def _metrics(doc: TrainingRecord) -> dict[str, Summary]:
    """Metrics that the roofline model predicts, in the form of measured ones, with n = 0."""
    evidence = gather(doc)
    if evidence.predicted is None:
        return {}
    figures = {"samples_per_s": evidence.predicted}
    if evidence.accelerator:
        figures["accelerator_utilization_sustained"] = min(
            1.0, evidence.predicted / evidence.accelerator
        )
    return {
        name: Summary(median=value, min=value, max=value, n=0) for name, value in figures.items()
    }


def _verdict(doc: TrainingRecord) -> Verdict:
    """The verdict on the predicted document.

    Its sentence does not mention raw storage, which only a measurement can know.
    """
    found, evidence = verdict(doc), gather(doc)
    binds, reason = bind(evidence)
    unseen = replace(evidence, raw=None) if evidence.fetch is not None else evidence
    told = sentence(unseen, binds, reason, found.headroom, found.accelerators_fed)
    advice = [
        each.model_copy(update={"basis": f"of the modelled ceilings: {each.basis}"})
        for each in found.advice
    ]
    return found.model_copy(
        update={"sentence": told, "advice": advice, "measured_samples_per_s": None}
    )

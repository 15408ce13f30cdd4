"""The changes of a what-if question, and how they move the ceilings of a recorded run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...base.errors import UsageError
from ...base.units import (
    Quantity,
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from ...judge.changes_storage import gain_of_reader
from ...judge.criteria import computing
from ...judge.evidence import Evidence
from ...judge.figures.in_flight import run_reads_in_flight, run_reads_per_sample
from ...judge.judged import is_null_accelerator, judge, step_time_s
from ...record.job import LoaderFacts, WorkloadFacts
from ...record.run import TrainingRecord
from ...record.training import Ceiling, CeilingDetails
from .hosts import HostsChange
from .jobs import hosts_of, moved_per_sample
from .measured import known_latency
from .sizing import (
    SEEN,
    Fetch,
    fetch_parts,
    handed_over,
    page_cache_hits,
    pinned_hit_rate,
    prepared,
    with_cache,
)

MAX_COUNT = 10**6 - 1
"""Largest number of workers, accelerators or reads in flight."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What changes; None keeps the recorded value."""

    storage_bandwidth: Quantity | None = None  # bytes/s
    latency: Quantity | None = None  # seconds of one read
    concurrency: Quantity | None = None  # reads in flight in each worker
    cache_bytes: int | None = None  # of each host
    pinned: bool = False  # the cache evicts nothing
    workers: Quantity | None = None  # of each accelerator
    accelerators: Quantity | None = None
    step_time: Quantity | None = None  # seconds
    # what each host's network sustains, if the storage is behind it
    network_bytes_per_s: float | None = None
    network_of: str = ""  # the instance that has this network
    more: HostsChange | None = None  # the job on other hosts, without any of the changes above

    @property
    def empty(self) -> bool:
        return self == Change(pinned=self.pinned)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a prediction is based on, one line each."""

    changes: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)  # that were used, with their validity


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The job's settings after the change, and the parts of the document that hold them."""

    ranks: int
    workers: int  # of each rank
    reads: int  # in flight at most, over all ranks
    workload: WorkloadFacts
    loader: LoaderFacts

    @property
    def busy(self) -> int:
        """Processes that prepare samples: workers, or the ranks themselves."""
        return self.ranks * max(1, self.workers)


def changed_settings(doc: TrainingRecord, change: Change, why: Explanation) -> Settings:
    """The settings under ``change``. Raises UsageError for a value that is not valid."""
    before = judge(doc).evidence
    workers = whole(change.workers, before.workers / doc.job.accelerators, "workers", 0)
    ranks = whole(change.accelerators, doc.job.accelerators, "accelerators", 1)
    concurrency = whole(
        change.concurrency, before.job.workload.reader.concurrency, "reads in flight", 1
    )
    asked = doc.job.workload
    workload = asked.model_copy(
        update={
            "loader": asked.loader.model_copy(update={"workers": workers}),
            "reader": asked.reader.model_copy(update={"concurrency": concurrency}),
        }
    )
    if change.cache_bytes is not None and _hit_rate(doc, before, change) >= 1:
        # From the second epoch on the cache serves all reads; a smaller one leaves some to storage.
        workload = workload.model_copy(update={"cache": "warm"})
    if change.workers is not None:
        why.changes.append(
            f"{counted(workers, 'worker')} for each accelerator instead of "
            f"{before.workers // doc.job.accelerators}"
        )
    if change.accelerators is not None:
        here = "these hosts" if hosts_of(doc) > 1 else "this host"
        why.changes.append(
            f"{counted(ranks, 'accelerator')} on {here} instead of {doc.job.accelerators}"
        )
    if change.concurrency is not None:
        why.changes.append(
            f"{counted(concurrency, 'read')} in flight in each worker instead of "
            f"{before.job.workload.reader.concurrency}"
        )
    if change.step_time is not None:
        recorded = step_time_s(doc)
        if is_null_accelerator(doc.job) or recorded is None:
            raise UsageError(
                "the accelerator of this run has no step time that could be changed",
                remedy="name a run with an emulated accelerator",
            )
        new = change.step_time.of(recorded, "step time")
        if new <= 0:
            raise UsageError(
                f"the step time must be more than 0, but is {new:g} s",
                remedy="give e.g. 100ms or 0.5x",
            )
        faster = asked.accelerator.model_copy(update={"step_time": new})
        workload = workload.model_copy(update={"accelerator": faster})
        why.changes.append(
            f"a step time of {format_duration(new)} instead of {format_duration(recorded)}"
        )
    return Settings(
        ranks=ranks,
        workers=workers,
        reads=run_reads_in_flight(doc, concurrency=concurrency, workers=workers, ranks=ranks),
        workload=workload,
        loader=doc.job.loader.model_copy(update={"workers": workers}),
    )


def whole(change: Quantity | None, recorded: float, what: str, least: int) -> int:
    """A changed number, which is at least ``least``. Raises UsageError."""
    if change is None:
        return int(recorded)
    value = change.of(recorded, what)
    if value != int(value) or not least <= value <= MAX_COUNT:
        raise UsageError(
            f"the number of {what} must be a whole number from {least} to {MAX_COUNT}, but is "
            f"{value:g}",
            remedy="give such a number, or a factor that results in one",
        )
    return int(value)


NETWORK = "the network (its baseline, without bursts)"


def moved_ceilings(
    doc: TrainingRecord, before: Evidence, change: Change, after: Settings, why: Explanation
) -> dict[str, Ceiling]:
    """All ceilings of ``doc``; those that were measured are moved by ``change``.

    Raises UsageError if the record lacks a figure that the change needs.
    """
    ceilings = dict(doc.job.ceilings)
    for name, rate in _rates(doc, before, change, after, why).items():
        ceilings[name] = _moved(doc.job.ceilings.get(name, Ceiling()), rate, before)
    return ceilings


def _rates(
    doc: TrainingRecord,
    before: Evidence,
    change: Change,
    after: Settings,
    why: Explanation,
) -> dict[str, float]:
    """The known ceilings after the change, in samples/s."""
    busy_before = max(before.workers, before.accelerators)
    rates: dict[str, float] = {}
    factor, network = _bandwidth(before, change, why), _network(doc, change, why)
    if before.raw is not None:
        rates["storage_raw"] = min(before.raw * factor, network)
    if before.fetch is not None:
        rates["fetch"] = _fetch(doc, before, change, after, factor, network, why)
    elif (
        change.latency is not None
        or change.cache_bytes is not None
        or change.concurrency is not None
    ):
        raise UsageError(
            f"run {doc.run_id} has no fetch ceiling, so the effect of a latency, a cache or reads "
            "in flight cannot be predicted",
            remedy="name a run that measured it",
        )
    elif before.raw is not None:
        why.models.append(
            "fetch: not measured; the raw rate of the storage stands in for it, which is an upper "
            "bound, and does not change with workers or accelerators"
        )
    if before.prep is not None:
        rates["prep"] = prepared(
            before.prep,
            busy_before=busy_before,
            busy=after.busy,
            cores=before.cores,
            computing=computing(before),
        )
    if before.loader is not None:
        rates["loader"] = handed_over(
            before.loader,
            ranks_before=before.accelerators,
            ranks=after.ranks,
            busy_before=busy_before,
            busy=after.busy,
            cores=before.cores,
        )
    if after.busy != busy_before:
        cores = "an unknown number of cores" if before.cores is None else f"{before.cores:g} cores"
        waits = 1 - computing(before)
        one = f"one that does not wait, as each does for {format_percent(waits)} of its time,"
        why.models.append(
            f"prep: in proportion to the processes that prepare samples, {after.busy} instead of "
            f"{busy_before}, at most {one if waits else 'one'} for each of {cores} (Plumber, MLSys "
            "2022)"
        )
    if before.accelerator is not None and before.per_accelerator is not None:
        step, recorded = after.workload.accelerator.step_time, step_time_s(doc)
        rates["accelerator"] = (
            before.per_accelerator * after.ranks * (recorded / step if step and recorded else 1.0)
        )
    return rates


def _network(doc: TrainingRecord, change: Change, why: Explanation) -> float:
    """Limit of the hosts' networks before the storage in samples/s; infinite if none was given.

    Reads that a host's cache serves do not use its network.
    """
    if change.network_bytes_per_s is None:
        return math.inf
    hosts, size = hosts_of(doc), moved_per_sample(doc)
    if not size:
        raise UsageError(
            "the run does not record the size of its samples, so the limit of a network "
            "cannot be computed",
            remedy="name a run that measured its fetch ceiling",
        )
    why.changes.append(
        "storage behind a network of "
        f"{format_rate(change.network_bytes_per_s)}"
        f"{f' ({change.network_of})' if change.network_of else ''}"
        f"{f', in each of {hosts} hosts' if hosts > 1 else ''}"
    )
    return hosts * change.network_bytes_per_s / size


def _bandwidth(before: Evidence, change: Change, why: Explanation) -> float:
    if change.storage_bandwidth is None:
        return 1.0
    recorded = before.bytes_per_s(before.raw if before.raw is not None else before.fetch)
    new = change.storage_bandwidth.of(recorded, "storage bandwidth")
    if recorded is None:
        raise UsageError(
            "this run measured no storage bandwidth that could be changed",
            remedy="name a run that measured its ceilings (without --calibration 0s)",
        )
    if not 0 < new < 1e18:
        raise UsageError(
            "the storage bandwidth must be more than 0 and less than 1e18 bytes/s, but is "
            f"{new:g} bytes/s",
            remedy="give e.g. 2x or 5GB/s",
        )
    why.changes.append(
        f"storage of {format_rate(new)} instead of {format_rate(recorded)} ({new / recorded:.3g} x)"
    )
    return new / recorded


def _fetch(
    doc: TrainingRecord,
    before: Evidence,
    change: Change,
    after: Settings,
    factor: float,
    network: float,
    why: Explanation,
) -> float:
    assert before.fetch is not None
    requests, size = run_reads_per_sample(doc), before.bytes_per_sample
    latency, source, alone = known_latency(doc)
    per_gb = doc.job.ceilings["fetch"].cpu_s_per_gb
    fetch = Fetch(
        rate=before.fetch,
        raw=before.raw,
        raw_at_limit=_raw_at_limit(doc, after.reads),
        reads_per_sample=requests or 1.0,
        in_flight=run_reads_in_flight(doc),
        latency_s=latency,
        unloaded=alone,
        cores=before.cores,
        cpu_s_per_sample=per_gb * size / 1e9 if per_gb and size else None,
    )
    new_latency = None
    if change.latency is not None:
        if change.latency.relative and fetch.at_limit and not alone:
            raise UsageError(
                f"run {doc.run_id} does not tell how long a read takes by itself: its reads waited "
                "for a storage that was busy",
                remedy="give it as a time, e.g. --latency 2ms",
            )
        new_latency = change.latency.of(latency, "latency of one read")
        was = "an unknown latency" if latency is None else f"{format_duration(latency)} ({source})"
        why.changes.append(f"{format_duration(new_latency)} for each read instead of {was}")
    stated = change.storage_bandwidth is not None and not change.storage_bandwidth.relative
    gain = _gain_of_reads(before, after.reads)
    parts = fetch_parts(
        fetch,
        bandwidth=factor,
        stated=stated,
        reads=after.reads,
        gain=gain,
        latency_s=new_latency,
    )
    curve = before.curve.curve if before.curve is not None else None
    if curve is not None and after.reads != before.in_flight and new_latency is None:
        parts[SEEN] = max(1.0, factor) * fetch.rate * gain
        most = max((each.in_flight for each in curve.points), default=0)
        if after.reads > most and curve.plateau_bytes_per_s is None:
            why.models.append(
                f"fetch: more than {counted(most, 'read')} in flight were not tried, and the rate "
                "still grew with them; what more of them bring is not known, and counts as nothing"
            )
    if math.isfinite(network):
        parts[NETWORK] = network
    rate = min(parts.values())
    if not math.isfinite(rate):
        raise UsageError(
            "this run does not show what would limit the changed storage",
            remedy="give its bandwidth, e.g. --storage-bandwidth 5GB/s",
        )
    why.models.append(_why_fetch(parts))
    if change.cache_bytes is None:
        return rate
    read = _bytes_read(doc, before)
    if not read:
        raise UsageError(
            f"run {doc.run_id} does not record the size of its dataset, so the effect of a cache "
            "cannot be predicted",
            remedy="leave out the cache, or name another run",
        )
    memory = (
        fetch.client
        if math.isfinite(fetch.client)
        else max(known for known in (before.prep, before.loader, rate) if known)
    )
    hits, hosts = _hit_rate(doc, before, change), hosts_of(doc)
    kept = with_cache(rate, memory=max(rate, memory), hits=hits)
    kind = "pinned" if change.pinned else "page"
    why.changes.append(
        f"a {kind} cache of {format_bytes(change.cache_bytes)}"
        f"{f' in each of {hosts} hosts' if hosts > 1 else ''}, "
        f"{format_percent(min(1, change.cache_bytes / read))} of the dataset"
    )
    why.models.append(
        f"cache: it serves {format_percent(hits)} of the reads from the second epoch on; the "
        f"first epoch is still limited to {_samples(rate)}"
    )
    if doc.job.loader.direct and not change.pinned:
        why.models.append(
            "cache: the run read with O_DIRECT, which bypasses the page cache; the prediction is "
            "for reader.direct=false"
        )
    return kept


def _gain_of_reads(before: Evidence, reads: float) -> float:
    """What so many reads in flight bring the reader, by the rule that advice has, too.

    Without a curve, they bring in proportion more, up to the raw rate, and fewer lose nothing.
    """
    gain = gain_of_reader(before, reads)
    if gain is None:
        return 1.0
    if before.curve is not None:
        return gain.value
    return max(1.0, min(gain.value, reads / before.in_flight))


def _bytes_read(doc: TrainingRecord, before: Evidence) -> float:
    """The bytes of an epoch, of the columns that are read alone; 0 if they are not known."""
    size, samples = before.bytes_per_sample, doc.job.dataset.samples
    return float(size * samples if size and samples else doc.job.dataset.stored_bytes or 0)


def _hit_rate(doc: TrainingRecord, before: Evidence, change: Change) -> float:
    """The share of the reads that the hosts' caches serve from the second epoch on."""
    read, hosts = _bytes_read(doc, before), hosts_of(doc)
    cached = (change.cache_bytes or 0) / read if read else 0.0
    if change.pinned:
        return pinned_hit_rate(cached, hosts=hosts)
    return page_cache_hits(cached, hosts=hosts, shuffle=doc.job.workload.reader.shuffle)


def _raw_at_limit(doc: TrainingRecord, reads: int) -> bool:
    """Whether the recorded raw rate is the limit of the storage for so many reads in flight.

    Its curve reached a plateau, or had as many reads in flight, and no number of them got more.
    """
    if doc.job.curve is None or doc.job.curve.curve.plateau_bytes_per_s is not None:
        return True
    return reads <= max((each.in_flight for each in doc.job.curve.curve.points), default=0)


def _why_fetch(parts: Mapping[str, float]) -> str:
    """A line on the part of the fetch model that is the limit."""
    bound = min(parts, key=lambda name: parts[name])
    known = ", ".join(
        f"{name} {_samples(value)}" for name, value in parts.items() if math.isfinite(value)
    )
    unknown = [name for name, value in parts.items() if not math.isfinite(value)]
    hint = f"; not known: the limit of {' and '.join(unknown)}" if unknown else ""
    return f"fetch: limited by {bound} (roofline model and Little's law: {known}{hint})"


def _samples(rate: float) -> str:
    return f"{format_count(rate)} samples/s"


def _moved(ceiling: Ceiling, rate: float, before: Evidence) -> Ceiling:
    return ceiling.model_copy(
        update={
            "samples_per_s": rate,
            "bytes_per_s": before.bytes_per_s(rate),
            "how": f"modelled; {ceiling.how}",
            "details": CeilingDetails(),
            "windows": None,
        }
    )

"""What a recorded run says about its storage.

This includes rates, latency, CPU time per byte, and how many accelerators of another job the
storage would feed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ...base.errors import UsageError
from ...base.units import counted, format_bytes, format_duration
from ...judge.evidence import Evidence
from ...judge.fed import StorageSupply, delivered
from ...judge.figures.in_flight import bytes_per_sample, run_reads_in_flight, run_reads_per_sample
from ...judge.judged import accelerators_fed, judge
from ...judge.statistics import of_all
from ...record.curve import CurvePoint, StorageCurve
from ...record.run import TrainingRecord
from ...record.training import Ceiling
from ...settings.dataset import DatasetSpec
from .jobs import hosts_of

SIMILAR = 2.0
"""Samples whose sizes differ by at most this factor are assumed to be read at the same rate."""

SAME = 0.01
"""Samples whose sizes differ by a smaller share are those of the run. A specification states the
mean of a distribution, and an expected share of blocks that are read in vain.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SizedJob:
    """The job that the measured storage is to feed."""

    spec: DatasetSpec
    bytes_per_sample: float
    samples_per_s_per_accelerator: float  # if it never waits
    accelerators: int
    hosts: int
    required: float
    amplification: float = 1.0  # bytes read over bytes of samples, over the same of the run
    margin: float = 1.0  # factor on the mean rate, for a storage that was measured by itself
    read_bytes: float | None = None  # of one request, on average; None: not known


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredStorage:
    """A storage as ``hosts`` hosts together measured it, in stored bytes/s, and what it would do.

    The low end of its interval is what the job can rely on: ``counted_bytes_per_s``.
    """

    run_id: str
    url: str
    hosts: int
    read_bytes_per_s: float  # of the plateau, else through the reader, or raw without that
    counted_bytes_per_s: float  # the low end of its interval, or the rate itself without one
    needed_bytes_per_s: float  # to compare with the line above
    with_margin: bool  # False: measured with the pipeline and its ranks, which had their losses
    low_bytes_per_s: float | None  # its interval
    high_bytes_per_s: float | None
    reads_in_flight: float  # that it takes
    by: str
    raw_bytes_per_s: float | None
    latency_s: float | None
    latency_from: str
    cpu_s_per_gb: float | None  # fetch, prep and loader together
    accelerators_fed: int  # if all hosts of the job together get that rate
    accelerators_fed_local: int  # if each of them gets by itself what each of these got
    missing_bytes_per_s: float  # in the first case; 0 if nothing is missing
    at_least: bool  # its curve reached no plateau, or had smaller reads than the job
    notes: tuple[str, ...]  # reasons why the figures may not be valid for the job


def measured_storage(doc: TrainingRecord, job: SizedJob) -> MeasuredStorage:
    """Compare ``doc``'s storage with ``job``. Raises UsageError without a storage ceiling."""
    judged = judge(doc)
    evidence, supply = judged.evidence, delivered(judged)
    rate = evidence.bytes_per_s(supply.value) if supply else None
    if rate is None or supply is None:
        raise UsageError(
            f"run {doc.run_id} measured neither the fetch ceiling nor raw storage",
            remedy="name a run that measured its ceilings (without --calibration 0s)",
        )
    by, high = _by(doc, evidence, supply), evidence.bytes_per_s(supply.high)
    low = rate if supply.low is None else evidence.bytes_per_s(supply.low) or 0.0
    alone = not _with_its_job(doc, supply)
    received = _received(doc)
    if alone and received is not None and received.low > low / job.margin:
        rate, low, alone = max(rate, received.middle), received.low, False
        by = "the run, whose accelerators received it"
    if high is not None and low >= max(high, rate):
        high = None  # no interval is not one of width zero
    size = job.bytes_per_sample * job.amplification
    own = bytes_per_sample(doc)
    if own is not None and abs(size / own - 1) < SAME:
        size = own
    latency = known_latency(doc)
    of_one = job.samples_per_s_per_accelerator * size * (job.margin if alone else 1.0)
    fed = accelerators_fed(low, of_one, job.required) or 0
    needed = job.required * job.accelerators * of_one
    smaller = _reads_ratio(doc, job) > SIMILAR
    unended = doc.job.curve is not None and doc.job.curve.curve.plateau_bytes_per_s is None
    return MeasuredStorage(
        run_id=doc.run_id,
        url=doc.storage.url or "",
        hosts=hosts_of(doc),
        read_bytes_per_s=rate,
        counted_bytes_per_s=low,
        needed_bytes_per_s=needed,
        with_margin=alone,
        low_bytes_per_s=None if low == rate and (supply.low is None or high is None) else low,
        high_bytes_per_s=None if high is None else max(high, rate),
        reads_in_flight=supply.reads_in_flight,
        by=by,
        raw_bytes_per_s=evidence.bytes_per_s(evidence.raw),
        latency_s=latency.seconds,
        latency_from=latency.source,
        cpu_s_per_gb=cpu_s_per_gb(doc),
        accelerators_fed=fed,
        accelerators_fed_local=job.hosts
        * (accelerators_fed(low / hosts_of(doc), of_one, job.required) or 0),
        missing_bytes_per_s=max(0.0, needed - low) if fed < job.accelerators else 0.0,
        at_least=supply.basis == "plateau" and (smaller or unended),
        notes=tuple(_notes(doc, job, curve=supply.basis == "plateau")),
    )


class _Received(NamedTuple):
    """What the accelerators of a run received, in stored bytes/s: median and least repetition."""

    middle: float
    low: float


def _received(doc: TrainingRecord) -> _Received | None:
    """None if it says nothing about the storage: not known, or a cache served the run."""
    found = doc.job.verdict.fed if doc.job.verdict else None
    summary = doc.metrics.get("samples_per_s")
    if found is None or found.accelerators is None or not found.basis or summary is None:
        return None
    evidence = judge(doc).evidence
    middle, low = evidence.bytes_per_s(summary.median), evidence.bytes_per_s(summary.min)
    return None if not summary.n or middle is None or low is None else _Received(middle, low)


def _with_its_job(doc: TrainingRecord, supply: StorageSupply) -> bool:
    """Whether the rate is what a whole job received: filling and waits for others are in it."""
    if supply.basis == "find-max":
        return True
    if doc.job.verdict is None or supply.basis == "plateau":
        return False
    between, today = judge(doc).evidence.between_saves, supply.today
    return today is not None and between is not None and math.isclose(today, between)


def _by(doc: TrainingRecord, evidence: Evidence, supply: StorageSupply) -> str:
    """What measured the storage's rate."""
    found = doc.job.verdict.fed if doc.job.verdict else None
    if supply.basis == "plateau":
        reads = counted(round(supply.reads_in_flight), "read")
        flat = doc.job.curve is None or doc.job.curve.curve.plateau_bytes_per_s is not None
        what = "plateau" if flat else "highest point"
        return f"the {what} of its curve, with {reads} in flight"
    if supply.basis == "find-max":
        return "--find-max"
    if doc.job.curve is not None and found is not None and found.basis == "plateau":
        return "the run, which starved"
    return "the reader" if evidence.fetch is not None else evidence.raw_source


def _notes(doc: TrainingRecord, job: SizedJob, *, curve: bool) -> list[str]:
    """``curve``: the storage's curve is what its rate rests on."""
    notes = []
    size, spec = bytes_per_sample(doc), doc.job.dataset.asked
    if size is not None and not 1 / SIMILAR <= size / job.bytes_per_sample <= SIMILAR:
        notes.append(
            "its samples have another size: small reads are slower than large ones, so its bytes/s "
            "may not apply to this job"
        )
    differs = [
        key
        for key in ("format", "content", "codec")
        if key in spec and spec[key] != getattr(job.spec, key)
    ]
    if differs:
        notes.append(f"its dataset differs in {', '.join(differs)}")
    if doc.job.workload.cache != "cold":
        notes.append(
            f"its setting of cache was '{doc.job.workload.cache}': it may have measured memory "
            "instead of storage"
        )
    broken = [finding.rule for finding in doc.findings if finding.level == "invalid"]
    if broken:
        notes.append(f"the run is INVALID ({', '.join(broken)})")
    ratio = _reads_ratio(doc, job)
    if curve and doc.job.curve is not None and not 1 / SIMILAR <= ratio <= SIMILAR:
        measured, wanted = doc.job.curve.curve.request_bytes, job.read_bytes or 0.0
        notes.append(
            f"it was measured with reads of {format_bytes(measured)}, and this job's have "
            f"{format_bytes(wanted)}: it may deliver {'more' if ratio > 1 else 'less'}"
        )
    if curve and doc.job.curve is not None:
        notes += [f"its curve: {note}" for note in _doubts(doc.job.curve.curve)]
    found = doc.job.verdict
    others = ("storage", "undecided", "checkpoint")  # the time of saves starves nobody
    if found is not None and found.starved and found.bottleneck not in others:
        notes.append(
            f"the run itself starved its {counted(doc.job.accelerators, 'accelerator')}, since "
            f"{found.bottleneck} is the bottleneck on its {counted(len(doc.hosts), 'host')}: what "
            "the storage would feed takes hosts that are fast enough"
        )
    return notes


def _reads_ratio(doc: TrainingRecord, job: SizedJob) -> float:
    """How much larger the job's reads are than those of the run's curve; 1: not known."""
    curve = doc.job.curve.curve if doc.job.curve is not None else None
    return job.read_bytes / curve.request_bytes if curve is not None and job.read_bytes else 1.0


def _doubts(curve: StorageCurve) -> Iterator[str]:
    """What the curve itself says against its rate."""
    yield from curve.notes
    if curve.plateau_bytes_per_s is None:
        yield f"no plateau was reached, since {curve.not_measured}, so there may be more"
    elif any(p.client for p in curve.points if p.in_flight >= (curve.knee_in_flight or 0)):
        yield "the CPU of the host that measured it was spent, so the storage may be faster"


def cpu_s_per_gb(doc: TrainingRecord) -> float | None:
    """CPU seconds per 1e9 stored bytes of fetch, prep and loader; None unless all are known.

    Work that the stages share is counted twice.
    """
    names = ("fetch", "prep", "loader")
    return of_all(sum, (doc.job.ceilings.get(each, Ceiling()).cpu_s_per_gb for each in names))


def known_latency_p99(doc: TrainingRecord) -> float | None:
    """The 99th percentile of one read's latency in seconds; None if it was not measured.

    It belongs to the median that ``known_latency`` returns.
    """
    if doc.storage.latency_s:
        stated = (doc.storage.model_extra or {}).get("latency_p99_s")
        return float(stated) if isinstance(stated, int | float) and stated > 0 else None
    if (first := _first_point(doc)) is not None and first.latency_p99_s:
        return max(0.0, first.latency_p99_s - _served_s(doc, first))
    return None


class ReadLatency(NamedTuple):
    """Seconds of one read, and where that is from; ``alone``: without any wait for others."""

    seconds: float | None
    source: str
    alone: bool


def known_latency(doc: TrainingRecord) -> ReadLatency:
    """How long one read takes, from the best evidence.

    That is, in this order: the latency that a simulated storage states; the median of the storage's
    curve with one read in flight, without the time that the storage is busy with a read where more
    of them get no more from it (a storage with more bandwidth takes less); Little's law on the
    fetch ceiling. The last one is reads in flight over reads/s, an upper bound that includes
    queueing and the pauses of the reader.
    """
    stated = doc.storage.latency_s
    if stated:
        return ReadLatency(stated, "as the storage states", alone=True)
    if (first := _first_point(doc)) is not None and first.latency_p50_s:
        each, served = " on each host" if first.in_flight > 1 else "", _served_s(doc, first)
        without = (
            f", less {format_duration(served)} that its plateau takes for it" if served else ""
        )
        return ReadLatency(
            max(0.0, first.latency_p50_s - served),
            f"the median with one read in flight{each}{without}",
            alone=True,
        )
    fetch, requests = judge(doc).evidence.fetch, run_reads_per_sample(doc)
    if fetch and requests:
        most = run_reads_in_flight(doc) / (fetch * requests)
        return ReadLatency(most, "at most, by Little's law from the fetch ceiling", alone=False)
    return ReadLatency(None, "", alone=False)


def _first_point(doc: TrainingRecord) -> CurvePoint | None:
    """The point of the storage's curve with one read in flight on each host, with its latency."""
    points = doc.job.curve.curve.points if doc.job.curve is not None else []
    few = max(1, len(doc.hosts))
    return next((each for each in points[:1] if each.in_flight <= few and each.latency_p50_s), None)


def _served_s(doc: TrainingRecord, first: CurvePoint) -> float:
    """Seconds that a storage takes for the reads of a point as fast as it can; 0: not known."""
    most = doc.job.curve.curve.plateau_reads_per_s if doc.job.curve is not None else None
    return 0.0 if most is None or not most.value else first.in_flight / most.value

"""Collect from a run document what the verdict and the rules need, with all rates in samples/s."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from ...schema.host import Host
from ...schema.job import UserFacts
from ...schema.record import Summary, TrainingRecord
from ...schema.training import Ceiling, MeasuredBy, Repetition
from ...schema.verdict import Estimate, RunCurve
from ...schema.workload import OWN_LOADER, USER_LOADER
from ...units import format_count, format_rate
from ..again import JobAgain, job_again
from ..compare.statistics import NOISE
from .lasting import Lasting, lasting
from .loader_waits import LoaderWaits, loader_waits
from .repeated import repeated
from .shares import Shares, shares_of

NOISE_OF_FILL = 0.05
"""The fill of a cut repetition that takes a smaller share of its time changes nothing."""

DRAINED = "a repetition has few batches beside those that were in flight as its steps began"
"""Why a cut repetition does not tell how busy the accelerators are."""

AT_LIMIT = 0.8
"""A reader that reaches this share of the rate of raw storage is limited by the storage.

Below it, the latency of its reads or their number in flight is the limit.
"""

IN_TURNS = 0.1
"""A run within this share of the serial rate has workers that fetch and prepare in turns."""

CPU_NEAR = 0.15
"""A run within this share of the CPU ceiling may be limited by the CPU."""

CPU_BUSY = 0.9
"""The CPU is spent if at least this share of it was busy during the repetitions."""

_BY_DECODING_COST = ("none", "lz4", "zstd:1", "gzip")
"""Codecs for records that do not name the cheaper ones, the cheapest first."""


_SOURCES: dict[MeasuredBy | None, str] = {
    "fio": "fio",
    "reader": "reads with more in flight",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Rates in samples/s over all accelerators; a figure that was not measured is None."""

    raw: float | None
    raw_by: MeasuredBy | None  # fio, or the reader with more reads in flight
    fetch: float | None
    prep: float | None
    # for a library: the rate of iobench's own loader in the same measurement
    own_prep: float | None
    harness: float | None
    cpu: float | None  # all stages together on this host's cores
    cpu_busy: float | None  # share of the usable cores during the repetitions
    # CPU seconds per sample of fetch and of prep, each measured alone
    cpu_costs: dict[str, float]
    accelerator: float | None  # what the accelerators demand
    measured: float | None  # after the fill, where ``utilization`` is
    saves: bool  # checkpoints were saved during loading; utilization leaves their time out
    # sustained: MLPerf's leaves out the first step, and so all prefetching during it. Where a
    # budget cut the repetitions: after their fill, which longer ones would hardly have
    utilization: float | None
    required: float
    accelerators: int
    bytes_per_sample: float | None  # stored
    cores: float | None  # that this process may use
    fetch_cores: float | None  # busy during the fetch calibration
    cold: bool
    workers: int  # of all ranks together; 0: the ranks load the data themselves
    concurrency: int
    kind: str  # of loader
    transport: str
    direct: bool | None
    mapped: bool  # the files are read out of a memory map
    codec: str
    cheaper_codecs: tuple[str, ...]  # with a lower decoding cost, the most expensive first
    decode: bool
    compress_ratio: float
    # (low, high) of fetch, prep and harness over their windows, where there are several
    intervals: dict[str, tuple[float, float]]
    shares: Shares  # where the time of the repetitions went
    # the share of the fill, where a budget cut the repetitions: no part of ``shares`` and ``gains``
    cut_fill: float
    # they look fed after it, but perhaps only by batches that were made during the fill
    drained: bool
    gains: dict[str, Estimate]  # of the stages that were left out
    curve: RunCurve | None  # of the storage; None: not measured
    samples: int | None  # in the dataset
    packed: bool | None  # several samples in a shard; None: not known
    access: str  # random, sequential or auto
    batch_size: int | None
    rank_steps: float | None  # of one rank in a repetition
    workload: str
    url: str
    epochs: int
    data: str  # name of the dataset
    reads_ahead: bool  # or would with a larger reader.concurrency
    # The most that the run keeps, and what its reader has for one batch
    reads_in_flight: float | None = None
    requests_per_batch: float | None = None
    cached: str = ""  # why the reads say nothing about the storage: a cache served them
    modelled: bool = False  # the figures are those of a what-if
    persistent: bool | None = None  # workers live over epochs
    max_steps: int | None = None  # of one rank, over all epochs: asked for, or fitted to a budget
    unsteady: float = 0.0  # the fastest repetition over the slowest one, less 1
    working: float | None = None  # share of the time in which workers made batches
    own: UserFacts | None = None  # what was seen of a loader of the user's own
    # The rate of each repetition falls, and stays low: ``measured`` and ``utilization`` are then
    # those after the fall, and ``mean_utilization`` is that of the whole time.
    lasting: Lasting | None = None
    mean_utilization: float | None = None
    # The user's own script trained, and no ceiling was measured; None: another run
    watched: LoaderWaits | None = None
    again: Callable[[], JobAgain] = JobAgain  # how the job is done again
    repeated: str = ""  # that the user's loader delivers samples more than once in an epoch

    @property
    def raw_source(self) -> str:
        """What measured raw storage, as a noun phrase that can begin a clause."""
        if self.modelled:
            return "raw storage, as predicted"
        return _SOURCES.get(self.raw_by, "the raw measurement")

    @property
    def storage(self) -> float | None:
        """What storage delivers: the fetch ceiling, or the raw one (which is higher) without it."""
        return self.fetch if self.fetch is not None else self.raw

    @property
    def per_accelerator(self) -> float | None:
        return self.accelerator / self.accelerators if self.accelerator is not None else None

    @property
    def predicted(self) -> float | None:
        """Rate of the roofline model: overlapping stages run at the speed of the slowest one.

        In a what-if, the rate that was predicted there.
        """
        if self.modelled:
            return self.measured
        known = [
            rate
            for rate in (self.storage, self.prep, self.harness, self.cpu, self.accelerator)
            if rate is not None
        ]
        return min(known, default=None)

    @property
    def serial(self) -> float | None:
        """Predicted rate if each worker does fetch, prep and hand-over one after the other.

        This is the lower extreme: no worker reads ahead.
        """
        if self.fetch is None or self.prep is None:
            return None
        turns = 1 / sum(
            1 / rate for rate in (self.fetch, self.prep, self.harness) if rate is not None
        )
        return turns if self.accelerator is None else min(turns, self.accelerator)

    @property
    def in_turns(self) -> bool:
        """Whether the workers did fetch and prep one after the other.

        The run was then within ``IN_TURNS`` of the serial rate, and far from the lowest ceiling.
        """
        return (
            not self.modelled
            and self.serial is not None
            and self.measured is not None
            and self.predicted is not None
            and abs(self.measured / self.serial - 1) <= IN_TURNS
            and self.measured < (1 - IN_TURNS) * self.predicted
        )

    @property
    def streams(self) -> int:
        """Processes that read: the workers of all ranks, or the ranks themselves."""
        return max(self.workers, self.accelerators)

    @property
    def in_flight(self) -> float:
        """Reads in flight of the run, as far as it is known: at most as many as were asked for."""
        if self.reads_in_flight is not None:
            return self.reads_in_flight
        if self.curve is not None and self.curve.in_flight:
            return self.curve.in_flight
        return float(self.streams * self.concurrency)

    @property
    def cpu_spent(self) -> bool:
        """Whether the CPU was busy, and the run as fast as all of its cores allow."""
        return (
            self.cpu is not None
            and self.measured is not None
            and self.measured >= (1 - CPU_NEAR) * self.cpu
            and self.cpu_busy is not None
            and self.cpu_busy >= CPU_BUSY
        )

    @property
    def fed(self) -> bool:
        """True if the accelerators were as busy as the workload requires, from the first read on.

        False also where their utilization was not measured.
        """
        return self.utilization is not None and self.utilization >= self.required

    @property
    def client_bound(self) -> bool:
        """True if reading alone needs the whole host, and storage is not known to be the limit."""
        if (
            self.fetch is None
            or not self.fetch_cores
            or not self.cores
            or self.fetch_cores < 0.9 * self.cores
        ):
            return False
        return self.raw is None or self.fetch < AT_LIMIT * self.raw

    def bytes_per_s(self, samples_per_s: float | None) -> float | None:
        return (
            None
            if samples_per_s is None or self.bytes_per_sample is None
            else samples_per_s * self.bytes_per_sample
        )

    def told(self, samples_per_s: float | None) -> str:
        """A rate in words: bytes/s, and samples/s where the bytes are known."""
        if samples_per_s is None:
            return "an unknown rate"
        moved = self.bytes_per_s(samples_per_s)
        samples = f"{format_count(samples_per_s)} samples/s"
        return samples if moved is None else f"{format_rate(moved)} ({samples})"


CHECKED = "iobench-check-"
"""In the names of the data that a check generates."""


def gather(doc: TrainingRecord) -> Evidence:
    """Collect the evidence in ``doc``. Missing keys become None, or the workload's own setting."""
    workload, loader, spec = doc.job.workload, doc.job.loader, doc.job.dataset.spec
    reader, settings = workload.reader, workload.loader
    size = bytes_per_sample(doc)
    fetch = doc.job.ceilings.get("fetch", Ceiling())
    step_time = workload.accelerator.step_time
    demand = _rate(doc, "accelerator", size)
    if step_time and workload.batch_size and workload.accelerator.kind != "null":
        # The specified step time is the demand; the calibration only checks it.
        demand = doc.job.accelerators * workload.batch_size / step_time
    utilization, measured = (
        doc.metrics.get("accelerator_utilization_sustained"),
        doc.metrics.get("samples_per_s"),
    )
    cpu, rate = fetch.cpu_s_per_gb, fetch.bytes_per_s
    costs, cores = _cpu_costs(doc, size), effective_cores(doc)
    done = [repetition for repetition in doc.job.repetitions if repetition.complete]
    modelled = measured is not None and measured.n == 0
    told = measured is not None and not modelled and doc.job.watched is None
    lasts = lasting(done) if told else None
    data, curve = doc.job.dataset, doc.job.curve
    shares, cut = shares_of(doc.job.repetitions), cut_by_budget(doc)
    fill = (shares.fill or 0.0) if cut else 0.0
    steps = median(each.steps for each in done) / doc.job.accelerators if done else None
    busy = _after(utilization.median, measured, lasts) if utilization else None
    if busy is not None:
        busy = min(1.0, busy / max(1e-9, 1 - fill))
    required = workload.required_accelerator_utilization
    made_after = _made_after_fill(doc, steps or 0.0)
    drained = fill > NOISE_OF_FILL and busy is not None and busy >= required > busy * made_after
    lasting_rate = lasts.after if lasts else measured.median if measured else None
    if lasting_rate is not None and lasts is None:
        lasting_rate /= max(1e-9, 1 - fill)
    found = Evidence(
        raw=_rate(doc, "storage_raw", size),
        raw_by=doc.job.ceilings.get("storage_raw", Ceiling()).by,
        fetch=_rate(doc, "fetch", size),
        prep=_rate(doc, "prep", size),
        own_prep=doc.job.ceilings.get("prep", Ceiling()).details.own_samples_per_s,
        harness=_rate(doc, "harness", size),
        cpu=_cpu(doc, costs, cores, size),
        cpu_busy=_cpu_busy(done, cores),
        cpu_costs=costs,
        accelerator=demand,
        measured=lasting_rate,
        saves=doc.job.saves is not None,
        utilization=None if drained else busy,
        required=required,
        accelerators=doc.job.accelerators,
        bytes_per_sample=size,
        cores=cores,
        fetch_cores=cpu * rate / 1e9 if cpu is not None and rate is not None else None,
        cold=workload.cache == "cold",
        workers=doc.job.workers * doc.job.accelerators,
        concurrency=reader.concurrency,
        kind=loader.kind or settings.kind or OWN_LOADER,
        transport=str(
            loader.transport if "transport" in loader.model_fields_set else settings.transport or ""
        ),
        direct=loader.direct,
        mapped=reader.mmap,
        codec=spec.codec,
        cheaper_codecs=_cheaper_codecs(doc, spec.codec),
        decode=reader.decode and spec.content != "raw",
        compress_ratio=spec.compress_ratio,
        intervals=_intervals(doc),
        shares=replace(shares, fill=None) if cut else shares,
        cut_fill=fill,
        drained=drained,
        gains={
            each.stage: _beside(each.stage, each.gain, lasts)
            for each in doc.job.knock_outs
            if each.gain is not None and each.gain.value > 0 and not (each.stage == "fill" and cut)
        },
        curve=curve if curve is not None and curve.curve.points else None,
        samples=data.samples,
        packed=data.samples > data.shards if data.samples and data.shards else None,
        access=loader.access or reader.access,
        batch_size=workload.batch_size,
        rank_steps=steps,
        workload=workload.name,
        url=doc.storage.url or "",
        epochs=workload.epochs,
        data=spec.name,
        reads_ahead=(loader.kind or settings.kind or OWN_LOADER) == OWN_LOADER
        and not data.blocks
        and reader.read_ahead is not False,
        modelled=modelled,
        persistent=settings.persistent_workers,
        max_steps=workload.max_steps,
        unsteady=_unsteady(done),
        working=_working(done),
        own=loader.user if loader.kind == USER_LOADER else None,
        lasting=lasts,
        mean_utilization=utilization.median if utilization else None,
        watched=loader_waits(doc),
        again=partial(job_again, doc),
        repeated=several.evidence if (several := repeated(doc)) is not None else "",
    )
    return (
        _as_ceilings_allow(found, made_after) if fill > NOISE_OF_FILL and lasts is None else found
    )


def _as_ceilings_allow(found: Evidence, made_after: float) -> Evidence:
    """The evidence of cut repetitions, whose rate after the fill batches from the fill may raise.

    ``made_after``: the smallest share of these batches that can't be from the fill. Where they came
    faster than the lowest ceiling allows, that ceiling is what lasts, as far as that share allows.
    """
    # That of the CPU comes from these repetitions, too.
    rate, lowest, busy = found.measured, replace(found, cpu=None).predicted, found.utilization
    if not rate or lowest is None:
        return found
    lasts = min(rate, max(lowest, rate * max(made_after, 1 - found.cut_fill)))
    busy = None if busy is None else busy * lasts / rate
    return replace(found, measured=lasts, utilization=busy)


def _after(utilization: float, measured: Summary | None, lasts: Lasting | None) -> float:
    """The utilization after a lasting fall: accelerators are as busy as batches arrive."""
    if lasts is None or measured is None or not measured.median:
        return utilization
    return min(1.0, utilization * lasts.after / measured.median)


def _beside(stage: str, gain: Estimate, lasts: Lasting | None) -> Estimate:
    """A gain over the rate that lasts.

    Rounds compare whole repetitions. Without the storage there is no fall, so it brings more
    over the rate after the fall; without another stage the storage still falls.
    """
    if lasts is None or stage != "storage" or (gain.low or gain.value) <= 1 + NOISE:
        return gain
    ends = (gain.value, gain.low, gain.high)
    value, low, high = (None if each is None else each / lasts.share for each in ends)
    return Estimate(value=value or gain.value, low=low, high=high, n=gain.n)


def _unsteady(done: Sequence[Repetition]) -> float:
    rates = [each.samples_per_s for each in done if each.samples_per_s]
    return max(rates) / min(rates) - 1 if rates else 0.0


def _made_after_fill(doc: TrainingRecord, steps: float) -> float:
    """The smallest share of the batches after the fill that can't have been made during it.

    A rank had no more than its batches in flight then. ``steps``: of a rank.
    """
    workers = max(1, doc.job.workers)
    prefetch = max(1, doc.job.workload.loader.prefetch_factor)
    after = steps - workers
    return max(0.0, 1 - workers * prefetch / after) if after > 0 else 0.0


def cut_by_budget(doc: TrainingRecord) -> bool:
    """Whether a budget ended the repetitions within their first epoch, or made the epochs short.

    What the fill of an epoch costs is then a matter of the budget, and says nothing of the job. The
    data that a check generates is as large as its time allows.
    """
    if CHECKED in (doc.storage.url or ""):
        return True
    job, batch = doc.job, doc.job.workload.batch_size
    samples = job.dataset.samples
    if job.fitted is None or not batch or not samples or not job.repetitions:
        return False
    epoch = math.ceil(samples / job.accelerators / batch)
    return median(each.steps for each in job.repetitions) / job.accelerators < epoch


def _working(done: Sequence[Repetition]) -> float | None:
    """Share of the time in which the workers read or prepared; None: not known."""
    known = [
        each.worker_time.read + each.worker_time.prep
        for each in done
        if each.worker_time is not None
        and each.worker_time.read is not None
        and each.worker_time.prep is not None
    ]
    return median(known) if known else None


def _intervals(doc: TrainingRecord) -> dict[str, tuple[float, float]]:
    """The intervals of the ceilings, by the stage that each of them limits."""
    found = {}
    for stage, name in (("storage", "fetch"), ("prep", "prep"), ("harness", "harness")):
        windows = doc.job.ceilings.get(name, Ceiling()).windows
        if windows is not None and windows.low is not None and windows.high is not None:
            found[stage] = (windows.low, windows.high)
    return found


def _cpu_costs(doc: TrainingRecord, size: float | None) -> dict[str, float]:
    """CPU seconds per sample of ``storage`` (fetch) and ``prep``, where both are known."""
    per_gb = {
        stage: doc.job.ceilings.get(name, Ceiling()).cpu_s_per_gb
        for stage, name in (("storage", "fetch"), ("prep", "prep"))
    }
    known = {stage: cost * size / 1e9 for stage, cost in per_gb.items() if cost and size}
    return known if len(known) == len(per_gb) else {}


def _cpu(
    doc: TrainingRecord, costs: dict[str, float], cores: float | None, size: float | None
) -> float | None:
    """The CPU ceiling in samples/s; from the costs of fetch and prep if it is not recorded.

    What prep costs includes the hand-over of its batches.
    """
    recorded = _rate(doc, "cpu", size)
    if recorded is not None or "cpu" in doc.job.ceilings:
        return recorded
    return cores / sum(costs.values()) if costs and cores else None


def _cpu_busy(done: Sequence[Repetition], cores: float | None) -> float | None:
    """Share of the usable cores that was busy, 0 to 1: by this run, or by all of the host."""
    own = [
        each.cpu_s / (each.wall_s * cores) for each in done if each.cpu_s and each.wall_s and cores
    ]
    host = [
        each.resources.cpu_busy
        for each in done
        if each.resources is not None and each.resources.cpu_busy is not None
    ]
    known = [median(shares) for shares in (own, host) if shares]
    return min(1.0, max(known)) if known else None


def _cheaper_codecs(doc: TrainingRecord, codec: str) -> tuple[str, ...]:
    """Codecs with a lower decoding cost, as recorded by the iobench of the run and its plug-ins."""
    known = doc.job.dataset.cheaper_codecs
    if known is not None:
        return tuple(known)
    # Older records do not have the list. _BY_DECODING_COST has the codecs of those versions.
    name = codec.partition(":")[0]
    names = [each.partition(":")[0] for each in _BY_DECODING_COST]
    return _BY_DECODING_COST[: names.index(name)][::-1] if name in names else ("none",)


def bytes_per_sample(doc: TrainingRecord) -> float | None:
    """Mean stored bytes of one sample, from the first source that has them.

    The sources are the dataset (unless only some columns are read), the fetch calibration, what
    the repetitions delivered, and the dataset's mean sample size.
    """
    stored, samples = doc.job.dataset.stored_bytes, doc.job.dataset.samples
    if stored and samples and not doc.job.workload.reader.columns:
        return stored / samples
    fetch = doc.job.ceilings.get("fetch", Ceiling())
    if fetch.bytes_per_s and fetch.samples_per_s:
        return fetch.bytes_per_s / fetch.samples_per_s
    done = [each for each in doc.job.repetitions if each.complete]
    samples, stored = sum(each.samples for each in done), sum(each.sample_bytes for each in done)
    if samples > 0 and stored > 0:
        return stored / samples
    return doc.job.dataset.sample_bytes_mean or None


def effective_cores(doc: TrainingRecord) -> float | None:
    """Cores that this run could use on all of its hosts; None if that of a host is not known.

    On each host they are the smallest of the host's, the affinity's and the quota's.
    """
    known = [_cores(host) for host in doc.hosts]
    return sum(filter(None, known)) if known and all(known) else None


def _cores(host: Host) -> float | None:
    limits = (host.cores, host.affinity_cores, host.cpu_quota_cores, host.effective_cores)
    return min((float(limit) for limit in limits if limit), default=None)


def step_time_s(doc: TrainingRecord) -> float | None:
    return doc.job.workload.accelerator.step_time


def is_null_accelerator(doc: TrainingRecord) -> bool:
    return doc.job.workload.accelerator.kind == "null"


def accelerators_fed(
    rate: float | None, per_accelerator: float | None, required: float
) -> int | None:
    """How many accelerators ``rate`` keeps at the utilization ``required`` (0 to 1).

    Each accelerator then consumes ``required`` of its full demand.
    """
    if rate is None or not per_accelerator:
        return None
    return math.floor(rate / (required * per_accelerator) + 1e-9)


def _rate(doc: TrainingRecord, name: str, size: float | None) -> float | None:
    """A ceiling in samples/s, or None if there is none or it is 0.

    A ceiling that is known only in bytes/s (from fio) is divided by ``size``, the stored bytes of
    a sample.
    """
    ceiling = doc.job.ceilings.get(name, Ceiling())
    if ceiling.samples_per_s:
        return ceiling.samples_per_s
    return ceiling.bytes_per_s / size if ceiling.bytes_per_s and size else None

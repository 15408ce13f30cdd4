"""Compute what storage must deliver for a number of accelerators, for ``iobench size``.

It is arithmetic on specifications, and on a recorded run if there is one. Required rates are those
at the required utilization: an accelerator that may wait 10 % of the time consumes 90 % of its full
demand. The rate to buy is higher by a margin (``margin``), and does not include caches, because in
the first epoch they are empty. Sources are given in ``ask.capacity.sizing``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...base.errors import UsageError
from ...base.units import format_duration
from ...judge.figures.in_flight import job_reads_in_flight
from ...judge.rules_data import MIN_STEPS
from ...judge.statistics import of_all
from ...record.packing import Layout
from ...record.run import TrainingRecord
from ...settings.dataset import DatasetSpec, expected_samples_per_shard, expected_stored_bytes
from ...settings.instances import Instance
from ...settings.workload import Workload
from . import sizing
from .margin import (
    Latencies,
    Margin,
    Pipeline,
    batch_lanes,
    batch_sizes,
    batch_waits,
    lognormal_sigma,
    margin,
)
from .measured import MeasuredStorage, SizedJob, known_latency, known_latency_p99, measured_storage

_NO_SAVES = sizing.Saves()


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """The question: accelerators that each have the workload's batch, step time and loader."""

    accelerators: int
    hosts: int = 1
    required: float | None = None  # utilization, 0 to 1; None: the workload's
    steps: int | None = None  # of an epoch; None: those of the dataset, but at least MIN_STEPS
    latency_s: float | None = None  # of one read, the median
    latency_p99_s: float | None = None
    # The storage reads whole blocks of so many bytes. None: 1 if ``run`` read objects, else 4 KiB
    alignment: int | None = None
    cache_bytes: int | None = None  # that each host can spare for data
    saves: sizing.Saves = _NO_SAVES
    gradient_bytes: int | None = None  # of the model, that all hosts exchange in each step
    instance: Instance | None = None  # the type of each host


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """Rates over all hosts, unless a name says otherwise.

    A figure that is not known is None, and ``not_measured`` gives the reason.
    """

    workload: str
    dataset: str
    accelerators: int
    hosts: int
    required_accelerator_utilization: float
    sample_bytes: float  # stored, of the columns that are read
    dataset_bytes: float
    dataset_steps: int  # of each accelerator in an epoch
    samples_per_shard: float
    access: str
    block_samples: float | None  # that share a block which is read as a whole
    read_amplification: float  # bytes read over bytes of samples
    demanded_samples_per_s: float  # if no accelerator ever waits
    demanded_read_bytes_per_s: float  # bytes of samples
    samples_per_s: float  # at the required utilization, like all figures below
    read_bytes_per_s: float  # the mean, with amplification
    margin: Margin
    buy_bytes_per_s: float | None  # with the margin
    buy_reads_per_s: float | None
    peak_read_bytes_per_s: float  # the most that the job asks for, if the storage gives it
    reads_per_s: float
    read_bytes: float  # of one request, on average
    opens_per_s: float  # shards
    latency_s: float | None
    latency_p99_s: float | None
    latency_from: str
    reads_in_flight: int | None  # needed for the rate to buy, or else for the mean
    reads_in_flight_asked: int  # the most that the workload's readers keep
    read_bytes_per_s_per_host: float  # of the rate to buy, like the network below
    network_bits_per_s_per_host: float  # incoming samples, payload only
    network: sizing.Network
    shuffle: bool
    page_cached: bool  # reads may go through the page cache
    cache: sizing.Cache | None
    cache_to_halve_bytes_per_host: (
        float  # page cache that halves the reads from the second epoch on
    )
    pinned_to_halve_bytes_per_host: float
    saves: sizing.Saves
    write_bytes_per_s: float | None  # while a checkpoint is being saved
    restore_bytes_per_s: float | None
    together_bytes_per_s: float | None  # reads to buy and writes at the same time
    # CPU seconds per second for reading, preparing and hand-over, without the training itself
    cores: float | None
    measured: MeasuredStorage | None
    not_measured: dict[str, str]
    instance: Instance | None


def requirement(
    workload: Workload,
    spec: DatasetSpec,
    demand: Demand,
    run: TrainingRecord | None = None,
    *,
    layout: Layout | None = None,
) -> Requirement:
    """What ``demand`` requires. If ``run`` is given, its storage is compared with that.

    ``layout``: that of the dataset's format; None: as far as the specification itself tells.
    Raises UsageError for a demand that is not valid, or an accelerator without a step time.
    """
    required, step_time = _checked(workload, demand), _step_time(workload)
    if layout is None:
        layout = Layout(blocks=spec.states_blocks, block_bytes=spec.block_size)
    per_shard = expected_samples_per_shard(spec)
    dataset_bytes = expected_stored_bytes(spec) * spec.samples
    alignment = _alignment(demand, run)
    reads = sizing.expected_reads(
        workload,
        spec,
        layout,
        stored_bytes=expected_stored_bytes(spec),
        alignment=alignment,
    )
    wanted_bytes = reads.sample_bytes * spec.samples  # that an epoch wants, and that caches hold
    demanded = sizing.demanded_samples_per_s(
        batch_size=workload.batch_size, step_time_s=step_time, accelerators=demand.accelerators
    )
    samples_per_s = required * demanded
    read_bytes_per_s = samples_per_s * reads.read_bytes
    latency, p99, latency_from = _latency(demand, run)
    pipeline = _pipeline(workload, spec, demand, layout, reads, step_time, latency, p99)
    found = margin(pipeline, required)
    factor = found.factor
    buy = None if factor is None else factor * read_bytes_per_s
    needed = read_bytes_per_s if buy is None else buy
    measured = None
    if run is not None:
        job = SizedJob(
            spec=spec,
            bytes_per_sample=reads.sample_bytes,
            samples_per_s_per_accelerator=demanded / demand.accelerators,
            accelerators=demand.accelerators,
            hosts=demand.hosts,
            required=required,
            amplification=reads.amplification / _amplification(run, spec, layout, alignment),
            margin=factor or 1.0,
            read_bytes=reads.read_bytes / reads.requests,
        )
        measured = measured_storage(run, job)
    requests_per_s = samples_per_s * reads.requests * (factor or 1.0)
    saves = demand.saves
    traffic = sizing.network(
        hosts=demand.hosts,
        read_bytes_per_s=needed,
        gradient_bytes=demand.gradient_bytes,
        steps_per_s=required / step_time,
        saves=saves,
    )
    mean_latency = None
    if latency is not None:
        mean_latency = latency * math.exp(lognormal_sigma(latency, p99) ** 2 / 2)
    shuffle = workload.reader.shuffle
    return Requirement(
        workload=workload.name,
        dataset=spec.name,
        accelerators=demand.accelerators,
        hosts=demand.hosts,
        required_accelerator_utilization=required,
        sample_bytes=reads.sample_bytes,
        dataset_bytes=dataset_bytes,
        dataset_steps=spec.samples // (workload.batch_size * demand.accelerators),
        samples_per_shard=per_shard,
        access="sequential" if reads.sequential else "random",
        block_samples=reads.block_samples,
        read_amplification=reads.amplification,
        demanded_samples_per_s=demanded,
        demanded_read_bytes_per_s=demanded * reads.sample_bytes,
        samples_per_s=samples_per_s,
        read_bytes_per_s=read_bytes_per_s,
        margin=found,
        buy_bytes_per_s=buy,
        buy_reads_per_s=None if buy is None else requests_per_s,
        peak_read_bytes_per_s=max(
            needed, demanded * reads.read_bytes, saves.restore_bytes_per_s or 0.0
        ),
        reads_per_s=samples_per_s * reads.requests,
        read_bytes=reads.read_bytes / reads.requests,
        opens_per_s=samples_per_s / per_shard
        if reads.sequential or per_shard <= 1
        else samples_per_s,
        latency_s=latency,
        latency_p99_s=p99,
        latency_from=latency_from,
        reads_in_flight=None
        if mean_latency is None
        else sizing.reads_in_flight(reads_per_s=requests_per_s, latency_s=mean_latency),
        reads_in_flight_asked=_asked(workload, layout, reads, demand.accelerators),
        read_bytes_per_s_per_host=needed / demand.hosts,
        network_bits_per_s_per_host=8 * needed / demand.hosts,
        network=traffic,
        shuffle=shuffle,
        page_cached=workload.reader.direct is False or bool(workload.reader.mmap),
        cache=sizing.cache_of(
            demand.cache_bytes,
            touched=wanted_bytes,
            hosts=demand.hosts,
            shuffle=shuffle,
            read_bytes_per_s=needed,
        ),
        cache_to_halve_bytes_per_host=sizing.cache_that_halves(
            wanted_bytes, hosts=demand.hosts, shuffle=shuffle
        ),
        pinned_to_halve_bytes_per_host=0.5 / demand.hosts * wanted_bytes,
        saves=saves,
        write_bytes_per_s=saves.write_bytes_per_s,
        restore_bytes_per_s=saves.restore_bytes_per_s,
        together_bytes_per_s=None
        if buy is None or saves.write_bytes_per_s is None
        else buy + saves.write_bytes_per_s,
        cores=measured.cpu_s_per_gb * samples_per_s * reads.sample_bytes / 1e9
        if measured and measured.cpu_s_per_gb is not None
        else None,
        measured=measured,
        not_measured=_reasons(found, latency, measured, saves),
        instance=demand.instance,
    )


def _step_time(workload: Workload) -> float:
    """Raises UsageError if there is none."""
    if workload.accelerator.step_time is None:
        raise UsageError(
            f"workload '{workload.name}' has no step time, so the demand of its "
            f"{workload.accelerator.kind} accelerator is not known",
            remedy="give one: --set accelerator.kind=emulated --set accelerator.step_time=100ms",
        )
    return workload.accelerator.step_time


def _reasons(
    found: Margin, latency: float | None, measured: MeasuredStorage | None, saves: sizing.Saves
) -> dict[str, str]:
    """Why figures are not known, by their names."""
    missing = {}
    if found.factor is None:
        missing["buy_bytes_per_s"] = _why_no_rate(found, latency)
    if latency is None:
        missing["reads_in_flight"] = (
            "no latency of a read was given: use --latency, or --from with a run that measured it"
        )
    if measured is None or measured.cpu_s_per_gb is None:
        missing["cores"] = (
            "no CPU time per byte was given: use --from with a run that measured fetch, prep and "
            "loader"
        )
    if saves.write_bytes_per_s is None:
        missing["write_bytes_per_s"] = "--checkpoint-bytes and --checkpoint-budget were not given"
    if saves.restore_bytes_per_s is None:
        missing["restore_bytes_per_s"] = "--checkpoint-bytes and --restore-budget were not given"
    return missing


def _pipeline(
    workload: Workload,
    spec: DatasetSpec,
    demand: Demand,
    layout: Layout,
    reads: sizing.Reads,
    step_time: float,
    latency: float | None,
    p99: float | None,
) -> Pipeline:
    """The job as ``pipeline`` simulates it."""
    reader, loader = workload.reader, workload.loader
    # A batch that is staged has left the loader's queue, and makes room for another one there.
    queue = loader.workers * loader.prefetch_factor + workload.accelerator.staged
    makers = max(1, loader.workers)
    ahead = reader.read_ahead is not False and not layout.blocks and loader.workers > 0
    if ahead and reads.per_batch < reader.concurrency:
        # Each worker reads several of its batches at once.
        makers *= min(loader.prefetch_factor, max(1, int(reader.concurrency // reads.per_batch)))
    steps = demand.steps
    if steps is None:
        steps = max(MIN_STEPS, spec.samples // (workload.batch_size * demand.accelerators))
    by_whole_blocks = layout.blocks and not reads.sequential
    latencies = Latencies(
        requests=reads.per_batch,
        concurrency=reader.concurrency,
        latency_s=latency or 0.0,
        latency_p99_s=p99,
    )
    return Pipeline(
        ranks=demand.accelerators,
        makers=makers,
        queue=queue,
        steps=steps,
        step_s=step_time,
        barrier=workload.accelerator.sync == "step",
        # The blocks of a batch are about as large as those of any other.
        sizes=np.ones(1) if by_whole_blocks else batch_sizes(spec.sample_size, workload.batch_size),
        waits_s=batch_waits(**latencies),
        **batch_lanes(**latencies),
    )


def _asked(workload: Workload, layout: Layout, reads: sizing.Reads, ranks: int) -> int:
    """The most reads in flight of the job's readers."""
    return job_reads_in_flight(
        concurrency=workload.reader.concurrency,
        workers=workload.loader.workers,
        ranks=ranks,
        requests_per_batch=reads.per_batch,
        reads_ahead=workload.reader.read_ahead is not False and not layout.blocks,
    )


def _why_no_rate(found: Margin, latency: float | None) -> str:
    """Why no storage is fast enough, in one line that goes on after "busy 90 % of the time"."""
    reached = (
        f"no storage is fast enough: one without any limit keeps them busy "
        f"{found.highest * 100:.3g} % of the time"
    )
    if found.queue == 0:
        return f"{reached}, since no worker reads ahead (loader.workers=0)"
    if latency is None:
        return f"{reached}, since the pipeline fills at the beginning of each epoch"
    return (
        f"{reached}, with reads that take {format_duration(latency)} and as many in flight as the "
        "readers keep, so raise reader.concurrency or loader.workers"
    )


def _checked(workload: Workload, demand: Demand) -> float:
    """Check ``demand`` and return the required utilization. Raises UsageError."""
    if demand.hosts > demand.accelerators:
        raise UsageError(
            f"there are more hosts ({demand.hosts}) than accelerators ({demand.accelerators})",
            remedy="give at least as many accelerators as hosts",
        )
    if (demand.latency_p99_s or math.inf) < (demand.latency_s or 0.0):
        raise UsageError(
            "--latency-p99 is less than --latency, the median",
            remedy="give e.g. --latency 5ms --latency-p99 20ms",
        )
    saves = demand.saves
    if (saves.every_s or math.inf) < (saves.budget_s or 0.0):
        raise UsageError(
            f"a checkpoint every {saves.every_s:g} s can't take {saves.budget_s:g} s each",
            remedy="raise --checkpoint-every, or lower --checkpoint-budget",
        )
    if demand.required is None:
        return workload.required_accelerator_utilization
    return demand.required


def _alignment(demand: Demand, run: TrainingRecord | None) -> int:
    """Bytes of the blocks that the storage reads."""
    if demand.alignment is not None:
        return demand.alignment
    objects = run is not None and run.storage.page_cache is False and not run.job.loader.direct
    return 1 if objects else sizing.ALIGNMENT


def _amplification(run: TrainingRecord, spec: DatasetSpec, layout: Layout, alignment: int) -> float:
    """Bytes that the storage read for those of samples in the run, counted as those of the job.

    As recorded where its data has no specification. A buffered read is recorded without the rest of
    its blocks.
    """
    asked = run.job.dataset.spec
    if asked is None:
        known = run.metrics.get("read_amplification")
        return known.median if known is not None and known.median > 0 else 1.0
    if asked.format != spec.format:
        layout = Layout(blocks=asked.states_blocks, block_bytes=asked.block_size)
    stored = expected_stored_bytes(asked)
    return sizing.expected_reads(
        run.job.workload, asked, layout, stored_bytes=stored, alignment=alignment
    ).amplification


def _latency(demand: Demand, run: TrainingRecord | None) -> tuple[float | None, float | None, str]:
    """The median and the 99th percentile of one read's latency in seconds, and their source."""
    if demand.latency_s is not None:
        return demand.latency_s, demand.latency_p99_s, "as given"
    if run is not None:
        known = known_latency(run)
        if known.seconds is not None:
            return known.seconds, known_latency_p99(run), known.source
    return None, None, ""


@dataclass(frozen=True, kw_only=True, slots=True)
class JointDemand:
    """Sums over the jobs, each at its own rate; a figure that one of them lacks is None.

    The margins are those of the single jobs: that all of them need theirs at the same moment is
    the worst case.
    """

    accelerators: int
    dataset_bytes: float
    read_bytes_per_s: float  # the mean, at the required utilization
    buy_bytes_per_s: float | None
    buy_reads_per_s: float | None
    peak_read_bytes_per_s: float
    opens_per_s: float
    not_measured: dict[str, str]


def together(jobs: Sequence[Requirement]) -> JointDemand:
    """What the jobs need of one storage if they run at the same time."""
    reasons = [
        f"{job.workload}: {job.not_measured['buy_bytes_per_s']}"
        for job in jobs
        if job.buy_bytes_per_s is None
    ]
    missing = {"buy_bytes_per_s": "; ".join(reasons)} if reasons else {}
    datasets = {job.dataset: job.dataset_bytes for job in jobs}
    return JointDemand(
        accelerators=sum(job.accelerators for job in jobs),
        dataset_bytes=sum(datasets.values()),
        read_bytes_per_s=sum(job.read_bytes_per_s for job in jobs),
        buy_bytes_per_s=of_all(sum, (job.buy_bytes_per_s for job in jobs)),
        buy_reads_per_s=of_all(sum, (job.buy_reads_per_s for job in jobs)),
        peak_read_bytes_per_s=sum(job.peak_read_bytes_per_s for job in jobs),
        opens_per_s=sum(job.opens_per_s for job in jobs),
        not_measured=missing,
    )

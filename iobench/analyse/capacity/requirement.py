"""Compute what storage must deliver for a number of accelerators, for ``iobench size``.

It is arithmetic on specifications, and on a recorded run if there is one. Required rates are those
at the required utilization: an accelerator that may wait 10 % of the time consumes 90 % of its full
demand. The rate to buy does not include caches, because in the first epoch they are empty. Sources
are given in ``analyse.capacity.sizing``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import UsageError
from ...schema.dataset import (
    DatasetSpec,
    expected_samples_per_shard,
    expected_stored_bytes,
    share_of_columns,
)
from ...schema.record import TrainingRecord
from ...schema.workload import Workload
from ..verdict.in_flight import asked_reads_in_flight, reads_per_sample, reads_sequentially
from . import sizing
from .measured import Job, Measured, measured_storage


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """The question: accelerators that each have the workload's batch, step time and loader."""

    accelerators: int
    hosts: int = 1
    required: float | None = None  # utilization, 0 to 1; None: the workload's
    latency_s: float | None = None  # of one read
    cache_bytes: int | None = None  # that each host can spare for data
    checkpoint_bytes: int | None = None
    checkpoint_budget_s: float | None = None  # how long a checkpoint may stop training


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """Effect of memory on the hosts from the second epoch on.

    Every epoch is reshuffled over all hosts.
    """

    bytes_per_host: float
    share: float  # of one host's cache, relative to what an epoch reads of the dataset
    page_cache_hit_rate: float  # LRU; any host reads any sample
    page_cache_read_bytes_per_s: float  # left for storage
    pinned_hit_rate: float  # no eviction, and each host reads its own part
    pinned_read_bytes_per_s: float


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
    samples_per_shard: float
    access: str
    demanded_samples_per_s: float  # if no accelerator ever waits
    demanded_read_bytes_per_s: float
    samples_per_s: float  # at the required utilization, like all figures below
    read_bytes_per_s: float
    reads_per_s: float
    read_bytes: float  # of one request, on average
    opens_per_s: float  # shards
    latency_s: float | None
    latency_from: str
    reads_in_flight: int | None  # needed
    reads_in_flight_asked: int  # the most that the workload's readers keep
    read_bytes_per_s_per_host: float
    network_bits_per_s_per_host: float  # incoming, payload only
    cache: Cache | None
    cache_to_halve_bytes_per_host: (
        float  # page cache that halves the reads from the second epoch on
    )
    pinned_to_halve_bytes_per_host: float
    checkpoint_bytes: int | None
    checkpoint_budget_s: float | None
    write_bytes_per_s: float | None
    # CPU seconds per second for reading, preparing and hand-over, without the training itself
    cores: float | None
    measured: Measured | None
    not_measured: dict[str, str]


def requirement(
    workload: Workload,
    spec: DatasetSpec,
    demand: Demand,
    run: TrainingRecord | None = None,
) -> Requirement:
    """What ``demand`` requires. If ``run`` is given, its storage is compared with that.

    Raises UsageError for a demand that is not valid, or an accelerator without a step time.
    """
    required = _checked(workload, demand)
    step_time = workload.accelerator.step_time
    if step_time is None:
        raise UsageError(
            f"workload '{workload.name}' has no step time, so the demand of its "
            f"{workload.accelerator.kind} accelerator is not known",
            remedy="give one: --set accelerator.kind=emulated --set accelerator.step_time=100ms",
        )
    size, per_shard = expected_stored_bytes(spec), expected_samples_per_shard(spec)
    whole = size * spec.samples
    size *= share_of_columns(spec, workload.reader.columns)
    touched = size * spec.samples  # bytes that an epoch reads, and that caches hold
    appetite = sizing.demanded_samples_per_s(
        batch_size=workload.batch_size, step_time_s=step_time, accelerators=demand.accelerators
    )
    samples_per_s = required * appetite
    read = samples_per_s * size
    sequential = reads_sequentially(workload.reader.access, per_shard)
    requests = reads_per_sample(
        sample_bytes=size,
        block_size=workload.reader.block_size,
        batch_size=workload.batch_size,
        samples_per_shard=per_shard,
        sequential=sequential,
    )
    missing: dict[str, str] = {}
    measured = None
    if run is not None:
        job = Job(
            spec=spec,
            bytes_per_sample=size,
            samples_per_s_per_accelerator=appetite / demand.accelerators,
            accelerators=demand.accelerators,
            hosts=demand.hosts,
            required=required,
        )
        measured = measured_storage(run, job)
    latency, latency_from = _latency(demand, measured)
    if latency is None:
        missing["reads_in_flight"] = (
            "no latency of a read was given: use --latency, or --from with a run that measured it"
        )
    if measured is None or measured.cpu_s_per_gb is None:
        missing["cores"] = (
            "no CPU time per byte was given: use --from with a run that measured fetch, prep and "
            "harness"
        )
    checkpoint = (
        demand.checkpoint_bytes / demand.checkpoint_budget_s
        if demand.checkpoint_bytes and demand.checkpoint_budget_s
        else None
    )
    if checkpoint is None:
        missing["write_bytes_per_s"] = "--checkpoint-bytes and --checkpoint-budget were not given"
    return Requirement(
        workload=workload.name,
        dataset=spec.name,
        accelerators=demand.accelerators,
        hosts=demand.hosts,
        required_accelerator_utilization=required,
        sample_bytes=size,
        dataset_bytes=whole,
        samples_per_shard=per_shard,
        access="sequential" if sequential else "random",
        demanded_samples_per_s=appetite,
        demanded_read_bytes_per_s=appetite * size,
        samples_per_s=samples_per_s,
        read_bytes_per_s=read,
        reads_per_s=samples_per_s * requests,
        read_bytes=size / requests,
        opens_per_s=samples_per_s / per_shard if sequential or per_shard <= 1 else samples_per_s,
        latency_s=latency,
        latency_from=latency_from,
        reads_in_flight=None
        if latency is None
        else sizing.reads_in_flight(reads_per_s=samples_per_s * requests, latency_s=latency),
        reads_in_flight_asked=asked_reads_in_flight(
            workload,
            ranks=demand.accelerators,
            sample_bytes=size,
            samples_per_shard=per_shard,
            blocks=spec.states_blocks,
        ),
        read_bytes_per_s_per_host=read / demand.hosts,
        network_bits_per_s_per_host=8 * read / demand.hosts,
        cache=_cache(demand, touched, read),
        cache_to_halve_bytes_per_host=sizing.cache_for_hit_rate(0.5, hosts=demand.hosts) * touched,
        pinned_to_halve_bytes_per_host=0.5 / demand.hosts * touched,
        checkpoint_bytes=demand.checkpoint_bytes,
        checkpoint_budget_s=demand.checkpoint_budget_s,
        write_bytes_per_s=checkpoint,
        cores=measured.cpu_s_per_gb * read / 1e9
        if measured and measured.cpu_s_per_gb is not None
        else None,
        measured=measured,
        not_measured=missing,
    )


def _checked(workload: Workload, demand: Demand) -> float:
    """Check ``demand`` and return the required utilization. Raises UsageError."""
    for what, number in (("accelerators", demand.accelerators), ("hosts", demand.hosts)):
        if number < 1:
            raise UsageError(f"the number of {what} must be at least 1, but is {number}")
    if demand.hosts > demand.accelerators:
        raise UsageError(
            f"there are more hosts ({demand.hosts}) than accelerators ({demand.accelerators})",
            remedy="give at least as many accelerators as hosts",
        )
    required = (
        workload.required_accelerator_utilization if demand.required is None else demand.required
    )
    if not 0 < required <= 1:
        raise UsageError(
            f"the required utilization must be more than 0 and at most 1, but is {required:g}",
            remedy="write it like 0.9",
        )
    if (demand.checkpoint_bytes is None) != (demand.checkpoint_budget_s is None):
        raise UsageError(
            "a checkpoint needs both its bytes and the time for which it may stop the training",
            remedy="give e.g. --checkpoint-bytes 105GB --checkpoint-budget 1m",
        )
    for name, value in (
        ("--checkpoint-bytes", demand.checkpoint_bytes),
        ("--checkpoint-budget", demand.checkpoint_budget_s),
        ("--latency", demand.latency_s),
    ):
        if value is not None and value <= 0:
            raise UsageError(f"{name} must be more than 0, but is {value:g}")
    return required


def _latency(demand: Demand, measured: Measured | None) -> tuple[float | None, str]:
    if demand.latency_s is not None:
        return demand.latency_s, "as given"
    if measured is not None and measured.latency_s is not None:
        return measured.latency_s, measured.latency_from
    return None, ""


def _cache(demand: Demand, touched: float, read: float) -> Cache | None:
    if demand.cache_bytes is None:
        return None
    share = min(1.0, demand.cache_bytes / touched)
    page = sizing.expected_hit_rate(share, hosts=demand.hosts)
    pinned = sizing.pinned_hit_rate(share, hosts=demand.hosts)
    return Cache(
        bytes_per_host=demand.cache_bytes,
        share=share,
        page_cache_hit_rate=page,
        page_cache_read_bytes_per_s=(1 - page) * read,
        pinned_hit_rate=pinned,
        pinned_read_bytes_per_s=(1 - pinned) * read,
    )

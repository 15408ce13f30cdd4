"""The fingerprints in ``run.json`` of hosts and storage, and what each of many hosts did.

Counters of a host, its block device, its NFS client and its GPUs during a repetition.

The figures of GPUs are those of NVIDIA's driver, and model FLOPs utilization: none of them is
accelerator utilization. A value that was not measured is None, and ``not_measured`` has the reason.
"""

from __future__ import annotations

from pydantic import Field

from ..settings.base import Amount, Count, Figure, OpenRecord, Positive, Record, Share

SAMPLE_COLUMNS = {
    "phase": "str, that of the events: measure",
    "repetition": "uint16, from 0",
    "epoch": "uint16, from 0 within the repetition",
    "start_ns": "int64, when the sample begins, from the epoch's common start",
    "wall_ns": "int64, how long it is",
    "device_read_bytes": "float64, by the block device that holds the data, for all processes",
    "device_write_bytes": "float64",
    "device_busy_s": "float64, time with a request in flight",
    "network_received_bytes": "float64, by all network interfaces of the host but loopback",
    "network_sent_bytes": "float64",
    "loopback_bytes": "float64, over the loopback interface",
    "cpu_busy_s": "float64, sum over all cores of the host",
    "cpu_total_s": "float64, busy and idle, sum over all cores",
    "io_pressure_s": "float64, at least one task of the host waited for IO",
    "cpu_pressure_s": "float64, ... for a core",
    "memory_pressure_s": "float64, ... for memory",
    "nfs_reads": "float64, READ operations of the NFS mount that holds the data",
    "nfs_others": "float64, all of its other operations",
    "nfs_read_rtt_s": "float64, sum of the round trips of the READ operations",
    "memory_used_bytes": "float64, memory of the host that is not available, at the end",
    "page_cache_bytes": "float64, in the page cache of the host, at the end",
    "gpu_busy": "float64, mean over the GPUs: share of the time with a kernel running, at the end",
    "gpu_memory_bytes": "float64, in use, sum over the GPUs, at the end",
}
"""Columns of ``resources.parquet``: what the host did over time, while a repetition ran.

A value that was not measured is null. Counters are differences from the start to the end of the
sample, so that the sum of several samples is that of a longer one.
"""

GAUGES = ("memory_used_bytes", "page_cache_bytes", "gpu_busy", "gpu_memory_bytes")
"""Columns that are states at the end of a sample; of merged samples, the largest counts."""


class Resources(OpenRecord):
    """Differences of counters of the whole machine or the whole cgroup between two times.

    They include other processes: device traffic beyond the bytes that the run read or wrote is that
    of another process. ``not_measured`` has the reason for each None.
    """

    wall_s: Figure = 0.0  # between the two times; this includes the time to drop the cache
    throttled_periods: Count | None = None  # of the cgroup's CPU quota
    throttled_s: Figure | None = None
    device: str | None = None  # the kernel's name of the block device that holds the data
    device_read_bytes: Count | None = None
    device_write_bytes: Count | None = None
    device_busy: Share | None = None  # share of the time with a request in flight
    io_pressure_s: Figure | None = None  # at least one task of the host waited for I/O
    io_pressure_full_s: Figure | None = None  # all tasks waited for I/O
    cpu_busy: Share | None = None  # of all cores of the host
    # CPU time of iobench itself: of the process that counts, and of its children that have ended.
    own_cpu_s: Figure | None = None
    children_cpu_s: Figure | None = None
    not_measured: dict[str, str] = Field(default_factory=dict)


class NfsOperation(OpenRecord):
    """One kind of request of an NFS client (READ, GETATTR ...)."""

    ops: Count = 0
    retransmits: Count = 0
    rtt_ms: Figure | None = None  # mean, from sending to the reply
    execute_ms: Figure | None = None  # mean, from the call to its completion


class NfsTraffic(OpenRecord):
    """Differences of an NFS client's counters of one mount between two times (see host.nfs)."""

    mount_point: str = ""
    read_ops: Count = 0
    read_bytes: Count | None = None
    read_rtt_ms: Figure | None = None
    read_execute_ms: Figure | None = None
    written_bytes: Count | None = None
    retransmits: Count = 0
    timeouts: Count | None = None
    errors: Count | None = None
    operations: dict[str, NfsOperation] = Field(default_factory=dict)


class DeviceUse(OpenRecord):
    """What the counters of one GPU say of the time of a repetition, as means over it.

    ``utilization_nvml``: share of the time in which at least one kernel ran, whatever part of the
    GPU it used. ``sm_utilization``, ``tensor_utilization``: mean share of the SMs that were busy,
    and that did tensor operations; ``dram_utilization``: of the memory's bandwidth. The last three
    are NVML's GPM metrics, of Hopper GPUs and later.
    """

    uuid: str = ""
    name: str = ""
    seconds: Figure = 0.0  # that were watched
    utilization_nvml: Share | None = None
    sm_utilization: Share | None = None
    tensor_utilization: Share | None = None
    dram_utilization: Share | None = None
    power_w: Figure | None = None
    sm_clock_mhz: Figure | None = None
    memory_clock_mhz: Figure | None = None
    not_measured: dict[str, str] = {}


class ModelWork(OpenRecord):
    """How much a trained model computes for a sample, and what its devices can compute at most."""

    flops_per_sample: Figure | None = None  # forward and backward, matrix products and convolutions
    peak_flops: Positive | None = None  # FLOP/s of one device at the model's precision, dense
    peak_source: str = ""
    devices: Count | None = None  # on which the ranks train
    not_measured: dict[str, str] = {}


def mfu_of(work: ModelWork, samples_per_s: float | None) -> tuple[float | None, str]:
    """Model FLOPs utilization at a rate, or why it is not known.

    The operations of the model for all samples over what its devices can do at most in that time
    (Chowdhery et al., PaLM, 2022, appendix B; without operations that are done again).
    """
    missing = work.not_measured.get("flops_per_sample") or work.not_measured.get("peak_flops")
    if work.flops_per_sample is None or work.peak_flops is None or not work.devices:
        return None, missing or "the operations of the model are not recorded"
    if not samples_per_s:
        return None, "no rate was measured"
    return work.flops_per_sample * samples_per_s / (work.peak_flops * work.devices), ""


def cpu_limit_file(version: str | None) -> str:
    """The file of a cgroup with its CPU limit; ``version``: as it is recorded."""
    return "cpu.cfs_quota_us" if version in ("v1", "hybrid") else "cpu.max"


class Host(OpenRecord):
    """The machine (``host.host.fingerprint``). None: the machine does not report it."""

    node: str | None = None
    cpu_model: str | None = None
    cores: Amount | None = None
    affinity_cores: Amount | None = None  # on which the process may run
    affinity_cpus: str | None = None
    cgroup_version: str | None = None
    cpu_quota_cores: Figure | None = None  # None: no quota
    effective_cores: Figure | None = None  # the smallest of the three
    memory_bytes: Count | None = None
    cgroup_memory_limit_bytes: Count | None = None
    effective_memory_bytes: Count | None = None
    numa_nodes: Count | None = None
    transparent_hugepage: dict[str, str | None] | None = None
    hugetlb: dict[str, int | None] | None = None
    instance_provider: str | None = None
    instance_type: str | None = None
    instance_how: str | None = None
    interposed: dict[str, str] | None = None  # call -> library in place of the C library's
    kernel: str | None = None
    python: str | None = None
    iobench_version: str | None = None
    iobench_commit: str | None = None  # of the checkout that ran; None: installed, or an older one
    packages: dict[str, str | None] | None = None


class DeviceFacts(OpenRecord):
    """A block device below the file system."""

    name: str | None = None
    backing_file: str | None = None  # of a loop device: its image
    backing_direct: bool | None = None  # whether that is read past this host's page cache


class StorageFacts(OpenRecord):
    """The storage (``Storage.describe``). Each kind of storage adds other keys, which are kept."""

    scheme: str | None = None
    url: str | None = None
    page_cache: bool | None = None  # False: this host's page cache holds none of it
    is_network: bool | None = None  # another machine serves it; of a directory, by its file system
    endpoint: str | None = None  # of an object store, without credentials
    region: str | None = None
    server: str | None = None  # of a network file system with its own client
    # What a simulated storage was told to be; of one read: the median and the 99th percentile.
    bandwidth_bytes_per_s: Figure | None = None
    write_bandwidth_bytes_per_s: Figure | None = None
    iops: Figure | None = None
    latency_s: Figure | None = None
    latency_p99_s: Figure | None = None
    fs_type: str | None = None
    source: str | None = None  # what is mounted: a device, or a server's export
    mount_point: str | None = None
    mount_options: str | None = None
    devices: list[DeviceFacts] = []  # of a local file system, down to the disks
    client: str | None = None  # of an object store: the library that sends the requests
    client_version: str | None = None


class JobHost(OpenRecord):
    """One host of the job. Times are those of its monotonic clock against the first host's."""

    name: str = ""
    first_rank: Count = 0
    ranks: Count = 0
    # How far its clock is ahead, at the end of the run; None for the first host.
    offset_s: float | None = None
    offset_error_s: Figure | None = None  # half of the shortest round trip
    offsets: Count = 0  # how often the offset was measured
    drift: float | None = None  # its clock is faster by this share; None: not known
    machine: str | None = None  # the id of its boot: hosts with the same one are one machine


class HostTime(Record):
    """One host in one repetition."""

    host: Count  # its place in ``job.hosts``
    first_rank: Count = 0
    ranks: Count = 0
    samples: Count = 0
    # While ranks of all hosts had work, see ``Repetition.window_s``.
    samples_per_s: Figure | None = None
    read_bytes_per_s: Figure | None = None
    # Of the time of its ranks without start-up, waits for other ranks, and saves.
    own_samples_per_s: Figure | None = None
    first_done_s: Figure | None = None  # from the common start, sum over epochs: its first rank
    last_done_s: Figure | None = None
    residency_before: Figure | None = None  # the largest of its epochs
    start_skew_s: Figure | None = None  # the latest start of a rank, plus the error of the clock
    last_share: Figure | None = None  # of the steps: how often one of its ranks was the last
    resources: Resources | None = None  # counters of this host and its device
    nfs: NfsTraffic | None = None  # of its mount, if the data is on NFS

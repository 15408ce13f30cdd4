"""The fingerprints in ``run.json`` of hosts and storage, and what each of many hosts did."""

from __future__ import annotations

from ..settings.base import OpenRecord, Record
from ..settings.numbers import Amount, Count, Figure
from .resources import NfsTraffic, Resources


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

"""The fingerprints in ``run.json`` of the host and of the storage of a run."""

from __future__ import annotations

from .base import OpenRecord
from .numbers import Amount, Count, Figure


def cpu_limit_file(version: str | None) -> str:
    """The file of a cgroup with its CPU limit; ``version``: as it is recorded."""
    return "cpu.cfs_quota_us" if version in ("v1", "hybrid") else "cpu.max"


class Host(OpenRecord):
    """The machine (``measure.host.fingerprint``). None: the machine does not report it."""

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

"""Counters of a host, its block device and its NFS client during a repetition."""

from __future__ import annotations

from pydantic import Field

from .base import OpenRecord
from .numbers import Count, Figure, Share

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
    """Differences of an NFS client's counters of one mount between two times (see measure.nfs)."""

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

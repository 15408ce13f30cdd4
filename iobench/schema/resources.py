"""Counters of a host, its block device and its NFS client during a repetition."""

from __future__ import annotations

from pydantic import Field

from .base import OpenRecord
from .numbers import Count, Figure, Share


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

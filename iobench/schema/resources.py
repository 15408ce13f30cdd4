"""What a host, its device and its NFS client did while a repetition ran."""

from __future__ import annotations

from pydantic import Field

from .base import OpenRecord
from .numbers import Count, Figure, Share


class Resources(OpenRecord):
    """Counters of the whole machine or the whole cgroup between two moments.

    They are not of this run alone: traffic of the device that exceeds the bytes that the run read
    or wrote was of another process. ``not_measured`` has the reason for each None.
    """

    wall_s: Figure = 0.0  # between the two moments; the cache is emptied within this time, too
    throttled_periods: Count | None = None  # of the cgroup's CPU quota
    throttled_s: Figure | None = None
    device: str | None = None  # the kernel's name of the block device that holds the data
    device_read_bytes: Count | None = None
    device_write_bytes: Count | None = None
    device_busy: Share | None = None  # share of the time with a request in flight
    io_pressure_s: Figure | None = None  # at least one task of the host waited for IO
    io_pressure_full_s: Figure | None = None  # all tasks did
    cpu_busy: Share | None = None  # of all cores of the host
    not_measured: dict[str, str] = Field(default_factory=dict)


class NfsOperation(OpenRecord):
    """One kind of request of an NFS client (READ, GETATTR ...)."""

    ops: Count = 0
    retransmits: Count = 0
    rtt_ms: Figure | None = None  # mean, from sent to answered
    execute_ms: Figure | None = None  # mean, from asked to done


class NfsTraffic(OpenRecord):
    """What an NFS mount did between two moments, by its client's counters (see measure.nfs)."""

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

"""What a run on many hosts records of each of them."""

from __future__ import annotations

from .base import OpenRecord, Record
from .numbers import Count, Figure
from .resources import NfsTraffic, Resources


class JobHost(OpenRecord):
    """One host of the job. Times are those of its monotonic clock against the first host's."""

    name: str = ""
    first_rank: Count = 0
    ranks: Count = 0
    # How far its clock is ahead, at the end of the run; None for the first host.
    offset_s: float | None = None
    offset_error_s: Figure | None = None  # half of the shortest round trip
    offsets: Count = 0  # how often the offset was measured
    drift: float | None = None  # its clock is faster by this share; None: not told
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

"""The storage curve: what a storage delivers with 1, 2, 4, ... reads in flight.

A value that was not measured is None, never 0. Rates are per second, times in seconds.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..settings.base import Count, Figure, Number, Record, RecordHead, Share

Order = Literal["random", "sequential"]
MeasuredWith = Literal["fio", "engine"]
"""fio on local files; the engine (threads of this process that call the storage) elsewhere."""

Bound = Literal[
    "latency",
    "metadata",
    "operations",
    "bandwidth",
    "operations or bandwidth",
    "stragglers",
    "client",
    "unknown",
]
"""What limits the rate at a number of reads in flight.

``metadata``: to open the files, without reading them, is hardly faster than the requests.
``stragglers``: few slow reads, for which the batches of a run wait; never of a point of a curve.
``client``: the CPU of this host, and not the storage. ``operations or bandwidth``: one of the two,
but the evidence does not tell which one. ``unknown``: more reads in flight were not measured.
"""

Spent = Literal["operations", "bandwidth", "metadata", "unknown"]

Operation = Literal["read", "open", "stat", "list"]
"""What a curve counts: reads, or opens, stats (of an object store: HEAD requests) and listings."""


class Rate(Record):
    """A rate and its 95 % interval over windows; low and high are None below two windows."""

    value: Figure
    low: Figure | None = None
    high: Figure | None = None
    windows: Count = 0


class CurvePoint(Record):
    """What was measured with one number of reads in flight."""

    in_flight: Number
    reads_per_s: Rate
    bytes_per_s: Rate
    latency_mean_s: Figure | None = None
    latency_p50_s: Figure | None = None
    latency_p99_s: Figure | None = None  # None also below 100 reads
    latency_p999_s: Figure | None = None  # None also below 1,000 reads
    reads: Count
    seconds: Figure
    disjoint: bool  # no earlier point has read any of these bytes
    cached_before: Share | None = None  # of these bytes in this host's page cache, before the point
    client_cpu_share: Figure | None = None  # of the CPU that the measuring program can use
    client: bool = False  # that CPU was spent, so the storage may be faster
    retries: Count = 0  # requests sent again, for whatever reason
    throttled: Count = 0  # of these, because the server asked to slow down


class StorageCurve(Record):
    """Throughput and latency of one kind of request over the number of reads in flight.

    Of an operation that reads nothing, it counts in the place of a read. A "byte" of a listing is
    one entry; of opens and stats it means nothing.
    """

    operation: Operation = "read"
    request_bytes: Number  # the median, where requests differ
    request_bytes_min: Number
    request_bytes_max: Number
    order: Order
    by: MeasuredWith
    how: str  # program, engine and cache, in words
    direct: bool
    points: list[CurvePoint] = []
    plateau_reads_per_s: Rate | None = None  # None: not reached, see not_measured
    plateau_bytes_per_s: Rate | None = None
    knee_in_flight: Number | None = None  # the fewest reads in flight within 5 % of the plateau
    bound: list[Bound] = Field(default=[], max_length=64)  # of each point
    stopped: str = ""  # why the curve ends where it does
    notes: list[str] = []
    not_measured: str = ""  # why there is no point, or no plateau


class ProbeHost(Record):
    """One of several hosts that probed a storage together.

    ``in_flight``: its reads in flight, at the knee of the curve of all hosts, or at its highest
    point. ``joint_``: while the others read as well; ``alone_``: while they did nothing.
    """

    name: str
    in_flight: Number
    joint_reads_per_s: Rate
    joint_bytes_per_s: Rate
    joint_latency_p50_s: Figure | None = None
    alone_reads_per_s: Rate | None = None  # None: see not_measured
    alone_bytes_per_s: Rate | None = None
    alone_latency_p50_s: Figure | None = None
    not_measured: str = ""  # why it was not measured alone


PROBE_VERSION = "1.0"

ProbeStatus = Literal["ok", "interrupted"]


class StorageProbe(RecordHead):
    """What ``iobench probe`` prints."""

    schema_version: str = PROBE_VERSION
    status: ProbeStatus = "ok"
    url: str
    dataset: str | None  # its name; None: the files of a directory without a dataset
    objects: Count
    bytes: Count
    budget_s: Figure
    took_s: Figure
    curves: list[StorageCurve]  # of the requests that were asked for
    large: StorageCurve | None = None  # of another size, to tell operations from bytes
    # Opens, stats and listings, if they were asked for.
    metadata: list[StorageCurve] = Field(default=[], max_length=8)
    spent: list[Spent] = []  # of each curve, at its plateau
    # Of the first curve, which is of all hosts together; empty where one host read.
    hosts: list[ProbeHost] = []
    notes: list[str] = []

"""What a serving run measured: the job of its record.

A *latency* is the time from the instant at which a request was meant to arrive until the end of its
step, however late the request was issued. A request that failed, or that no reader took in time,
has none. Its parts add up: waiting for one of the reads in flight, the read itself, waiting for an
accelerator and for the rest of its batch, the step, and waiting for the commit of its record where
a log is written and answers wait for it.
"""

from __future__ import annotations

from typing import Literal

from ..settings.base import Count, Duration, Few, Figure, Record, Share
from ..settings.scenario import Scenario
from .host import StorageFacts
from .job import DatasetFacts
from .verdict import Estimate

TrialKind = Literal["repetition", "without-storage", "without-log", "find-max", "recall"]
"""``without-storage``: the bytes come from memory. ``find-max``: a rate that was tried. ``recall``:
a point of an engine's curve, whose queries follow one another without arrivals."""

SERVED_COLUMNS = {
    "trial": "int32, place of the window in ``job.trials``",
    "intended_ns": "int64, when the request was meant to arrive, from the begin of its window",
    "taken_ns": "int64, when a reader was free for it; -1: none was in time",
    "issued_ns": "int64, when its read began; -1: it did not",
    "ready_ns": "int64, when its sample was in memory, or its read had failed; -1: neither",
    "failed": "uint8, 1 if its read failed",
    "logged_ns": "int64, when its record was committed to the log; -1: it was not",
}
"""The columns of a serving run's ``events.parquet``, one row for each request."""


class LatencyParts(Record):
    """Means of the parts of the latency, in seconds."""

    reader_wait_s: Figure = 0.0
    storage_s: Figure = 0.0
    accelerator_wait_s: Figure = 0.0
    step_s: Figure = 0.0
    log_wait_s: Figure = 0.0

    @property
    def total_s(self) -> float:
        return float(sum(getattr(self, name) for name in type(self).model_fields))


class RequestWindow(Record):
    """One window of requests, whatever they are.

    ``over`` is the share of all requests that took longer than the limit, failed, or were not
    taken; the window ``holds`` the limit if that is no more than the scenario allows. ``steady``:
    the latency of the last fifth of the requests is not above that of the first fifth, and no
    request was left out; None: too few requests to tell.
    """

    seed: int
    rate: Figure  # asked, requests/s
    seconds: Duration  # over which requests arrive
    requests: Few
    failed: Few = 0
    unserved: Few = 0
    offered_per_s: Figure | None = None  # requests that arrived, over the window
    requests_per_s: Figure | None = None  # until the last one was answered
    latency_mean_s: Figure | None = None
    latency_p50_s: Figure | None = None
    latency_p99_s: Figure | None = None
    latency_p999_s: Figure | None = None
    latency_max_s: Figure | None = None
    quantile_s: Figure | None = None  # at the scenario's quantile
    without_accelerator_s: Figure | None = None
    over: Share | None = None
    holds: bool | None = None
    growth: Figure | None = None  # mean latency of the last fifth over that of the first
    steady: bool | None = None
    late_p99_s: Figure | None = None  # what the client adds: late wake-ups of free readers
    cpu_share: Figure | None = None  # of one core, by this process
    bytes: Count = 0
    error: str = ""  # of the first request that failed


class ServedTrial(RequestWindow):
    """One window of requests for samples.

    ``without_accelerator_s``: the quantile of the limit if steps took no time, computed from the
    same reads and waits for the log.

    ``logged``: a log was written; the figures of ``log_`` are its own. Its backlog is records of
    answers that were not committed; it ``keeps_up`` if the time until a commit does not grow, and
    nothing was left. ``at_risk``: records of answers that a crash of the host would have lost, at
    the worst of some instants; ``volatile``: of these, committed ones. None: that can't be seen.
    """

    kind: TrialKind
    storage_p50_s: Figure | None = None
    storage_p99_s: Figure | None = None
    storage_max_s: Figure | None = None
    reads: Count | None = None  # nodes of an index that were read; None: a request is one sample
    nprobes: Count | None = None  # of an engine: partitions that a query looked into
    refine: Count | None = None
    recall: Share | None = None  # found of the exactly nearest vectors, mean over the queries
    recall_low: Share | None = None
    recall_high: Share | None = None
    reads_per_s: Figure | None = None
    read_bytes_per_s: Figure | None = None
    parts: LatencyParts = LatencyParts()
    slow_parts: LatencyParts = LatencyParts()  # of the slowest 1 % of the requests
    residency_before: Share | None = None
    residency_how: str = ""
    logged: bool = False
    log_records: Few = 0  # that were committed
    log_left: Few = 0  # that were not
    log_bytes: Count = 0
    log_commits: Few = 0
    log_objects: Few = 0  # or files
    log_objects_per_hour: Figure | None = None  # as many as at this rate without an end
    log_records_per_s: Figure | None = None
    log_commit_p50_s: Figure | None = None  # from the end of the step to the commit
    log_commit_p99_s: Figure | None = None
    log_backlog_max: Few | None = None
    log_backlog_end: Few | None = None  # when the last request arrived
    log_keeps_up: bool | None = None
    log_at_risk: Few | None = None
    log_volatile: Few | None = None


class FoundRate(Record):
    """The largest rate that holds the limit, in requests/s.

    Every window at ``low`` held it, and at ``high`` most of them did not; None: no such rate was
    tried. ``bound``: why the search ended before it knew both.
    """

    low: Figure | None = None
    high: Figure | None = None
    bound: str = ""


ServedBottleneck = Literal["storage", "accelerator", "log", "client", "inconclusive"]


class ServingVerdict(Record):
    """What the repetitions say together.

    ``gains``: how many times as long the requests at the quantile take as without a stage.
    ``log_adds_s``: what the log adds to them.
    """

    holds: bool | None
    bottleneck: ServedBottleneck
    gains: dict[str, Estimate] = {}
    log_adds_s: Estimate | None = None
    sentence: str = ""
    why: str = ""


class IndexFacts(Record):
    """The index of a real engine. ``built_s``: None if it was there before the run."""

    package: str
    bytes: Count
    built_s: Figure | None = None


class ServingRun(Record):
    """A serving run as the job of a run."""

    kind: Literal["serving"] = "serving"
    scenario: Scenario
    dataset: DatasetFacts
    rate: Figure | None = None  # of the repetitions; None: no rate that was tried held the limit
    direct: bool = False  # reads go past the page cache
    log: StorageFacts | None = None  # where the log is written
    index: IndexFacts | None = None
    arrivals_together: Share | None = None  # of a trace: arrivals at the instant of another one
    trials: list[ServedTrial] = []
    found: FoundRate | None = None
    verdict: ServingVerdict | None = None
    not_measured: dict[str, str] = {}

    @property
    def limit_s(self) -> float:
        return self.scenario.limit

    @property
    def repetitions(self) -> list[ServedTrial]:
        return self.of("repetition")

    def of(self, kind: TrialKind) -> list[ServedTrial]:
        return [trial for trial in self.trials if trial.kind == kind]

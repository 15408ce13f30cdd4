"""What a run of requests measured, of a server or of a KV cache: the jobs of their records.

A *latency* is the time from the instant at which a request was meant to arrive until the end of its
step, however late the request was issued. A request that failed, or that no reader took in time,
has none. Its parts add up: waiting for one of the reads in flight, the read itself, waiting for an
accelerator and for the rest of its batch, the step, and waiting for the commit of its record where
a log is written and answers wait for it.

The latency of a request to a KV cache is its *time to first token* (TTFT): from the instant at
which it was meant to arrive until its prompt is computed. Its parts add up: waiting for one of the
requests that load at a time, waiting until its chunks are written, looking for them, copying what a
real tier in memory has, loading the rest, waiting for an engine, and the prefill of the tokens that
were not found. Loads are measured; the prefill is computed from the model's dimensions, and so is
what the same requests would take if the tokens that the storage had were computed again.
"""

from __future__ import annotations

from typing import Literal

from ..settings.base import Count, Duration, Few, Figure, Record, Share
from ..settings.kv_cache import KvScenario
from ..settings.scenario import Scenario
from ..settings.workload import Engine
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
    retries: Few = 0  # requests that the storage sent again, after which they were answered
    throttled: Few = 0  # of these, after the server asked to slow down
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

    In the search most windows at ``low`` held it, and at ``high`` most did not; None: no such rate
    was tried. ``bound``: why the search ended before it knew both.
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


KvTrialKind = Literal[
    "repetition", "without-reads", "without-writes", "without-lookups", "find-max"
]
"""``without-...``: the same requests with one stage left out."""

KV_COLUMNS = {
    "trial": "int32, place of the window in ``job.trials``",
    "intended_ns": "int64, when the request was meant to arrive, from the begin of its window; if "
    "below 0, only what it finds is known",
    "taken_ns": "int64, when it could have been loaded; -1: not in time",
    "issued_ns": "int64, when it was taken up; -1: it was not",
    "waited_ns": "int64, when all of its chunks were written; -1: it did not come to that",
    "looked_ns": "int64, when its chunks had been looked for; -1: it did not come to that",
    "copied_ns": "int64, when what memory has of them was copied; -1: it did not come to that",
    "ready_ns": "int64, when its chunks were in memory, or a read had failed; -1: neither",
    "failed": "uint8, 1 if a read or a look-up failed",
    "tokens": "int32, of its prompt",
    "memory_tokens": "int32, of these, found in memory",
    "loaded_tokens": "int32, of these, found on the storage",
    "chunks": "int32, that were loaded",
    "lookups": "int32, chunks that were looked for on the storage",
}
"""The columns of the ``events.parquet`` of a run of a KV cache, one row for each request."""


class KvParts(Record):
    """Means of the parts of the time to first token, in seconds."""

    reader_wait_s: Figure = 0.0
    write_wait_s: Figure = 0.0
    lookup_s: Figure = 0.0
    memory_s: Figure = 0.0
    load_s: Figure = 0.0
    engine_wait_s: Figure = 0.0
    prefill_s: Figure = 0.0


class KvTraffic(Record):
    """What requests find in both tiers, by their model.

    They are those of a window and of the last part of the time before it. ``accelerators``: how
    many are busy with what is not found; ``..._without_storage`` and ``..._uncached``: how many
    would be without the storage, and without both tiers. ``loaded_bytes_per_s``: what the storage
    is asked for, with all layers. ``break_even_bytes_per_s``: the bandwidth at which loading takes
    as long as computing what is found on the storage; None: nothing is.
    """

    requests: Count
    prompt_tokens: Count
    memory_tokens: Count
    loaded_tokens: Count
    accelerators: Figure
    accelerators_without_storage: Figure
    accelerators_uncached: Figure
    loaded_bytes_per_s: Figure
    break_even_bytes_per_s: Figure | None = None


class KvTrial(RequestWindow):
    """One window of requests that use a KV cache.

    ``without_accelerator_s``: TTFT at the quantile of the limit if prefills took no time.
    ``recomputed_...``: TTFT of the same requests without the storage. ``loading_s``: from the time
    a request was taken up until its chunks were in memory, without copies from the tier there, of
    all requests with any together;
    ``recomputing_s``: to compute these tokens instead. ``fetch_bytes_per_s``: bandwidth of the
    reads of a load alone; ``plain_bytes_per_s``: of plain reads of such chunks, as many in flight.
    ``crossover_tokens``: from this length of a prefix on a load is faster; 0: it never is, up to
    the longest context. ``busy``: share of the time for which the engines compute. Writes:
    ``behind_p99_s`` is how late a write began.
    """

    kind: KvTrialKind
    parts: KvParts = KvParts()
    slow_parts: KvParts = KvParts()  # of the slowest 1 % of the requests
    prompt_tokens: Count = 0
    memory_tokens: Count = 0
    loaded_tokens: Count = 0
    loads: Few = 0  # requests that loaded something
    chunks_loaded: Few = 0
    lookups: Few = 0
    lookup_mean_s: Figure | None = None
    load_p50_s: Figure | None = None
    load_p99_s: Figure | None = None
    loading_s: Figure | None = None
    recomputing_s: Figure | None = None
    load_bytes_per_s: Figure | None = None
    fetch_bytes_per_s: Figure | None = None
    plain_bytes_per_s: Figure | None = None
    crossover_tokens: Few | None = None
    recomputed_p50_s: Figure | None = None
    recomputed_quantile_s: Figure | None = None
    busy: Figure | None = None
    recomputed_busy: Figure | None = None
    earlier_s: Figure = 0.0  # so long before the window, requests count for the traffic, too
    traffic: KvTraffic | None = None
    read_bytes_per_s: Figure | None = None
    chunks_written: Few = 0
    written_bytes: Count = 0
    writes_failed: Few = 0
    writes_left: Few = 0
    write_error: str = ""
    write_bytes_per_s: Figure | None = None  # until the last one was on the storage
    write_p50_s: Figure | None = None  # of a chunk
    write_p99_s: Figure | None = None
    behind_p99_s: Figure | None = None
    flush_s: Figure | None = None
    chunks_deleted: Few = 0
    delete_p99_s: Figure | None = None
    drive_writes_per_day: Figure | None = None
    before_bytes: Count = 0  # written before the window
    held_bytes: Count = 0  # of a real tier in memory, of which some are for copies
    stored_share: Share | None = None  # of the tier's capacity, when the window begins

    @property
    def accelerators_freed(self) -> float | None:
        """Accelerators that need not compute what is found on the storage."""
        if self.traffic is None:
            return None
        return max(0.0, self.traffic.accelerators_without_storage - self.traffic.accelerators)

    @property
    def break_even_bytes_per_s(self) -> float | None:
        """The bandwidth at which loads take as long as computing."""
        return self.traffic.break_even_bytes_per_s if self.traffic is not None else None

    @property
    def memory_share(self) -> float | None:
        """The share of the prompts' tokens that were found in memory."""
        return self.memory_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def storage_share(self) -> float | None:
        """The share that was found on the storage."""
        return self.loaded_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def hit_rate(self) -> float | None:
        """The share that was found in either."""
        found = self.memory_tokens + self.loaded_tokens
        return found / self.prompt_tokens if self.prompt_tokens else None


KvStage = Literal["reads", "writes", "lookups", "prefill", "client", "inconclusive"]


class KvVerdict(Record):
    """What the repetitions say together.

    ``worth``: loads are faster than computing again, or with all layers the first token comes
    sooner at the quantile of the limit; None: inconclusive, or nothing was loaded. ``factor``: how
    many times as fast loads are. ``break_even_bytes_per_s`` and ``load_bytes_per_s``: the
    bandwidth at which both are equal, and the one that was measured. ``of_plain``: the bandwidth of
    the reads of loads over that of plain reads. ``crossover``: the shortest
    and the longest length of a prefix, in tokens, from which on loads won in a repetition; None:
    in one of them never. ``freed``: accelerators that need not compute. ``ttft``: how many times as
    fast the first token is with the storage, at the quantile of the limit.
    """

    worth: bool | None = None
    factor: Estimate | None = None
    break_even_bytes_per_s: Estimate | None = None
    load_bytes_per_s: Estimate | None = None
    of_plain: Estimate | None = None
    crossover: tuple[int, int] | None = None
    freed: Estimate | None = None
    ttft: Estimate | None = None
    holds: bool | None = None
    bottleneck: KvStage = "inconclusive"
    gains: dict[str, Estimate] = {}
    why: str = ""
    sentence: str = ""


class KvCacheRun(Record):
    """A run of a KV cache as the job of a run."""

    kind: Literal["kv-cache"] = "kv-cache"
    scenario: KvScenario
    rate: Figure | None = None  # of the repetitions; None: no rate that was tried held the limit
    direct: bool = False  # reads go past the page cache
    engine: Engine = "threads"  # what kept the reads of a request in flight
    plain_how: str = ""  # with what chunks were read plainly, or why they were not
    price_per_hour: Figure | None = None  # of one accelerator, in USD
    arrivals_together: Share | None = None  # of a trace: arrivals at the instant of another one
    trials: list[KvTrial] = []
    found: FoundRate | None = None
    verdict: KvVerdict | None = None

    @property
    def limit_s(self) -> float:
        return self.scenario.limit_s

    @property
    def repetitions(self) -> list[KvTrial]:
        return self.of("repetition")

    def of(self, kind: KvTrialKind) -> list[KvTrial]:
        return [trial for trial in self.trials if trial.kind == kind]

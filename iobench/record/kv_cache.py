"""What a run of a KV cache measured: the job of its record.

The latency of a request is its *time to first token* (TTFT): from the instant at which it was meant
to arrive until its prompt is computed. Its parts add up: waiting for one of the requests that load
at a time, waiting until its chunks are written, looking for them, copying what a real tier in
memory has, loading the rest, waiting for an engine, and the prefill of the tokens that were not
found. Loads are measured; the prefill is computed from the model's dimensions, and so is what the
same requests would take if the tokens that the storage had were computed again.
"""

from __future__ import annotations

from typing import Literal

from ..settings.base import Count, Few, Figure, Record, Share
from ..settings.kv_cache import KvScenario
from ..settings.workload import Engine
from .serving import FoundRate, RequestWindow
from .verdict import Estimate

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
        return self.traffic.accelerators_without_storage - self.traffic.accelerators

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

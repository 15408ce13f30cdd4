"""The figures of ``iobench plan``, which are computed before anything is run.

They are printed as text, or as JSON with these keys. No part of iobench reads them again.
"""

from __future__ import annotations

from ..settings.base import Record
from .checkpoint import Scaling


class ProbeFigures(Record):
    """A short measurement of the storage: single reads of the size that the reader requests."""

    reads: int
    request_bytes: int  # the median, where requests differ
    request_bytes_mean: float
    latency_p50_s: float
    latency_mean_s: float
    latency_max_s: float
    reads_in_flight: int | None  # at least needed to meet the demand; None: no demand is stated
    concurrency: int | None  # the same per worker


class PartTime(Record):
    """How long a part of a run should take. ``part``: its key in the record's ``timings``."""

    part: str
    what: str  # in words, for a table
    seconds: float | None  # None: not known
    at_least: bool = False  # it takes longer if the accelerators have to wait
    not_known: str = ""  # why ``seconds`` is None


class PlanFigures(Record):
    """A run before it is run. None: the figure is not known."""

    workload: str
    dataset: str
    data: str | None  # what the user named
    generated: bool  # the dataset exists
    format: str
    content: str
    codec: str
    accelerators: int
    samples: int
    shards: int
    bytes: int
    sample_bytes_mean: float
    memory_bytes: int | None
    memory_multiple: float | None  # the dataset's size over memory_bytes
    expected_cache_hit_rate: float | None  # 0 to 1
    free_bytes: int | None
    fits: bool | None  # None: unknown, or the dataset exists already
    batch_size: int
    steps_per_repetition: int
    repetitions: int
    demanded_bytes_per_s: float | None  # None: the accelerator has no step time
    demanded_samples_per_s: float | None
    busy_s: float | None
    read_bytes_total: int
    mlperf_minimum_samples: int | None
    mlperf_minimum_bytes: int | None
    workers: int  # of all ranks
    reads_in_flight: int
    probe: ProbeFigures | None = None  # None: not requested


class BudgetFigures(Record):
    """The write bandwidth that a checkpoint needs so that saves take a given share of the time."""

    stall_budget: float  # 0 to 1
    longest_save_s: float
    interval_s: float
    write_bytes_per_s: float  # of all hosts together
    write_bytes_per_s_of_host: float | None  # None: the number of hosts was not stated
    within_limit: bool | None  # None: the limit of the storage was not stated
    waste: float  # share of the time, with the cost of interruptions


class CheckpointPlanFigures(Record):
    """One checkpoint of a model, and the write bandwidth that it needs."""

    model: str
    summary: str
    parameters: int
    bytes: int
    full_bytes: int
    state_bytes: int | None  # of the whole state, where a checkpoint has only what changes
    model_bytes: int
    optimizer_bytes: int
    scaling: Scaling
    ranks: int
    parallelism: dict[str, int]
    rank_bytes_min: int
    rank_bytes_max: int
    tensors: int
    files: int
    memory_available_bytes: int | None
    target: str | None
    free_bytes: int | None
    # For two checkpoints: the previous one stays until the next is complete. And for the whole
    # state, on which they are based where they have only what changes.
    needed_bytes: int
    fits: bool | None
    accelerators: int
    mtbf_s: float
    mtbf_published: bool  # from the published failure rate, since the user stated none
    hosts_writing: int | None  # None: not stated
    storage_write_bytes_per_s: float | None  # its stated limit for all hosts together
    restored_bytes: float  # that all hosts together read after an interruption
    restore_s: float | None  # at the stated limit, so at least; None: no limit was stated
    budgets: list[BudgetFigures]

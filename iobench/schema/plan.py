"""What ``iobench plan`` says: figures worked out before anything is run.

They are printed, as text or as JSON under these names, and never read again.
"""

from __future__ import annotations

from .base import Record
from .checkpoint import Scaling


class ProbeFigures(Record):
    """A short look at the storage: single reads of the size that the reader asks for."""

    reads: int
    request_bytes: int
    latency_p50_s: float
    latency_max_s: float
    reads_in_flight: int | None  # what the demand needs at least; None: no demand is stated
    concurrency: int | None  # the same for each worker


class PlanFigures(Record):
    """A run before it is run; None where it can't be told."""

    workload: str
    dataset: str
    data: str | None  # what the user named
    generated: bool  # the dataset is there
    format: str
    content: str
    codec: str
    accelerators: int
    samples: int
    shards: int
    bytes: int
    sample_bytes_mean: float
    memory_bytes: int | None
    memory_multiple: float | None  # the dataset's size over that
    expected_cache_hit_rate: float | None  # 0 to 1
    free_bytes: int | None
    fits: bool | None  # None: unknown, or the dataset is there
    batch_size: int
    steps_per_repetition: int
    repetitions: int
    demanded_bytes_per_s: float | None  # None: the accelerator takes whatever comes
    demanded_samples_per_s: float | None
    busy_s: float | None
    read_bytes_total: int
    mlperf_minimum_samples: int | None
    mlperf_minimum_bytes: int | None
    workers: int  # of all ranks
    reads_in_flight: int
    probe: ProbeFigures | None = None  # where it was asked for


class BudgetFigures(Record):
    """What a checkpoint's storage must write for saves to take a share of the time."""

    stall_budget: float  # 0 to 1
    longest_save_s: float
    interval_s: float
    write_bytes_per_s: float
    waste: float  # share of the time, with what interruptions cost


class CheckpointPlanFigures(Record):
    """One checkpoint of a model, and what its storage must write."""

    model: str
    summary: str
    parameters: int
    bytes: int
    full_bytes: int
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
    needed_bytes: int  # the checkpoint before stays until the next is complete
    fits: bool | None
    accelerators: int
    mtbf_s: float
    mtbf_published: bool  # at the published rate of failures, since none was stated
    budgets: list[BudgetFigures]

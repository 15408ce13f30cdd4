"""A checkpoint study: what is asked for (``CheckpointSpec``), and what each save and restore took (``Study``, part of ``run.json``).

Words: a rank is *blocked* from the common start until its training could go on. A save is *accepted* when every byte was handed to the
storage, *durable* when it survives a power cut (files and directories synced, or uploads completed), and *committed* when the job's
manifest is in place, so that a restore finds it. Times are seconds from the common start of all ranks; a job's time is its slowest rank's.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from .base import Bytes, Record, Seconds, Strict


def _a_share(text: str) -> str:
    try:
        share = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"'{text}' is no share, write it like 1/64 or 0.25") from None
    if not 0 < share <= 1:
        raise ValueError(f"'{text}' must be above 0 and at most 1")
    return text


class CheckpointSpec(Strict):
    """What to save, how, where to, and how often.

    ``scale``: the share of the model's bytes that is really written (``1/64``). ``keep``: complete checkpoints left in the target while the
    study goes on. ``step_time``, ``steps``: training steps between two saves, which an asynchronous writer overlaps; ``host_share``: the
    part of a step in which the host computes, as launching kernels does. ``verify``: compare
    restored tensors bit for bit, off the clock. ``concurrency`` requests at a time, of
    ``block_size`` bytes each, are for writers that have these options (``stream``).
    """

    model: str = Field(min_length=1)
    writer: str = "stream"
    ranks: int = Field(default=1, ge=1, le=4096)
    scale: Annotated[str, AfterValidator(_a_share)] = "1"
    count: int = Field(default=10, ge=1, le=10_000)
    restores: int | None = Field(default=None, ge=0, le=10_000)  # None: as many as saves
    fsync: bool = True
    keep: int = Field(default=1, ge=1, le=1000)
    step_time: Seconds = Field(default=0.05, gt=0, le=3600)
    steps: int = Field(default=0, ge=0, le=10**6)
    host_share: float = Field(default=0.2, ge=0, le=0.9)
    verify: bool = True
    seed: int = Field(default=42, ge=0)
    concurrency: int = Field(default=4, ge=1, le=256)
    block_size: Bytes = Field(default=8 << 20, ge=4096, le=1 << 30)
    parallelism: dict[str, int] = Field(
        default_factory=dict
    )  # tensor, pipeline, data, zero: None of them: the model's own

    @property
    def share(self) -> Fraction:
        return Fraction(self.scale)

    @property
    def restore_count(self) -> int:
        return self.count if self.restores is None else self.restores


class RankSave(Record):
    """One rank's part of a save."""

    blocked_s: float
    accepted_s: float | None = None
    durable_s: float | None = (
        None  # None: it was not asked for (fsync=false), or the writer can't tell
    )
    bytes: int
    files: int
    cpu_s: float | None = None
    extra_memory_bytes: int | None = None  # peak above what the state itself takes
    staged_s: float | None = None  # asynchronous: until the state was copied aside
    waited_s: float | None = None  # asynchronous: of the blocked time, waiting for the save before


class Save(Record):
    """One save of the whole job."""

    step: int
    blocked_s: float
    accepted_s: float | None = None
    durable_s: float | None = None
    committed_s: float | None = (
        None  # the job's manifest is in place: from now on a restore finds this checkpoint
    )
    first_done_s: float | None = None  # the fastest rank's; last: the slowest's
    last_done_s: float | None = None
    staged_s: float | None = None
    waited_s: float | None = None
    persist_s: float | None = None  # asynchronous: from staged to durable
    step_overlapped_s: float | None = None  # mean step while the save went on behind it
    step_alone_s: float | None = None  # mean step with nothing behind it
    bytes: int
    files: int
    cpu_s: float | None = None
    extra_memory_bytes: int | None = None
    ranks: list[RankSave] = []


class Restore(Record):
    """One restore of the whole job into tensors that are there."""

    step: int
    wall_s: float  # slowest rank
    first_done_s: float | None = None
    bytes: int
    cpu_s: float | None = None
    residency_before: float | None = None  # share of the files in the page cache, 0 to 1
    residency_how: str = ""
    verified: bool | None = None  # bit for bit; None: not asked for
    rank_s: list[float] = []


class Spread(Record):
    """Over saves or restores."""

    median: float
    p95: float
    min: float
    max: float
    n: int


class Study(Record):
    model: str
    writer: str
    ranks: int
    bytes: int  # of one checkpoint of the whole job, as written
    full_bytes: int  # what it would be at scale 1
    files: int
    tensors: int
    bytes_per_rank: list[int] = []
    largest_rank_bytes: int = 0
    scaling: dict[str, Any] = {}  # what --scale did
    parallelism: dict[str, int] = {}
    spec: dict[str, Any] = {}
    saves: list[Save] = []
    restores: list[Restore] = []
    alone: list[Save] = []  # mixed run: saves with no loading beside them
    figures: dict[str, Spread] = {}  # blocked_s, accepted_s, durable_s, restore_s, staged_s ...
    write_bytes_per_s: float | None = (
        None  # MLPerf's rule: of the slowest rank, over durable time; mean of the saves
    )
    restore_bytes_per_s: float | None = None
    meaning: dict[str, Any] = {}  # analyse.checkpoint: interval, overhead, waste; see report
    not_measured: dict[str, str] = {}

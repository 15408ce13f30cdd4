"""A checkpoint study: its specification (``CheckpointSpec``), and its result (``Study``).

The result is part of ``run.json`` and has the times of each save and restore.

A rank is *blocked* from the common start until its training can continue. A save is *accepted* when
every byte was passed to the storage. It is *durable* when it survives a power failure: files and
directories are synced, or uploads are completed. It is *committed* when the job's manifest is in
place, so that a restore finds it. Times are in seconds from the common start of all ranks. The time
of a job is that of its slowest rank.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SerializeAsAny

from ..base.units import MIN_SHARE, RESTART_S
from ..settings.base import (
    Bytes,
    Count,
    Duration,
    Few,
    Figure,
    Number,
    OpenRecord,
    Positive,
    Ranks,
    Record,
    Seconds,
    Strict,
)
from .host import JobHost, StorageFacts

_EXPONENT = re.compile(r"[eE][+-]?\d{4}")
"""Of a number that is written with so many digits that they would take hours: 1e-99999999."""


def _fraction(text: str) -> Fraction:
    return Fraction(text[:-1]) / 100 if text.endswith("%") else Fraction(text)


def _a_share(text: str) -> str:
    try:
        share = _fraction(text) if _EXPONENT.search(text) is None else 0
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"'{text}' is not a share, write it like 1/64, 0.25 or 5%") from None
    if not 0 < share <= 1:
        raise ValueError(f"'{text}' must be above 0 and at most 1")
    return text


ShareText = Annotated[str, Field(coerce_numbers_to_str=True), AfterValidator(_a_share)]
"""A share above 0: a number, or text such as ``1/64`` or ``5%``."""


class CheckpointSpec(Strict):
    """What to save, how, where to, and how often.

    ``model``: what is saved (``iobench list models``), by ``writer`` (``iobench list writers``),
    from so many ``ranks``. ``count`` saves are followed by as many ``restores`` (None). ``fsync``:
    a save ends when its bytes are durable. ``parallelism``: numbers of ``tensor``, ``pipeline``,
    ``data`` and ``zero`` ranks; empty: the model's own. ``scale`` is the share of the model's bytes
    that is really written (``1/64``). ``weights_only``: the parameters alone, without the
    optimizer's state. ``changed`` is the share of the state's bytes that changes: below 1, the
    whole state is saved once, and each later save has only the tensors that change, as a training
    of adapters saves (PEFT), or an incremental checkpoint (Eisenman et al., "Check-N-Run", NSDI
    2022). ``keep`` is the number of complete checkpoints that stay in the target during the study,
    beside the one with the whole state. ``steps`` training steps of ``step_time`` seconds run
    between two saves; an asynchronous writer overlaps them. ``host_share`` is the part of a step in
    which the host computes, for example to launch kernels. ``verify``: compare restored tensors bit
    for bit, outside of the measured time. ``seed``: of the tensors. ``concurrency`` (requests in
    flight) and ``block_size`` (bytes per request) are for writers that have these options, such as
    ``stream``; it restores by as many threads as are faster, if they are not set.
    """

    model: str = Field(min_length=1)
    writer: str = "stream"
    ranks: int = Field(default=1, ge=1, le=4096)
    scale: ShareText = "1"
    weights_only: bool = False
    changed: ShareText = "1"
    count: int = Field(default=10, ge=1, le=10_000)
    restores: int | None = Field(default=None, ge=0, le=10_000)  # None: as many as saves
    fsync: bool = True
    keep: int = Field(default=1, ge=1, le=1000)
    step_time: Seconds = Field(default=0.05, gt=0, le=3600)
    steps: int = Field(default=0, ge=0, le=10**6)
    host_share: float = Field(default=0.2, ge=0, le=0.9)
    verify: bool = True
    seed: int = Field(default=42, ge=0)
    concurrency: Annotated[int, Field(ge=1, le=256)] | None = None  # None: the writer's own
    block_size: Annotated[Bytes, Field(ge=4096, le=1 << 30)] | None = None
    # Keys: tensor, pipeline, data, zero. If empty: the model's own parallelism.
    parallelism: dict[str, int] = Field(default_factory=dict)

    @property
    def share(self) -> Fraction:
        return _fraction(self.scale)

    @property
    def changed_share(self) -> Fraction:
        return _fraction(self.changed)

    @property
    def restore_count(self) -> int:
        return self.count if self.restores is None else self.restores


MAX_HOSTS = 10**6
Hosts = Annotated[int, Field(strict=True, ge=1, le=MAX_HOSTS)]


class Training(OpenRecord):
    """The training that saves the checkpoints, as the user described it for the analysis.

    None means: for ``mtbf_s`` the published failure rate, for ``accelerators`` the study's own
    ranks; without a price the analysis computes no cost.
    ``hosts_writing`` hosts save at the same time, each its part of the model, and after an
    interruption ``hosts_restoring`` of them read at the same time (None: as many). The limits are
    those of the storage for all hosts together, as the user states them.
    """

    accelerators: Annotated[int, Field(ge=1, le=10**9)] | None = None
    mtbf_s: Duration | None = None  # mean time between interruptions
    restart_s: Figure = RESTART_S  # until training continues, without the restore
    interval_s: Duration | None = None  # the current interval between its saves
    usd_per_accelerator_hour: Positive | None = None
    samples_per_s: Positive | None = None
    stall_budget: Annotated[float, Field(ge=MIN_SHARE, lt=1)] = 0.01
    notice_s: Figure = 120.0
    hosts_writing: Hosts | None = None
    hosts_restoring: Hosts | None = None
    storage_write_bytes_per_s: Positive | None = None
    storage_read_bytes_per_s: Positive | None = None


class AskedTraining(OpenRecord):
    """The training that was asked about. Its subclass ``Meaning`` adds the figures."""

    asked: Training = Training()
    sentence: str = ""


class Today(OpenRecord):
    """Figures at the interval at which the training saves today."""

    interval_s: float
    overhead: float
    waste: float


class Spread(Record):
    """Statistics of one figure over saves or restores."""

    median: float
    mean: float | None = None
    p95: float | None  # None: fewer than 20 values do not tell it
    min: float
    max: float
    n: int

    @property
    def upper(self) -> float:
        """The p95, or the largest value where there are too few to know it."""
        return self.max if self.p95 is None else self.p95


class Meaning(AskedTraining):
    """What a study's figures mean for the training that was asked about.

    Computed by ``judge.checkpoint_meaning``. Times are of the whole model, saved by all hosts of
    the training. The interval and the notice go by ``Spread.upper`` of the times, what is lost by
    their mean, and single times are medians.
    """

    accelerators: int
    mtbf_s: float
    mtbf_how: str
    bytes: int  # of the whole model's checkpoint
    condition: str  # on which the times of saves are those of the training
    restore_condition: str
    host_write_bytes_per_s: float | None  # what the measured host got
    job_write_bytes_per_s: float | None  # what all hosts get on that condition
    at_write_limit: bool  # the stated limit of the storage makes saves longer
    at_read_limit: bool
    times: dict[str, Spread]  # blocked_s, durable_s, committed_s, behind_s, restore_s
    blocked_s: float
    durable_s: float
    committed_s: float
    restore_s: float | None
    restart_s: float
    asynchronous: bool  # training goes on while the state is written
    slowdown: float | None  # of a training step during a save; None: synchronous or not measured
    slowed_s: float | None  # lost by that in each save
    young_s: float  # these three: for what a save costs, without failures
    daly_s: float
    availability_s: float
    interval_s: float  # advised: Daly's, but at least the time until a restore finds the save
    interval_median_s: float  # the same by the medians
    overhead: float  # share of the time, at that interval
    waste: float  # the same, with the work that is lost in interruptions
    today: Today | None
    lost_s_per_day: float
    lost_samples_per_day: float | None
    lost_usd_per_day: float | None
    stall_budget: float
    # So that saves stay within the budget at the best interval. None: a copy takes more than that.
    # If an unknown part of an asynchronous save is lost to slower steps: as if all of it were.
    needed_write_bytes_per_s: float | None
    within_budget: bool
    notice_s: float
    fits_notice: bool
    over_notice: int  # saves that took longer
    curve: list[tuple[float, float]]  # (interval, waste)


class StudySpec(OpenRecord):
    """The ``CheckpointSpec`` of the study, as it was recorded."""

    count: Few = 0
    restores: Few | None = None  # None: as many as saves
    fsync: bool | None = None
    weights_only: bool = False
    changed: str = "1"


class Scaling(OpenRecord):
    """What ``--scale`` changed of the model; empty if all of it was written."""

    share: Figure | None = None  # of the model's bytes
    changed: dict[str, list[int]] = Field(default_factory=dict)  # dimension: [whole, scaled]


class RankSave(Record):
    """One rank's part of a save."""

    blocked_s: float
    accepted_s: float | None = None
    durable_s: float | None = None  # None: not requested (fsync=false), or not known to the writer
    bytes: int
    files: int
    cpu_s: float | None = None
    extra_memory_bytes: int | None = None  # peak memory above that of the state itself
    unwritten_bytes: Count | None = None  # still only in the page cache after the sync
    staged_s: float | None = None  # asynchronous: until the state was copied to a staging buffer
    waited_s: float | None = None  # asynchronous: part of blocked_s, waiting for the previous save
    # asynchronous: beside blocked_s, until the previous save was committed, and all could begin
    held_s: float | None = None
    retries: Count = 0  # requests that the storage sent again
    throttled: Count = 0  # of these, after the server asked to slow down


class Save(Record):
    """One save of the whole job."""

    step: int
    blocked_s: Figure
    accepted_s: Figure | None = None
    durable_s: Figure | None = None
    committed_s: float | None = None  # the job's manifest is in place, a restore finds it
    first_done_s: float | None = None  # of the fastest rank
    last_done_s: float | None = None  # of the slowest rank
    staged_s: float | None = None
    waited_s: float | None = None
    held_s: float | None = None  # of the last rank that was ready: it waited for no other one
    persist_s: float | None = None  # asynchronous: from staged to durable
    step_overlapped_s: float | None = None  # mean step time while the save continued
    step_alone_s: float | None = None  # mean step time without a save
    bytes: Count
    files: int
    cpu_s: float | None = None
    extra_memory_bytes: int | None = None
    unwritten_bytes: Count | None = None
    retries: Count = 0  # of all ranks
    throttled: Count = 0
    ranks: list[RankSave] = []


class Restore(Record):
    """One restore of the whole job into existing tensors."""

    step: int
    wall_s: Figure  # slowest rank
    first_done_s: float | None = None
    bytes: Count
    cpu_s: float | None = None
    residency_before: float | None = None  # share of the files in the page cache, 0 to 1
    residency_how: str = ""
    residencies: list[float | None] = []  # of each host, where there are several
    verified: bool | None = None  # equal bit for bit; None: not requested
    rank_s: list[float] = []  # from the common start
    rank_late_s: list[float] = []  # of it, until the rank began
    threads: Count | None = None  # that read at the end, in the rank with the most of them
    retries: Count = 0  # of all ranks
    throttled: Count = 0


class Study(Record):
    model: str
    writer: str
    ranks: Ranks
    bytes: Count  # of one checkpoint of the whole job, as written
    full_bytes: Number  # the same at scale 1
    # Where saves have only what changes of the state: bytes of the whole state, which was saved
    # once, before all others. Each restore reads it, and then the newest of what changes.
    state_bytes: Number | None = None
    base: Save | None = None
    files: int
    tensors: int
    bytes_per_rank: list[int] = []
    largest_rank_bytes: int = 0
    scaling: Scaling = Scaling()
    parallelism: dict[str, int] = {}
    spec: StudySpec = StudySpec()
    # Of saves during a run that loads data; None: a study alone.
    every: Count | None = None  # steps between two saves
    storage: StorageFacts | None = None  # where they went
    hosts: list[JobHost] = []  # whose ranks these are, where there are several
    started_by: str = ""
    saves: list[Save] = []
    restores: list[Restore] = []
    no_restores: str = ""  # why there are none, though they were asked for
    alone: list[Save] = []  # of a mixed run: saves while no data was loaded
    budget_s: Duration | None = None  # that limited the number of saves and restores
    figures: dict[str, Spread] = {}  # blocked_s, accepted_s, durable_s, restore_s, staged_s ...
    # Of all ranks, over the time of the slowest one, as MLPerf has it; median of the saves.
    write_bytes_per_s: float | None = None
    restore_bytes_per_s: float | None = None
    meaning: SerializeAsAny[AskedTraining] = AskedTraining()
    not_measured: dict[str, str] = {}


class CheckpointRun(Study):
    """A checkpoint study as the job of a run."""

    kind: Literal["checkpoint"] = "checkpoint"

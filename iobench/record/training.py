"""What a run that loads data records: ``TrainingRun``, the job of a ``TrainingRecord``.

The steps are in ``events.parquet``, one row for each, see EVENT_COLUMNS. A value that was not
measured is None, never 0; ``not_measured`` next to it maps its key to the reason. Units are in the
names.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..settings.accelerator import StepFacts
from ..settings.base import Count, Duration, Few, Figure, Number, OpenRecord, Ranks, Record, Share
from ..settings.workload import Subject, Sync, subject_of
from .checkpoint import Study
from .host import DeviceUse, Host, HostTime, JobHost, ModelWork, NfsTraffic, Resources, StorageFacts
from .job import DatasetFacts, LoaderFacts, UserFacts, WorkloadFacts
from .verdict import (
    Ablation,
    Confirmation,
    Estimate,
    FedAt,
    RankTime,
    RunCurve,
    Verdict,
    WorkerTime,
)

EVENT_COLUMNS = {
    "phase": "str: calibrate.fetch, calibrate.prep, calibrate.loader, calibrate.accelerator, "
    "measure, quiet, find-max.<N>, "
    "evaluate (the passes of evaluation of a repetition, which no other figure counts), "
    "without-<stage> (an ablation; its repetition is the round), "
    "confirm.<n> (the n-th of confirmations, 0: today's settings; its repetition is the turn), "
    "warm-up (of a side of 'iobench ab', not counted)",
    "repetition": "uint16, from 0",
    "rank": "uint16, the accelerator's number, from 0",
    "epoch": "uint16, from 0 within the repetition",
    "step": "uint32, first step of the row, from 0 within the epoch",
    "steps": "uint32, steps merged in this row (1 until the recorder's bound is reached)",
    "start_ns": "int64, when the rank asked for the batch, from the epoch's common start",
    "wait_ns": "int64, from asking for the batch to having it",
    "copy_ns": "int64, copying the batch to the device (0 without a device)",
    "busy_ns": "int64, nominal busy time of the accelerator",
    "late_ns": "int64, how far past its deadline the emulation woke up "
    "(compensated in the next step)",
    "samples": "uint32",
    "bytes_read": "int64, counted by the worker where it reads, direct IO's alignment excess "
    "included; by a library: as sample_bytes",
    "sample_bytes": "int64, bytes of the samples as stored",
    "read_ns": "int64, how long the worker waited for the storage reads of this batch; reads that "
    "were issued ahead go on while it prepares other batches, and count only while it waits",
    "prep_ns": "int64, the worker's time in decompress, decode, check and collate for this batch",
    "retries": "uint32, requests that the worker sent again while it made this batch",
    "throttled": "uint32, of these: because the server asked to slow down",
    "checkpoint_ns": "int64, after this step: how long the rank stood still for a checkpoint, "
    "waiting for the other ranks included",
    "sync_ns": "int64, after the accelerator's step: how long the rank waited for the other ranks "
    "at the step's barrier (0 without one), and for the commits of its log, if steps wait for them",
    "lost_ns": "int64, how long the rank stood still: in its wait, which does not hold this time, "
    "or in an emulated step beyond late_ns (nobody makes up for it)",
}


class CacheUse(Record):
    """What the readers of an epoch got from a local cache (``local_cache``), and past it.

    ``hits`` and ``misses``: reads. ``hit_bytes``: what the cache's directory served;
    ``storage_bytes``: what the storage was asked for, of a copied object all of it. ``bypassed``:
    misses that were not copied, because there was no room or another process was copying.
    """

    hits: Count = 0
    misses: Count = 0
    hit_bytes: Count = 0
    storage_bytes: Count = 0
    evicted: Count = 0  # copies that made room for others
    bypassed: Count = 0
    # Share of the copies that was in the page cache before the epoch; None: there were none, reads
    # go past it, or nobody can tell.
    residency_before: Share | None = None

    def since(self, before: CacheUse) -> CacheUse:
        """What was added since ``before`` was counted."""
        counted = ("hits", "misses", "hit_bytes", "storage_bytes", "evicted", "bypassed")
        less = {name: getattr(self, name) - getattr(before, name) for name in counted}
        return CacheUse(**less, residency_before=before.residency_before)

    @property
    def hit_rate(self) -> float | None:
        """Share of the reads that the cache served; None without reads."""
        reads = self.hits + self.misses
        return self.hits / reads if reads else None


class Epoch(Record):
    """One epoch of a repetition: what the events do not contain, and the sum of their bytes."""

    epoch: int
    steps: int | None = None  # of all ranks together; None without events
    residency_before: float | None = None  # share of the dataset's bytes in the page cache, 0 to 1
    residency_how: str = ""  # cachestat, mincore, or why it was not measured
    bytes_read: int | None = None  # by iobench's readers; None: unknown, since a library read
    sample_bytes: int | None = None  # stored bytes of the samples that the epoch delivered
    wait_s: float | None = None  # of all ranks for batches, added up
    bytes_fetched: int | None = None  # that the storage delivered to ranks and workers
    fetched_how: str = ""  # which counter, and what it misses; or why it was not measured
    # From the common start to the first read of any worker: process creation, not storage.
    startup_s: float | None = None
    startups_s: list[float | None] = []  # the same of each rank
    # How long after the common start each rank began, by the clock of its host.
    late_starts_s: list[float | None] = []
    residencies: list[float | None] = []  # ``residency_before`` of each host, if there are several
    samples_per_s: float | None = None  # without start-up; None without events
    local_cache: CacheUse | None = None  # None: there was no such cache


MeasuredBy = Literal["fio", "reader", "loader", "accelerator", "computed"]
"""What measured a ceiling: fio, iobench's reader, a complete loader, or only the steps.

``computed``: it follows from what the repetitions recorded.
"""


class CeilingWindow(Record):
    """One of the times at which a ceiling was measured; its number is the events' repetition."""

    seconds: Figure  # how long it was meant to take
    startup_s: list[Figure | None] = []  # of each epoch: until the first read
    cpu_s: Figure | None = None  # of all processes of the stage
    samples_per_s: Figure | None = None
    bytes_per_s: Figure | None = None  # stored bytes
    cpu_s_per_gb: Figure | None = None
    hosts_samples_per_s: list[Figure | None] = []  # of each host, if there are several


class CeilingDetails(OpenRecord):
    """Other facts of a ceiling; each stage has some of them."""

    round_steps: Annotated[int, Field(ge=1, le=10**9)] = 1  # the rank's workers
    read_bytes_per_sample: Figure | None = None
    own_samples_per_s: Figure | None = None  # for a library: that of iobench's own loader
    own_cpu_s_per_gb: Figure | None = None
    tensor_samples_per_s: Figure | None = None  # with torch's default transport
    windows: list[CeilingWindow] = []


class Ceiling(Record):
    """The most that one stage alone can deliver, summed over all accelerators of the run."""

    by: MeasuredBy | None = None  # None: not measured

    samples_per_s: float | None = None
    bytes_per_s: float | None = None  # stored bytes, so that all ceilings share one unit
    cpu_s_per_gb: float | None = None  # CPU s per 1e9 stored bytes, all processes of the stage
    how: str = ""  # what was measured, in one sentence
    not_measured: str = ""  # why the figures are None
    details: CeilingDetails = CeilingDetails()
    # Of the samples/s of all windows, which are spread over the run: the 95 % interval of their
    # mean; the value is samples_per_s. None with one window.
    windows: Estimate | None = None
    cold: Epoch | None = None  # if measured over cold storage: its bytes, over all its epochs


MAX_BINS = 600
"""Largest number of bins of a repetition: ten minutes of seconds."""

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Rates(Record):
    """The rate of each ``bin_s`` seconds of a repetition, summed over its ranks.

    Process creation and the time of saves are left out, and so is what a rank still loads after
    another one has ended. ``judge.figures.rates`` says how they are computed. Both lists have
    the same length, and are empty if the repetition is shorter than a bin.
    """

    bin_s: Duration
    samples_per_s: Annotated[list[Rate], Field(max_length=MAX_BINS)] = []
    stored_bytes_per_s: Annotated[list[Rate], Field(max_length=MAX_BINS)] = []

    @model_validator(mode="after")
    def _of_the_same_bins(self) -> Rates:
        if len(self.samples_per_s) != len(self.stored_bytes_per_s):
            raise ValueError("'samples_per_s' and 'stored_bytes_per_s' differ in length")
        return self


MAX_WORKERS = 256
"""Workers whose work is in the record of a repetition."""


class WorkerLoad(Record):
    """What one worker of a rank did in a repetition, summed over its epochs.

    A worker is a process, or a thread of the rank; the numbers are in the order of first batches.
    """

    rank: Annotated[int, Field(strict=True, ge=0)]
    worker: Annotated[int, Field(strict=True, ge=0)]
    batches: Count
    samples: Count
    bytes_read: Count
    requests: Count = 0  # reads and opens
    sample_bytes: Count
    read_s: Figure  # waiting for reads
    prep_s: Figure  # decompress, decode, check, collate
    cpu_s: Figure | None = None  # None: threads of one process, whose CPU time is not divided

    @property
    def s_per_batch(self) -> float:
        """Busy seconds of a batch: what makes one worker slower than another."""
        return (self.read_s + self.prep_s) / max(1, self.batches)


MAX_DEVICES = 1024
"""GPUs of one host."""


class EvaluationUse(Record):
    """The passes of evaluation of a repetition, which are no part of its other figures.

    ``wall_s``: of the slowest rank of each pass, added up. ``busy_s`` and ``wait_s``: means over
    the ranks.
    """

    passes: Count = 0
    samples: Count = 0
    wall_s: Figure = 0.0
    busy_s: Figure = 0.0
    wait_s: Figure = 0.0
    samples_per_s: Figure | None = None
    accelerator_utilization: Share | None = None


class RankLog(Record):
    """The log that one rank wrote beside its steps, a record of each sample.

    ``at_risk`` and ``volatile`` as of a window of requests (``ServedTrial``); None: not seen.
    """

    seconds: Figure = 0.0  # until its last record was committed
    records: Count = 0  # that were committed
    left: Count = 0  # that were not
    bytes: Count = 0
    commits: Count = 0
    objects: Count = 0  # or files
    waited_s: Figure = 0.0  # steps stood still for the commits of their records
    commit_p50_s: Figure | None = None  # from the end of the step to the commit
    commit_p99_s: Figure | None = None
    backlog_max: Count = 0
    backlog_end: Count = 0  # when the last step had ended
    # The time to the commit is longer in the last fifth of the steps than in the first; None: too
    # few steps to tell.
    grows: bool | None = None
    at_risk: Count | None = None
    volatile: Count | None = None


class RunLog(RankLog):
    """The logs of all ranks together: sums, or those of the slowest rank."""

    records_per_s: Figure | None = None
    objects_per_hour: Figure | None = None
    keeps_up: bool | None = None


class Repetition(Record):
    """One repetition: its recorded context, and figures computed from the events.

    See ``judge.figures.metrics``.
    """

    seed: int
    accelerators: Ranks
    # When its ranks waited for each other. None: at an epoch's end.
    sync: Sync | None = None
    epochs: list[Epoch] = []
    complete: bool = True  # False: interrupted, or stopped before all steps
    log: RunLog | None = None  # None: none was written
    cpu_s: float | None = None  # of ranks and workers
    throttled_s: float | None = None  # by the CPU quota, summed over cores; as in resources
    nfs: NfsTraffic | None = None  # counters of the mount, if the data is on NFS
    resources: Resources | None = None  # counters of host and device
    residency_before: float | None = None  # the largest of its epochs
    samples: int = 0
    steps: int = 0  # of all ranks together
    bytes_read: int | None = 0  # None: unknown, since a loader library read
    # Reads of iobench's readers and opens of files of one sample; None: not recorded, or a library
    # read. Reads of one block each, however a client divides it.
    requests: int | None = None
    requests_per_sample: float | None = None  # with those that were sent again
    retries: int | None = None  # requests that were sent again; None: not recorded
    throttled: int | None = None  # of these: because the server asked to slow down
    # Stored bytes of the delivered samples. If bytes_read is less, the data came from elsewhere.
    sample_bytes: int = 0
    wall_s: float | None = None
    # Part of wall_s in which training stood still for checkpoints, mean over ranks; None: no
    # checkpoints were requested.
    checkpoint_s: float | None = None
    read_s: float | None = None  # in storage reads, sum over the workers of all ranks
    busy_s: float | None = None  # mean over ranks
    wait_s: float | None = None  # mean over ranks
    time_to_first_batch_s: float | None = None
    # As MLPerf Storage defines it: without the first step of each epoch.
    accelerator_utilization: Figure | None = None
    # Busy time over the wall time without process creation; the verdict uses this one.
    accelerator_utilization_sustained: Figure | None = None
    accelerator_utilization_strict: Figure | None = None  # busy time over wall time
    samples_per_s: float | None = None
    read_bytes_per_s: float | None = None  # from sample_bytes if bytes_read is None
    # bytes_read / sample_bytes; above 1 due to whole row groups, footers, direct I/O's alignment.
    read_amplification: float | None = None
    wait_p50_s: float | None = None
    wait_p99_s: float | None = None
    late_p99_s: float | None = None  # how late the emulated steps ended; the next step makes up
    late_left_s: float | None = None  # lateness after the last step of each epoch, sum over epochs
    sync_s: float | None = None  # waiting for other ranks, mean over ranks
    ranks: list[RankTime] = []
    worker_time: WorkerTime | None = None
    # The slowest MAX_WORKERS of all ranks first, by the time for a batch; empty if a loader library
    # read.
    workers: Annotated[list[WorkerLoad], Field(max_length=MAX_WORKERS)] = []
    workers_left_out: Count = 0
    # By the GPUs' own counters, means over the GPUs of the job, and model FLOPs utilization: none
    # of these is accelerator utilization. ``devices`` has each GPU.
    device_utilization_nvml: float | None = None
    sm_utilization: float | None = None
    device_power_w: float | None = None
    sm_clock_mhz: float | None = None
    mfu: float | None = None
    devices: Annotated[list[DeviceUse], Field(max_length=MAX_DEVICES)] = []
    # Utilization of more ranks whose steps are like these, with a barrier at each step: without
    # any limit of the storage. Empty with too few steps.
    at_more_ranks: list[FedAt] = []
    rates: Rates | None = None  # how the rate changed over time
    evaluation: EvaluationUse | None = None  # None: nothing was evaluated
    hosts: list[HostTime] = []  # if there were several
    # In which ranks of all hosts had work, sum over epochs; and the time after that until the last
    # rank was done. None with one host.
    window_s: float | None = None
    tail_s: float | None = None
    not_measured: dict[str, str] = {}


class FindMaxPoint(Record):
    accelerators: int
    accelerator_utilization: float | None
    accelerator_utilization_sustained: float | None = None
    # Without the time in which the pipeline fills: decides whether the point passes.
    accelerator_utilization_steady: float | None = None
    samples_per_s: float | None  # steady, if ``steps`` is known
    read_bytes_per_s: float | None
    passed: bool
    startup_s: float | None = None  # from the common start to the first read, as in Epoch
    trial: Annotated[int, Field(ge=0)] = 0  # numbers near the edge are tried several times
    steps: int | None = None  # of each rank, in the steady window
    in_flight_batches: Few | None = None  # of each rank; some were read before that window
    not_measured: dict[str, str] = {}


class FindMax(Record):
    """The search for the largest number of accelerators at the required utilization.

    ``points`` are in the order in which they were tried.
    """

    required_accelerator_utilization: float
    accelerators: int | None  # None: not even one (or, if ``bound`` is set, none of those tried)
    low: int | None = None  # the interval of ``accelerators``
    high: int | None = None
    points: list[FindMaxPoint]
    wanted_steps: Few | None = None  # of each rank in the steady window of a try
    bound: str = ""  # why the search stopped, if the storage was not the reason


WATCHED = "watched"
"""The ``accelerator.kind`` of a training that iobench did not run."""


class WatchFacts(OpenRecord):
    """A training that was watched: what is known of it that no other run has.

    ``ranks``: the numbers of the ranks in the record, of ``world`` ranks. ``samples_by``: what the
    number of samples in a batch is. ``synchronized``: the CUDA device was awaited before each
    request for a batch, so that busy time has all of its work. ``between_s``: time of the context
    outside of its epochs, mean over the ranks: no part of any rate. ``resident_after``: share of
    the files in the page cache at the end, of those that ``resident_how`` names. ``lost``: why the
    batches of a rank were no longer counted.
    """

    ranks: list[Few] = Field(default_factory=list)
    world: Few = 1
    samples_by: str = ""
    synchronized: bool = False
    between_s: Figure | None = None
    resident_after: Share | None = None
    resident_how: str = ""
    lost: str = ""


class WatchedEpoch(OpenRecord):
    """One iteration over the loader by one rank."""

    epoch: Few
    residency_before: Share | None = None
    residency_how: str = ""


class WatchedRank(OpenRecord):
    """What one rank found out; its steps are in a file of events next to it."""

    schema_version: Literal["1"] = "1"
    name: str
    rank: Few = 0
    world: Few = 1
    created: str = ""
    status: Literal["ok", "failed", "interrupted"] = "ok"
    error: str = ""
    user: UserFacts = UserFacts()
    prefetch_factor: Few = 2
    batch_size: Annotated[int, Field(ge=1)] | None = None  # of most batches
    epochs: list[WatchedEpoch] = Field(default_factory=list)
    facts: WatchFacts = WatchFacts()
    wall_s: Figure = 0.0  # of the whole context
    cpu_s: Figure | None = None  # of this process and its workers
    resources: Resources | None = None
    nfs: NfsTraffic | None = None
    host: Host = Host()
    storage: StorageFacts = StorageFacts()
    dataset: DatasetFacts = DatasetFacts()


class FittedFacts(Record):
    """What a budget changed of the workload: the number of steps is then the size of a sample.

    ``asked_max_steps`` and ``asked_epochs``: as the workload has them; no steps: whole epochs.
    """

    asked_max_steps: Number | None = None
    asked_epochs: Number | None = None


class CachedEpoch(Record):
    """An epoch behind a local cache: medians over the repetitions, and what was to be expected.

    ``hit_rate``: of its reads. ``cached_share``: of the bytes of its samples, that the storage did
    not deliver. ``expected_share``: what that must be by the order of the reads and the size of the
    cache; None where neither tells. ``predicted_low``, ``predicted_high``: samples/s that follow
    from that share, the ceilings of storage and cache, and those of the other stages: if their
    times add up, and if both work beside each other.
    """

    epoch: Few
    hit_rate: Share | None = None
    cached_share: Share | None = None
    expected_share: Share | None = None
    samples_per_s: Figure | None = None
    predicted_low: Figure | None = None
    predicted_high: Figure | None = None


class LocalCacheFacts(OpenRecord):
    """The local cache of a run: where it was, and what it did in each epoch."""

    directory: str = ""
    fs_type: str | None = None
    direct: bool | None = None  # its reads went past the page cache
    share: Figure | None = None  # its size over the stored bytes of the dataset, at most 1
    kept: str = ""  # where the copies are, if they were kept
    epochs: list[CachedEpoch] = []


class TrainingRun(Record):
    """A workload over a dataset: each stage alone, then all of them together, repeatedly."""

    kind: Literal["training"] = "training"
    accelerators: Ranks = 1
    workload: WorkloadFacts
    dataset: DatasetFacts = DatasetFacts()
    loader: LoaderFacts = LoaderFacts()
    trained: StepFacts | None = None  # by rank 0, if the accelerator is a real model
    work: ModelWork | None = None  # of that model
    # storage_raw, fetch, prep, loader, accelerator; and cache, that of a local cache's disk
    ceilings: dict[str, Ceiling] = {}
    local_cache: LocalCacheFacts | None = None
    repetitions: list[Repetition] = []
    curve: RunCurve | None = None  # of the storage; None if not measured
    ablations: list[Ablation] = []
    no_ablations: str = ""  # why there are none: the verdict is then inferred
    verdict: Verdict | None = None
    confirmations: list[Confirmation] = []  # advice that was tried
    no_confirmations: str = ""  # why none was tried, although that was asked for
    find_max: FindMax | None = None
    hosts: list[JobHost] = []  # of the job; empty: there was one
    started_by: str = ""  # what started iobench on many hosts
    barrier_s: float | None = None  # of all hosts, none of which is late: the median
    saves: Study | None = None  # the checkpoints that were saved while loading, if there were any
    quiet: Repetition | None = None  # then: a repetition without saves
    watched: WatchFacts | None = None  # if the user's own script trained
    fitted: FittedFacts | None = None  # if a budget had no time for the workload's own steps

    @property
    def subject(self) -> Subject:
        """The loader that was measured."""
        settings = self.workload.loader
        anew = self.workers > 0 and settings.persistent_workers is False
        kind = self.loader.kind or settings.kind
        return subject_of(kind, watched=self.watched is not None, anew=anew)

    @property
    def workers(self) -> int:
        """Number of loader workers of each rank; 0: the ranks load without workers."""
        recorded = "workers" in self.loader.model_fields_set
        return self.loader.workers if recorded else self.workload.loader.workers

"""What a run leaves behind: ``run.json`` (this schema) and ``events.parquet`` (one row per step, see EVENT_COLUMNS).

A value that was not measured is None, and ``not_measured`` beside it maps the key to the reason; it is never 0.
Units are in the names. Readers ignore keys they do not know, so a newer minor version stays readable; ``schema_version`` changes its
first number only when an existing key changes its meaning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ..errors import IobenchError
from .base import Record, fitting, read_record
from .checkpoint import Study
from .facts import RunFacts

SCHEMA_VERSION = "1.0"

EVENT_COLUMNS = {
    "phase": "str: calibrate.fetch, calibrate.prep, calibrate.harness, calibrate.accelerator, measure, quiet, find-max.<N>",
    "repetition": "uint16, from 0",
    "rank": "uint16, the accelerator's number, from 0",
    "epoch": "uint16, from 0 within the repetition",
    "step": "uint32, first step of the row, from 0 within the epoch",
    "steps": "uint32, steps merged in this row (1 until the recorder's bound is reached)",
    "start_ns": "int64, when the rank asked for the batch, from the epoch's common start",
    "wait_ns": "int64, from asking for the batch to having it",
    "copy_ns": "int64, copying the batch to the device (0 without a device)",
    "busy_ns": "int64, nominal busy time of the accelerator",
    "late_ns": "int64, how far past its deadline the emulation woke up (compensated in the next step)",
    "samples": "uint32",
    "bytes_read": "int64, counted by the worker where it reads, direct IO's alignment excess included; by a library: as sample_bytes",
    "sample_bytes": "int64, bytes of the samples as stored",
    "read_ns": "int64, the worker's time in storage reads for this batch",
    "prep_ns": "int64, the worker's time in decompress, decode, check and collate for this batch",
    "retries": "uint32, requests that the worker sent again while it made this batch",
    "throttled": "uint32, of these: because the server asked to slow down",
    "checkpoint_ns": "int64, after this step: how long the rank stood still for a checkpoint, waiting for the other ranks included",
}
LATER_COLUMNS = ("retries", "throttled", "checkpoint_ns")
"""Columns of EVENT_COLUMNS that runs of older versions do not have."""


class Finding(Record):
    """The outcome of one rule that did not simply pass."""

    rule: str  # stable id, e.g. "cache.cold-residency"
    level: Literal[
        "info", "warning", "invalid", "unknown"
    ]  # unknown: the evidence is missing, neither pass nor fail
    evidence: str
    remedy: str = ""


class Epoch(Record):
    """One epoch of a repetition: what the events cannot know, and their bytes beside it."""

    epoch: int
    residency_before: float | None = None  # share of the dataset's bytes in the page cache, 0 to 1
    residency_how: str = ""  # cachestat, mincore, or why it was not measured
    bytes_read: int | None = None  # by our readers in this epoch; None: by a library, not seen
    sample_bytes: int | None = None  # stored bytes of the samples that the epoch delivered
    bytes_fetched: int | None = None  # what ranks and workers made the storage deliver meanwhile
    fetched_how: str = ""  # which counter, and what it can't see; or why it was not measured
    startup_s: float | None = (
        None  # from the common start to the first read of any worker (process creation, not storage)
    )


class Ceiling(Record):
    """What one stage can do alone, over all accelerators of the run."""

    samples_per_s: float | None = None
    bytes_per_s: float | None = None  # stored bytes, so that all ceilings share one unit
    cpu_s_per_gb: float | None = (
        None  # CPU seconds per 1e9 stored bytes, all processes of the stage
    )
    how: str = ""  # what was measured, in one sentence
    not_measured: str = ""  # why, where the figures are None
    details: dict[str, Any] = {}
    cold: Epoch | None = None  # measured over cold storage: its bytes, over all of its epochs


class Repetition(Record):
    """One repetition: context as recorded, and figures computed from the events (analyse.metrics.repetition_metrics)."""

    seed: int
    accelerators: int
    epochs: list[Epoch] = []
    complete: bool = True  # False: interrupted, or stopped before all steps
    cpu_s: float | None = None  # ranks and workers
    throttled_s: float | None = None  # time this cgroup was throttled by its CPU quota
    nfs: dict[str, Any] | None = (
        None  # what the NFS mount did (measure.nfs.diff): read_ops, read_bytes, read_rtt_ms, retransmits ...
    )
    residency_before: float | None = None  # the largest of the epochs'
    samples: int = 0
    steps: int = 0  # of all ranks together
    bytes_read: int | None = 0  # None: by a loader library, whose reads are not seen
    retries: int | None = None  # requests that were sent again; None: not recorded
    throttled: int | None = None  # of these: because the server asked to slow down
    sample_bytes: int = 0  # stored bytes of the samples delivered; bytes_read is at least this much, or the data came from elsewhere
    wall_s: float | None = None
    checkpoint_s: float | None = (
        None  # of this, standing still for checkpoints, mean over ranks; None where none was asked for
    )
    read_s: float | None = None  # in storage reads, sum over the workers of all ranks
    busy_s: float | None = None  # mean over ranks
    wait_s: float | None = None  # mean over ranks
    time_to_first_batch_s: float | None = None
    accelerator_utilization: float | None = (
        None  # MLPerf Storage's: first step of each epoch left out
    )
    accelerator_utilization_sustained: float | None = (
        None  # busy over the wall time less process creation: what the verdict goes by
    )
    accelerator_utilization_strict: float | None = None  # busy over the whole wall time
    samples_per_s: float | None = None
    read_bytes_per_s: float | None = None  # of sample_bytes where bytes_read is None
    read_amplification: float | None = (
        None  # bytes_read / sample_bytes: whole row groups, footers, and direct IO's alignment count
    )
    wait_p50_s: float | None = None
    wait_p99_s: float | None = None
    late_p99_s: float | None = None  # emulation error
    not_measured: dict[str, str] = {}


class Summary(Record):
    """Over repetitions: they, not steps, are the sampling unit."""

    median: float
    min: float
    max: float
    n: int


class Advice(Record):
    change: str
    predicted_gain: float | None = None  # factor on samples/s, 1.3 = 30 % more
    basis: str


class Verdict(Record):
    binds: Literal["storage", "prep", "harness", "accelerator", "undecided"]
    sentence: str
    starved: bool | None = None  # accelerator utilization below what the workload requires
    headroom: float | None = None  # what storage delivers over what the accelerators demand
    accelerators_fed: int | None = None  # at the required utilization, by the storage alone
    predicted_samples_per_s: float | None = None
    measured_samples_per_s: float | None = None
    fetch_stall: float | None = None  # share of the time, 0 to 1
    prep_stall: float | None = None
    advice: list[Advice] = []
    not_measured: dict[str, str] = {}


class FindMaxPoint(Record):
    accelerators: int
    accelerator_utilization: float | None
    accelerator_utilization_sustained: float | None = None  # decides whether the point passes
    samples_per_s: float | None
    read_bytes_per_s: float | None
    passed: bool
    startup_s: float | None = None  # from the common start to the first read, as in Epoch
    not_measured: dict[str, str] = {}


class FindMax(Record):
    """The search for the largest number of accelerators at the required utilization, in the order tried."""

    required_accelerator_utilization: float
    accelerators: int | None  # None: not even one (where ``bound`` is set: none of those tried)
    points: list[FindMaxPoint]
    bound: str = ""  # set where the search stopped for another reason than storage


class RunDocument(Record):
    schema_version: str = SCHEMA_VERSION
    iobench_version: str
    run_id: str
    created: str  # ISO 8601, UTC
    command: list[str]
    status: Literal["ok", "failed", "interrupted"]
    validity: Literal["valid", "invalid", "unknown"]
    rules: str = "quick"
    accelerators: int = 1
    findings: list[Finding] = []
    workload: dict[str, Any]  # the complete Workload
    dataset: dict[str, Any]  # {spec, id, samples, shards, stored_bytes, sample_bytes_mean}
    host: dict[str, Any]  # measure.host.fingerprint()
    storage: dict[str, Any]  # Storage.facts(): url, file system, mount options, device ...
    loader: dict[str, Any] = {}  # what was really used: direct, slot bytes, huge pages, workers
    ceilings: dict[str, Ceiling] = {}  # storage_raw, fetch, prep, harness, accelerator
    repetitions: list[Repetition] = []
    metrics: dict[str, Summary] = {}
    verdict: Verdict | None = None
    find_max: FindMax | None = None
    quiet: Repetition | None = (
        None  # where checkpoints were saved while loading: a repetition without them
    )
    checkpoint: Study | None = (
        None  # of a checkpoint study, or of a run that saves checkpoints while it loads
    )
    timings: dict[str, float] = {}  # seconds spent in each phase of the run
    error: str = ""  # one line, where status is failed


def load_run(directory: Path) -> RunDocument:
    """``run.json`` of a run directory, or the file itself.

    Raises IobenchError in one line for anything unreadable, or whose values are not of the kind
    that the analysis computes with; the line names the file and the key.
    """
    path = directory if directory.is_file() else directory / "run.json"
    try:
        document, data = read_record(path, RunDocument, version=SCHEMA_VERSION)
    except FileNotFoundError:
        raise IobenchError(
            f"no run.json in {directory}", remedy="name a run directory, e.g. results/<run>"
        ) from None
    fitting(path, RunFacts, data)
    return document

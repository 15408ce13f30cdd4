"""The record of a run: ``run.json``, whose schema this is.

``RunRecord`` is the head that all runs share. What the run did is its ``job``, by whose ``kind``
the record is read as one of its subclasses. A further kind of job is a module like
``schema.training``, and one subclass here.

A value that was not measured is None, never 0. Units are in the names. Readers ignore unknown keys,
so that files of a newer minor version can be read. The first number of ``schema_version`` changes
only if an existing key moves or changes its meaning; ``schema.upgrade`` reads earlier versions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from ..errors import IobenchError, UsageError
from ..text import printable
from .base import Record, fitting, read_json
from .checkpoint import CheckpointRun, Study
from .host import Host, StorageFacts
from .training import TrainingRun
from .upgrade import SCHEMA_VERSION, upgraded

RUN_FILE, EVENTS_FILE, SAMPLES_FILE = "run.json", "events.parquet", "resources.parquet"
"""The documents of a run directory."""


class Finding(Record):
    """The outcome of one rule that did not pass, or that passed with a remark."""

    rule: str  # stable id, e.g. "cache.cold-residency"
    # unknown: the evidence is missing, so that the rule neither passes nor fails
    level: Literal["info", "warning", "invalid", "unknown"]
    evidence: str
    remedy: str = ""


class Summary(Record):
    """Statistics of one metric over repetitions; these, not steps, are the sampling unit."""

    median: float
    min: float
    max: float
    n: int


class RunRecord(Record):
    """The head of every run, and its ``job``."""

    schema_version: str = SCHEMA_VERSION
    iobench_version: str
    run_id: str
    created: str  # ISO 8601, UTC
    command: list[str]
    status: Literal["ok", "failed", "interrupted"]
    validity: Literal["valid", "invalid", "unknown"]
    rules: str = "quick"
    findings: list[Finding] = []
    metrics: dict[str, Summary] = {}  # by the names of schema.metrics
    timings: dict[str, float] = {}  # seconds spent in each phase of the run
    error: str = ""  # one line, if status is failed
    hosts: list[Host]  # in the order of their ranks
    storage: StorageFacts
    job: TrainingRun | CheckpointRun

    @property
    def host(self) -> Host:
        """The host of the first rank. Its figures are those of one host, not of the run."""
        return self.hosts[0] if self.hosts else Host()

    @property
    def memory_bytes(self) -> int | None:
        """Memory of all hosts together; None if that of a host is not known."""
        known = [host.memory_bytes for host in self.hosts]
        return sum(filter(None, known)) if known and all(known) else None

    @property
    def checkpoints(self) -> Study | None:
        """The checkpoints that the run saved; None if it was not asked to save any."""
        return None

    def with_job(self, **changes: object) -> Self:
        """A copy whose job has these keys changed."""
        return self.model_copy(update={"job": self.job.model_copy(update=changes)})


class TrainingRecord(RunRecord):
    """A run that loaded data."""

    job: TrainingRun

    @property
    def checkpoints(self) -> Study | None:
        return self.job.saves


class CheckpointRecord(RunRecord):
    """A checkpoint study alone."""

    job: CheckpointRun

    @property
    def checkpoints(self) -> Study:
        return self.job


KINDS: dict[str, type[RunRecord]] = {"training": TrainingRecord, "checkpoint": CheckpointRecord}


def load_run(directory: Path) -> RunRecord:
    """Load ``run.json``; ``directory`` is a run directory, or the file itself.

    Return the record as the subclass of its kind of job. Raises IobenchError in one line, which
    names the file and the key, if the file cannot be read or does not fit the schema.
    """
    path = directory if directory.is_file() else directory / RUN_FILE
    try:
        data = upgraded(read_json(path, versions=(SCHEMA_VERSION, "1.0")))
    except FileNotFoundError:
        raise IobenchError(
            f"no {RUN_FILE} in {directory}", remedy="name a run directory, e.g. results/<run>"
        ) from None
    job = data.get("job")
    kind = job.get("kind") if isinstance(job, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise IobenchError(
            f"{path} does not fit the schema: 'job.kind' is {printable(repr(kind))[:60]}, "
            f"known kinds: {', '.join(KINDS)}",
            remedy="use the iobench that wrote it, or a newer one",
        )
    return fitting(path, KINDS[kind], data)


def load_training(directory: Path) -> TrainingRecord:
    """Load the record of a run that loaded data.

    Raises IobenchError as ``load_run`` does, and UsageError for a run of another kind.
    """
    record = load_run(directory)
    if not isinstance(record, TrainingRecord):
        raise UsageError(
            f"{directory} is a {record.job.kind} run, which loaded no data",
            remedy="name a run of 'iobench run'",
        )
    return record

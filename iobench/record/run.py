"""The record of a run: ``run.json``, whose schema this is.

``RunRecord`` is the head that all runs share. What the run did is its ``job``, by whose ``kind``
the record is read as one of its subclasses. A further kind of job is a module like
``record.training``, and one subclass here.

A value that was not measured is None, never 0. Units are in the names. Readers ignore unknown keys,
so that files of a newer minor version can be read. The first number of ``schema_version`` changes
only if an existing key moves or changes its meaning; a record of another first number is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import Field, PrivateAttr

from ..base.beneath import open_regular
from ..base.errors import IobenchError, UsageError
from ..base.text import printable, quoted
from ..settings.base import Count, Record, RecordHead, fitting, read_json
from .ab import AB_FILE
from .checkpoint import CheckpointRun, Study
from .host import Host, StorageFacts
from .model_load import ModelLoadRun
from .serving import KvCacheRun, ServingRun
from .sweep import SWEEP_FILE
from .training import TrainingRun

SCHEMA_VERSION = "2.1"

RUN_FILE, EVENTS_FILE, SAMPLES_FILE = "run.json", "events.parquet", "resources.parquet"
"""The documents of a run directory."""


class Finding(Record):
    """The outcome of one rule that did not pass, or that passed with a remark."""

    rule: str  # stable id, e.g. "cache.cold-residency"
    # unknown: the evidence is missing, so that the rule neither passes nor fails
    level: Literal["info", "warning", "invalid", "unknown"]
    evidence: str
    remedy: str = ""


class FileDigest(Record):
    """What a table of the run directory contained when the run was written."""

    rows: Count
    xxh3: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]  # of the whole file


class Summary(Record):
    """Statistics of one metric over repetitions; these, not steps, are the sampling unit."""

    median: float
    min: float
    max: float
    n: int

    @classmethod
    def of(cls, values: Mapping[str, Sequence[float]]) -> dict[str, Self]:
        """Those of all metrics, by their names; one without any value is left out."""
        return {
            name: cls(median=median(each), min=min(each), max=max(each), n=len(each))
            for name, each in values.items()
            if each
        }


CHANGED = "record.changed"
"""The rule that a record and what lies beside it belong together."""

CHANGED_REMEDY = "take the directory from where it was written, or run again"


Job = TrainingRun | CheckpointRun | ModelLoadRun | ServingRun | KvCacheRun
"""What a run did, by its ``kind``."""


class RunRecord(RecordHead):
    """The head of every run, and its ``job``."""

    schema_version: str = SCHEMA_VERSION
    run_id: str
    status: Literal["ok", "failed", "interrupted"]
    validity: Literal["valid", "invalid", "unknown"]
    rules: str = "quick"
    findings: list[Finding] = []
    metrics: dict[str, Summary] = {}  # by the names of schema.metrics
    timings: dict[str, float] = {}  # seconds spent in each phase of the run
    files: dict[str, FileDigest] = {}  # events.parquet and resources.parquet, where there are some
    hosts: list[Host]  # in the order of their ranks
    storage: StorageFacts
    job: Job

    # The metric by which runs and repetitions of this kind are compared.
    headline: ClassVar[str] = ""

    # What is not as it was recorded; found when the record is loaded and computed again.
    _changed: tuple[str, ...] = PrivateAttr(default=())

    @property
    def changed(self) -> tuple[str, ...]:
        """What was found to differ from the record since it was loaded, each in a sentence."""
        return self._changed

    def with_changes(self, found: Sequence[str]) -> Self:
        """A copy that also knows of these differences."""
        copy = self.model_copy()
        copy._changed = tuple(dict.fromkeys((*self._changed, *found)))
        return copy

    @property
    def host(self) -> Host:
        """The host of the first rank. Its figures are those of one host, not of the run."""
        return self.hosts[0] if self.hosts else Host()

    @property
    def memory_bytes(self) -> int | None:
        """Memory of all hosts together that the run could use; None if one's is not known.

        Less than they have where a control group limits it, which counts the page cache, too.
        """
        known = [host.effective_memory_bytes or host.memory_bytes for host in self.hosts]
        return sum(filter(None, known)) if known and all(known) else None

    @property
    def installed_memory_bytes(self) -> int | None:
        """Memory that all hosts have; None if that of a host is not known."""
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

    headline = "samples_per_s"
    job: TrainingRun

    @property
    def checkpoints(self) -> Study | None:
        return self.job.saves


class CheckpointRecord(RunRecord):
    """A checkpoint study alone."""

    headline = "blocked_s"
    job: CheckpointRun

    @property
    def checkpoints(self) -> Study:
        return self.job


class ModelLoadRecord(RunRecord):
    """Loads of a model's weights."""

    headline = "ready_s"
    job: ModelLoadRun


class ServingRecord(RunRecord):
    """A run that answered requests."""

    headline = "latency_p99_s"
    job: ServingRun


class KvCacheRecord(RunRecord):
    """A run that kept a KV cache on storage."""

    job: KvCacheRun


RequestsRecord = ServingRecord | KvCacheRecord
"""Runs of requests that arrive by themselves."""

PricedRecord = TrainingRecord | ServingRecord
"""Runs that tell how many samples a host takes in a second."""

KINDS: dict[str, type[RunRecord]] = {
    "training": TrainingRecord,
    "checkpoint": CheckpointRecord,
    "model-load": ModelLoadRecord,
    "serving": ServingRecord,
    "kv-cache": KvCacheRecord,
}


def load_run(directory: Path) -> RunRecord:
    """Load ``run.json``; ``directory`` is a run directory, or the file itself.

    Return the record as the subclass of its kind of job. Raises IobenchError in one line, which
    names the file and the key, if the file cannot be read or does not fit the schema.
    """
    path = directory if directory.is_file() else directory / RUN_FILE
    _check_of_a_run(path)
    data = read_json(path, version=SCHEMA_VERSION, what="a run directory, e.g. results/<run>")
    job = data.get("job")
    kind = job.get("kind") if isinstance(job, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise IobenchError(
            f"{path} does not fit the schema: 'job.kind' is {printable(repr(kind))[:60]}, "
            f"known kinds: {', '.join(KINDS)}",
            remedy="use the iobench that wrote it, or a newer one",
        )
    record = fitting(path, KINDS[kind], data)
    changed = list(_changed_files(path.parent, record))
    if not changed:
        return record
    evidence = "; ".join(changed)
    record.findings.append(
        Finding(rule=CHANGED, level="unknown", evidence=evidence, remedy=CHANGED_REMEDY)
    )
    if record.validity == "valid":
        record.validity = "unknown"
    return record.with_changes(changed)


_OF_SEVERAL = {AB_FILE: "iobench ab", SWEEP_FILE: "iobench sweep"}


def _check_of_a_run(path: Path) -> None:
    """Raise IobenchError if the record, or its directory without one, is that of several runs."""
    place = path.parent
    for file, verb in _OF_SEVERAL.items():
        if path.name == file or (not path.is_file() and (place / file).is_file()):
            runs = sorted(each.parent for each in place.glob(f"*/{RUN_FILE}"))
            named = f"one of its runs, such as {runs[0]}" if runs else "a run directory"
            report = f"iobench report {quoted(str(place))}"
            raise IobenchError(
                f"{place} is the directory of {verb}, which has several runs",
                remedy=f"name {named}, or report it alone: {report}",
            )


def digest_of(path: Path, rows: int) -> FileDigest:
    """The digest of a table with so many rows. Raises OSError, also if it is no regular file."""
    import xxhash

    digest = xxhash.xxh3_64()
    with open(open_regular(path), "rb", buffering=0) as file:
        while chunk := file.read(8 << 20):
            digest.update(chunk)
    return FileDigest(rows=rows, xxh3=digest.hexdigest())


def _changed_files(directory: Path, record: RunRecord) -> Iterator[str]:
    """Yield a sentence for each table of the directory that is not the one of the record.

    A table that is not there is no other one: its figures are then shown as they were recorded.
    """
    for name in (EVENTS_FILE, SAMPLES_FILE):
        if not (directory / name).is_file():
            continue
        known = record.files.get(name)
        if known is None:
            yield f"{RUN_FILE} has no digest of {name}, so nobody knows whether it is of this run"
            continue
        try:
            found = digest_of(directory / name, known.rows)
        except OSError:
            continue  # whoever needs its rows tells why it can't be read
        if found != known:
            yield f"{name} is not the file that the run has written (its xxh3 is {found.xxh3})"


K = TypeVar("K", bound=RunRecord)

_LACKS: dict[type[RunRecord], tuple[str, str]] = {
    TrainingRecord: ("loaded no data", "run"),
    ServingRecord: ("served no requests", "serve"),
    ModelLoadRecord: ("loaded no model", "load"),
}
"""What a run of another kind has not done, and the verb that does it."""


def load_kind(directory: Path, kind: type[K]) -> K:
    """Load the record of a run of this kind, one of ``_LACKS``.

    Raises IobenchError as ``load_run`` does, and UsageError for a run of another kind.
    """
    record = load_run(directory)
    if not isinstance(record, kind):
        lacks, verb = _LACKS[kind]
        raise UsageError(
            f"{directory} is a {record.job.kind} run, which {lacks}",
            remedy=f"name a run of 'iobench {verb}'",
        )
    return record


def load_training(directory: Path) -> TrainingRecord:
    """Load the record of a run that loaded data. Raises as ``load_kind``."""
    return load_kind(directory, TrainingRecord)

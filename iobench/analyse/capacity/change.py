"""The changes of a what-if question, and the settings of the job under them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...errors import UsageError
from ...schema.job import LoaderFacts, WorkloadFacts
from ...schema.record import TrainingRecord
from ...units import counted, format_duration
from ..figures.in_flight import run_reads_in_flight
from ..verdict.judged import gather, is_null_accelerator, step_time_s

MAX_COUNT = 10**6 - 1
"""Largest number of workers, accelerators or reads in flight."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A new value, or a factor on the recorded one (``2x``)."""

    value: float
    relative: bool = False

    def of(self, recorded: float | None, what: str) -> float:
        """The new value. Raises UsageError for a factor if there is no recorded value."""
        if not self.relative:
            return self.value
        if recorded is None:
            raise UsageError(
                f"the run recorded no {what} to multiply by {self.value:g}",
                remedy="give the new value instead of a factor",
            )
        return self.value * recorded


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What changes; None keeps the recorded value."""

    storage_bandwidth: Quantity | None = None  # bytes/s
    latency: Quantity | None = None  # seconds of one read
    concurrency: Quantity | None = None  # reads in flight in each worker
    cache_bytes: int | None = None  # of this host
    pinned: bool = False  # the cache evicts nothing
    workers: Quantity | None = None  # of each accelerator
    accelerators: Quantity | None = None
    step_time: Quantity | None = None  # seconds
    # what the host's network sustains, if the storage is behind it
    network_bytes_per_s: float | None = None
    network_of: str = ""  # the instance that has this network

    @property
    def empty(self) -> bool:
        return self == Change(pinned=self.pinned)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a prediction is based on, one line each."""

    changes: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)  # that were used, with their validity


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The job's settings after the change, and the parts of the document that hold them."""

    ranks: int
    workers: int  # of each rank
    reads: int  # in flight at most, over all ranks
    workload: WorkloadFacts
    loader: LoaderFacts

    @property
    def busy(self) -> int:
        """Processes that prepare samples: workers, or the ranks themselves."""
        return self.ranks * max(1, self.workers)


def changed_settings(doc: TrainingRecord, change: Change, why: Explanation) -> Settings:
    """The settings under ``change``. Raises UsageError for a value that is not valid."""
    before = gather(doc)
    workers = _whole(change.workers, before.workers / doc.job.accelerators, "workers", 0)
    ranks = _whole(change.accelerators, doc.job.accelerators, "accelerators", 1)
    concurrency = _whole(change.concurrency, before.concurrency, "reads in flight", 1)
    asked = doc.job.workload
    workload = asked.model_copy(
        update={
            "loader": asked.loader.model_copy(update={"workers": workers}),
            "reader": asked.reader.model_copy(update={"concurrency": concurrency}),
        }
    )
    if change.cache_bytes is not None:  # reads that a cache serves are not cold
        workload = workload.model_copy(update={"cache": "warm"})
    if change.workers is not None:
        why.changes.append(
            f"{counted(workers, 'worker')} for each accelerator instead of "
            f"{before.workers // doc.job.accelerators}"
        )
    if change.accelerators is not None:
        why.changes.append(
            f"{counted(ranks, 'accelerator')} on this host instead of {doc.job.accelerators}"
        )
    if change.concurrency is not None:
        why.changes.append(
            f"{counted(concurrency, 'read')} in flight in each worker instead of "
            f"{before.concurrency}"
        )
    if change.step_time is not None:
        recorded = step_time_s(doc)
        if is_null_accelerator(doc) or recorded is None:
            raise UsageError(
                "the accelerator of this run has no step time that could be changed",
                remedy="name a run with an emulated accelerator",
            )
        new = change.step_time.of(recorded, "step time")
        if new <= 0:
            raise UsageError(
                f"the step time must be more than 0, but is {new:g} s",
                remedy="give e.g. 100ms or 0.5x",
            )
        faster = asked.accelerator.model_copy(update={"step_time": new})
        workload = workload.model_copy(update={"accelerator": faster})
        why.changes.append(
            f"a step time of {format_duration(new)} instead of {format_duration(recorded)}"
        )
    return Settings(
        ranks=ranks,
        workers=workers,
        reads=run_reads_in_flight(doc, concurrency=concurrency, workers=workers, ranks=ranks),
        workload=workload,
        loader=doc.job.loader.model_copy(update={"workers": workers}),
    )


def _whole(change: Quantity | None, recorded: float, what: str, least: int) -> int:
    if change is None:
        return int(recorded)
    value = change.of(recorded, what)
    if value != int(value) or not least <= value <= MAX_COUNT:
        raise UsageError(
            f"the number of {what} must be a whole number from {least} to {MAX_COUNT}, but is "
            f"{value:g}",
            remedy="give such a number, or a factor that results in one",
        )
    return int(value)

"""The job in ``run.json``: the requested workload and dataset, and the loader that ran.

What a user asked for is recorded as it was asked: the specifications of ``settings.workload`` and
``settings.dataset``. The keys of what was found are declared here; others stay as they were
written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from statistics import fmean, median
from typing import Annotated, Any

from pydantic import Field, model_validator

from ..base.units import MIN_SHARE
from ..settings.base import Count, Few, Figure, Number, OpenRecord
from ..settings.dataset import DatasetSpec
from ..settings.workload import AcceleratorSpec, EvaluationSpec, LocalCacheSpec, LogSpec, ReaderSpec


class LoaderSettings(OpenRecord):
    kind: str | None = None
    workers: Few = 0
    prefetch_factor: Few = 2
    persistent_workers: bool | None = None
    transport: str | None = None


class WorkloadFacts(OpenRecord):
    """The complete workload; of a training that was watched, what is known of it."""

    name: str
    accelerator: AcceleratorSpec
    batch_size: Annotated[int, Field(ge=1, le=10**9)] | None = None
    epochs: Annotated[int, Field(ge=1, le=10**9)] = 1
    max_steps: Number | None = None
    cache: str = "cold"
    required_accelerator_utilization: Annotated[float, Field(ge=MIN_SHARE, le=1)] = 0.9
    reader: ReaderSpec = ReaderSpec(concurrency=1)
    loader: LoaderSettings = LoaderSettings()
    local_cache: LocalCacheSpec | None = None
    evaluation: EvaluationSpec | None = None
    log: LogSpec = LogSpec()


class DatasetFacts(OpenRecord):
    """The dataset's specification and facts of its manifest.

    ``spec`` is None for data that has no manifest.
    """

    spec: DatasetSpec | None = None
    # Location of the manifest with its wrappers, absolute for a local path, and that of the data
    # of a scanned dataset, if the user named it.
    location: str | None = None
    origin: str | None = None
    id: str | None = None
    samples: Number | None = None
    shards: Number | None = None
    held_out: Count = 0  # samples that are evaluated, and in no epoch of the training
    files: Count | None = None  # of a directory without a manifest
    stored_bytes: Count | None = None
    sample_bytes_mean: Figure | None = None
    blocks: bool | None = None  # its format is read by blocks (row groups)
    cheaper_codecs: list[str] | None = None  # that decompress faster; the slowest first
    changed: list[str] | None = None  # keys whose objects changed while the run read them
    changed_unknown: str | None = None  # why ``changed`` is not known

    @property
    def in_epoch(self) -> int | None:
        """The samples of an epoch of the training."""
        return self.samples - self.held_out if self.samples else None

    @property
    def asked(self) -> dict[str, Any]:
        """The keys of the specification; none of data without a manifest."""
        return self.spec.model_dump(mode="json") if self.spec is not None else {}

    @property
    def name(self) -> str:
        """The name of the dataset; of data without a manifest, that of its directory."""
        if self.spec is not None:
            return self.spec.name
        return PurePosixPath(self.location or "").name or "?"


class Delivery(OpenRecord):
    """The samples that a loader library delivered in an epoch, compared with the manifest.

    Either ``not_measured`` is given, or all other keys. ``missing`` is None if only a part of the
    epoch was read.
    """

    not_measured: str | None = None
    delivered: Count = 0
    missing: Count | None = None
    repeated: Count | None = None
    unknown: Count | None = None
    of: Count = 0
    whole_epoch: bool | None = None

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Delivery:
        needed = {"missing", "repeated", "unknown", "delivered", "of", "whole_epoch"}
        if self.not_measured is None and (lacking := needed - self.model_fields_set):
            raise ValueError(f"'{min(lacking)}' is missing")
        return self


class Shuffle(OpenRecord):
    """How well a loader library shuffled; a uniform shuffle has the value 1."""

    not_measured: str | None = None
    distance: float | None = None
    shards_per_batch: float | None = None
    epoch_distance: float | None = None


class LayoutFacts(OpenRecord):
    """Files in its own format that a loader library wrote before the run."""

    bytes: Count
    seconds: Figure
    files: Count | None = None
    made_earlier: bool | None = None


_SUMMED = (
    *("batches", "samples", "delivered_bytes", "process_bytes", "device_bytes", "fetches"),
    *(
        "fetch_wall_s",
        "fetch_cpu_s",
        "fetch_queued_s",
        "collate_s",
        "wait_s",
        "sampler_s",
        "out_of_order_s",
        "hand_over_s",
        "files_inside",
        "files_outside",
        "private_growth_bytes",
    ),
)
"""Figures of a user's loader that are summed over the ranks."""

UNEVEN = 1.5
"""A worker that takes this many times as long as the others is named."""


class UserFacts(OpenRecord):
    """What was seen of a loader of the user's own, over all ranks of a phase.

    Bytes are three figures: ``process_bytes`` returned by read calls of the workers (reads through
    a memory map or of a socket are not among them), ``device_bytes`` delivered by devices to them
    (none from a network file system), and ``delivered_bytes`` in the batches. ``fetch_wall_s`` and
    ``fetch_cpu_s``: time to make the batches and CPU time within it; ``fetch_queued_s`` were waits
    for a core, and the rest other waits.
    ``files_inside`` and ``files_outside`` the dataset were opened by Python; opens inside of
    libraries in other languages are not seen.
    """

    factory: str | None = None
    arguments: dict[str, str] = Field(default_factory=dict)
    type: str | None = None  # of what the factory returned
    workers: Few = 0
    start_method: str | None = None
    batches: Count = 0
    samples: Count = 0
    delivered_bytes: Count = 0
    process_bytes: Count | None = None
    device_bytes: Count | None = None
    fetches: Count = 0
    fetch_wall_s: Figure | None = None
    fetch_cpu_s: Figure | None = None
    fetch_queued_s: Figure | None = None  # waits for a core
    collate_s: Figure | None = None  # of fetch_wall_s
    wait_s: Figure | None = None  # of all ranks for batches
    sampler_s: Figure | None = None  # of it: the sampler chose samples, in the training process
    out_of_order_s: Figure | None = None  # of it: a later batch was ready, and held back
    hand_over_s: Figure | None = None  # of it: the batch was made, but not here yet
    fetch_s_by_worker: list[Figure] = Field(default_factory=list)  # mean for a batch, of each
    sample_s_by_worker: list[Figure] = Field(default_factory=list)  # median for a sample, of each
    batches_by_worker: list[Count] = Field(default_factory=list)  # made by each, if it is iterable
    files_inside: Count | None = None
    files_outside: Count | None = None
    outside: list[str] = Field(default_factory=list)  # names of some of them
    worker_ready_s: Figure | None = None  # longest start of all workers of an epoch
    worker_starts: Few | None = None  # how often they were started
    worker_ready_mean_s: Figure | None = None  # of these
    private_growth_bytes: Count | None = None  # memory that workers wrote, and no longer share
    shared_samples: Count | None = None  # delivered to more than one rank, of ``compared_samples``
    compared_samples: Count | None = None
    # delivered by more than one worker of a rank, of ``worker_compared_samples``
    worker_shared_samples: Count | None = None
    worker_compared_samples: Count | None = None
    not_measured: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def together(cls, ranks: Sequence[UserFacts]) -> UserFacts:
        """The facts of all ranks in one: sums, and the slowest start."""
        update: dict[str, object] = {}
        for name in _SUMMED:
            known = [getattr(each, name) for each in ranks]
            update[name] = None if any(value is None for value in known) else sum(known)
        starts = [each.worker_ready_s for each in ranks if each.worker_ready_s is not None]
        update["worker_ready_s"] = max(starts, default=None)
        means = [one for each in ranks if (one := each.worker_ready_mean_s) is not None]
        update["worker_ready_mean_s"] = max(means, default=None)
        times = [each.worker_starts for each in ranks if each.worker_starts is not None]
        update["worker_starts"] = max(times, default=None)
        for name in ("fetch_s_by_worker", "sample_s_by_worker", "batches_by_worker"):
            update[name] = [each for rank in ranks for each in getattr(rank, name)]
        for name in ("worker_shared_samples", "worker_compared_samples"):
            counts = [count for each in ranks if (count := getattr(each, name)) is not None]
            update[name] = sum(counts) if counts else None
        update["outside"] = sorted({name for each in ranks for name in each.outside})[:10]
        return ranks[0].model_copy(update=update)

    @property
    def cpu_share(self) -> float | None:
        """Share of the time to make batches in which the CPU worked, without waits for a core."""
        if not self.fetch_wall_s or self.fetch_cpu_s is None:
            return None
        had = max(self.fetch_cpu_s, self.fetch_wall_s - (self.fetch_queued_s or 0.0))
        return min(1.0, self.fetch_cpu_s / had) if had else None

    @property
    def usual_start_s(self) -> float | None:
        """Seconds of a start of all workers: the mean, or the longest where that is not known."""
        mean = self.worker_ready_mean_s
        return mean if mean is not None else self.worker_ready_s

    @property
    def sampling(self) -> float | None:
        """Share of the waits for batches in which the sampler chose samples."""
        if not self.wait_s or self.sampler_s is None:
            return None
        return min(1.0, self.sampler_s / self.wait_s)

    @property
    def collating(self) -> float | None:
        """Share of the time to make batches in which ``collate_fn`` put their samples together."""
        if not self.fetch_wall_s or self.collate_s is None:
            return None
        return min(1.0, self.collate_s / self.fetch_wall_s)

    @property
    def batch_bytes(self) -> float | None:
        """Bytes of a batch, on average."""
        return self.delivered_bytes / self.batches if self.batches else None

    @property
    def held_back(self) -> float | None:
        """Share of the waits for batches in which a later batch was ready."""
        if not self.wait_s or self.out_of_order_s is None:
            return None
        return min(1.0, self.out_of_order_s / self.wait_s)

    @property
    def busiest(self) -> float | None:
        """The share of the batches that one worker made, if that is far more than a fair one.

        That of an epoch is rounded up to whole batches.
        """
        made = self.batches_by_worker
        if not made or max(made) <= UNEVEN * fmean(made) + (self.worker_starts or 1):
            return None
        return max(made) / sum(made)

    @property
    def slow_worker(self) -> tuple[float, float] | None:
        """Seconds for a batch of the slowest worker and of the others, if it is far slower.

        A worker that got a few slow samples, or larger batches, is not slow: its usual sample takes
        as long as those of the others.
        """
        means = self.fetch_s_by_worker
        if len(means) < 2:
            return None
        place = means.index(max(means))
        others = 0.0
        for seconds in (self.sample_s_by_worker or means, means):
            others = median(seconds[:place] + seconds[place + 1 :])
            if seconds[place] < UNEVEN * others:
                return None
        return means[place], others


class LoaderFacts(OpenRecord):
    """The settings that the loader of one rank really used."""

    kind: str | None = None
    library: str | None = None  # name and version, if it is not iobench's own loader
    workers: Few = 0
    transport: str | None = None
    access: str | None = None
    direct: bool | None = None
    prefetched_samples: Few | None = None
    # Requests that the reader issues at once for one batch, on average; None: unknown.
    requests_per_batch: Figure | None = None
    # The reader issues requests of later batches while a batch has fewer than reader.concurrency.
    reads_ahead: bool | None = None
    # Batches of a rank that are read at the same time, and so arrive together: one of each worker,
    # or as many as the worker reads ahead.
    round_batches: Few | None = None
    in_flight_batches: Few | None = None
    slot_bytes: Count | None = None
    slots: Few | None = None
    slot_pages: str | None = None
    slot_misses: Count | None = None
    delivery: Delivery | None = None
    shuffle: Shuffle | None = None
    layout: LayoutFacts | None = None
    user: UserFacts | None = None  # what was seen of a loader of the user's own

    @model_validator(mode="after")
    def _a_library_says_it_all(self) -> LoaderFacts:
        if "delivery" in self.model_fields_set:
            for key in ("kind", "library", "delivery", "shuffle"):
                if getattr(self, key) is None:
                    raise ValueError(f"'{key}' is missing")
        return self

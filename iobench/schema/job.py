"""What a run says of its job: the workload and dataset that were asked for, the loader that ran.

These are records of what was asked for once, by any version of iobench. They are therefore less
strict than the specifications that a user writes (``schema.workload``, ``schema.dataset``), of which
they hold all keys: those that the analysis computes with by name, the others as they were written.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from ..units import MIN_SHARE
from .base import OpenRecord
from .numbers import Amount, Count, Duration, Few, Figure, Number


class AcceleratorFacts(OpenRecord):
    kind: str = "emulated"
    name: str | None = None
    step_time: Duration | None = None  # seconds
    device: str | None = None


class ReaderFacts(OpenRecord):
    access: str = "auto"
    concurrency: Annotated[int, Field(ge=1, le=10**6)] = 1
    block_size: Number = 4 << 20
    decode: bool = True
    columns: Number | None = None
    tail: str = "keep"
    mmap: bool = False


class LoaderSettings(OpenRecord):
    kind: str | None = None
    workers: Few = 0
    prefetch_factor: Few = 2
    transport: str | None = None


class WorkloadFacts(OpenRecord):
    """The complete workload; of a checkpoint study alone, nothing."""

    name: str = "?"
    accelerator: AcceleratorFacts = AcceleratorFacts()
    batch_size: Annotated[int, Field(ge=1, le=10**9)] | None = None
    epochs: Annotated[int, Field(ge=1, le=10**9)] = 1
    max_steps: Number | None = None
    cache: str = "cold"
    required_accelerator_utilization: Annotated[float, Field(ge=MIN_SHARE, le=1)] = 0.9
    reader: ReaderFacts = ReaderFacts()
    loader: LoaderSettings = LoaderSettings()


class SampleSizeFacts(OpenRecord):
    mean: Amount | None = None  # bytes, before the codec


class DatasetSpecFacts(OpenRecord):
    name: str = "?"
    format: str = ""
    content: str = "raw"
    codec: str = "none"
    compress_ratio: Annotated[float, Field(ge=1, le=1000)] = 1.0
    sample_size: SampleSizeFacts = SampleSizeFacts()
    seed: int | None = None


class DatasetFacts(OpenRecord):
    """The dataset's specification, and what its manifest says; of a checkpoint study, nothing."""

    spec: DatasetSpecFacts = DatasetSpecFacts()
    id: str | None = None
    samples: Number | None = None
    shards: Number | None = None
    stored_bytes: Count | None = None
    sample_bytes_mean: Figure | None = None
    blocks: bool | None = None  # its format is read a row group at a time
    cheaper_codecs: list[str] | None = None  # that cost less to undo; the dearest first
    changed: list[str] | None = None  # keys whose objects changed while the run read them
    changed_unknown: str | None = None  # why that is not known


class Delivery(OpenRecord):
    """What a loader library delivered in an epoch, against the manifest.

    ``not_measured`` alone, or all of the others. ``missing`` is None of a part of an epoch.
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
    """How well a loader library shuffled; 1 is what a uniform shuffle gives."""

    not_measured: str | None = None
    distance: float | None = None
    shards_per_batch: float | None = None
    epoch_distance: float | None = None


class Layout(OpenRecord):
    """Files of its own that a loader library wrote before the run."""

    bytes: Count
    seconds: Figure
    files: Count | None = None
    made_earlier: bool | None = None


class LoaderFacts(OpenRecord):
    """What the loader really used, of one rank."""

    kind: str | None = None
    library: str | None = None  # name and version, where it is not iobench's own
    workers: Few = 0
    transport: str | None = None
    access: str | None = None
    direct: bool | None = None
    prefetched_samples: Few | None = None
    in_flight_batches: Few | None = None
    slot_bytes: Count | None = None
    slots: Few | None = None
    slot_pages: str | None = None
    slot_misses: Count | None = None
    delivery: Delivery | None = None
    shuffle: Shuffle | None = None
    layout: Layout | None = None

    @model_validator(mode="after")
    def _a_library_says_it_all(self) -> LoaderFacts:
        if "delivery" in self.model_fields_set:
            for key in ("kind", "library", "delivery", "shuffle"):
                if getattr(self, key) is None:
                    raise ValueError(f"'{key}' is missing")
        return self

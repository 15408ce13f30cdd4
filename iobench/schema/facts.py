"""The kinds of values in the free-form parts of ``run.json``, checked when a run is loaded.

``RunDocument`` keeps what was asked and what was found (workload, dataset, host, storage, loader)
as plain mappings of many keys, most of which are only shown. The models here name the keys that the
analysis computes with, with their types and bounds. Keys that are missing or unknown are accepted,
since they differ between versions of iobench. So a value of the wrong kind is one line that names
its key, and never an exception somewhere in the analysis.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..units import MAX_SECONDS, MIN_SECONDS, MIN_SHARE

MAX_COUNT = 2**63 - 1

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Number = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Few = Annotated[int, Field(ge=0, le=10**9)]
"""Processes, steps, requests: what loops run over, or products are made of."""
Figure = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(ge=1e-30)]


class _Facts(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _Accelerator(_Facts):
    kind: str | None = None
    name: str | None = None
    step_time: Annotated[float, Field(ge=MIN_SECONDS, le=MAX_SECONDS)] | None = None


class _Reader(_Facts):
    access: str | None = None
    concurrency: Annotated[int, Field(ge=1, le=10**6)] = 1
    block_size: Number = 1
    decode: bool | None = None
    columns: Number | None = None
    tail: str | None = None
    mmap: bool | None = None


class _LoaderSettings(_Facts):
    kind: str | None = None
    workers: Few = 0
    prefetch_factor: Few = 2
    transport: str | None = None


class WorkloadFacts(_Facts):
    name: str = ""
    accelerator: _Accelerator | None = None
    batch_size: Annotated[int, Field(ge=1, le=10**9)] = 1
    epochs: Annotated[int, Field(ge=1, le=10**9)] = 1
    max_steps: Number | None = None
    cache: str = "cold"
    required_accelerator_utilization: Annotated[float, Field(ge=MIN_SHARE, le=1)] = 0.9
    reader: _Reader | None = None
    loader: _LoaderSettings | None = None


class _SampleSize(_Facts):
    mean: Positive | None = None


class _DatasetSpec(_Facts):
    name: str = ""
    format: str = ""
    content: str = ""
    codec: str = ""
    compress_ratio: Annotated[float, Field(ge=1, le=1000)] = 1.0
    sample_size: _SampleSize | None = None


class DatasetFacts(_Facts):
    spec: _DatasetSpec | None = None
    samples: Number | None = None
    shards: Number | None = None
    stored_bytes: Count | None = None
    sample_bytes_mean: Figure | None = None
    blocks: bool | None = None
    cheaper_codecs: list[str] | None = None
    changed: list[str] | None = None
    changed_unknown: str | None = None


class HostFacts(_Facts):
    node: str | None = None
    cpu_model: str | None = None
    kernel: str | None = None
    python: str | None = None
    iobench_version: str | None = None
    instance_type: str | None = None
    cores: Figure | None = None
    affinity_cores: Figure | None = None
    cpu_quota_cores: Figure | None = None
    effective_cores: Figure | None = None
    memory_bytes: Count | None = None
    packages: dict[str, str | None] | None = None


class StorageFacts(_Facts):
    url: str | None = None
    fs_type: str | None = None
    page_cache: bool | None = None
    latency_s: Figure | None = None


class _Delivery(_Facts):
    """``not_measured`` alone, or all of the others."""

    not_measured: str | None = None
    delivered: Count = 0
    missing: Count | None = None
    repeated: Count | None = None
    unknown: Count | None = None
    of: Count = 0
    whole_epoch: bool | None = None

    @model_validator(mode="after")
    def _one_or_the_other(self) -> _Delivery:
        needed = {"missing", "repeated", "unknown", "delivered", "of", "whole_epoch"}
        if self.not_measured is None and (lacking := needed - self.model_fields_set):
            raise ValueError(f"'{min(lacking)}' is missing")
        return self


class _Shuffle(_Facts):
    not_measured: str | None = None
    distance: float | None = None
    shards_per_batch: float | None = None
    epoch_distance: float | None = None


class _Layout(_Facts):
    bytes: Count
    seconds: Figure
    made_earlier: bool | None = None


class LoaderFacts(_Facts):
    kind: str | None = None
    library: str | None = None
    workers: Few = 0
    transport: str | None = None
    access: str | None = None
    direct: bool | None = None
    prefetched_samples: Few | None = None
    delivery: _Delivery | None = None
    shuffle: _Shuffle | None = None
    layout: _Layout | None = None

    @model_validator(mode="after")
    def _a_library_says_it_all(self) -> LoaderFacts:
        if "delivery" in self.model_fields_set:
            for key in ("kind", "library", "delivery", "shuffle"):
                if getattr(self, key) is None:
                    raise ValueError(f"'{key}' is missing")
        return self


class _CeilingDetails(_Facts):
    startup_s: Figure | list[Figure | None] | None = None
    round_steps: Annotated[int, Field(ge=1, le=10**9)] = 1
    cpu_s: Figure | None = None
    own_samples_per_s: Figure | None = None
    own_cpu_s_per_gb: Figure | None = None
    tensor_samples_per_s: Figure | None = None
    latency_p50_s: Figure | None = None
    concurrency: Figure | None = None


class _Ceiling(_Facts):
    details: _CeilingDetails | None = None


class _NfsCounters(_Facts):
    retransmits: Count = 0
    read_ops: Count = 0


class _Repetition(_Facts):
    accelerators: Annotated[int, Field(ge=1, le=10**6)] = 1
    nfs: _NfsCounters | None = None


class _StudySpec(_Facts):
    count: Few = 0
    restores: Few | None = None
    fsync: bool | None = None


_Time = Annotated[float, Field(ge=MIN_SECONDS, le=MAX_SECONDS)]


class _Asked(_Facts):
    """``analyse.meaning.Training``."""

    model_config = ConfigDict(extra="forbid")

    accelerators: Annotated[int, Field(ge=1, le=10**9)] | None = None
    mtbf_s: _Time | None = None
    restart_s: Figure = 0.0
    interval_s: _Time | None = None
    usd_per_accelerator_hour: Positive | None = None
    samples_per_s: Positive | None = None
    stall_budget: Annotated[float, Field(ge=MIN_SHARE, lt=1)] = 0.01
    notice_s: Figure = 120.0


class _Meaning(_Facts):
    asked: _Asked = _Asked()
    sentence: str = ""


class _Save(_Facts):
    blocked_s: Figure
    accepted_s: Figure | None = None
    durable_s: Figure | None = None
    bytes: Count


class _Restore(_Facts):
    wall_s: Figure
    bytes: Count


class _Study(_Facts):
    ranks: Annotated[int, Field(ge=1, le=10**6)]
    bytes: Count
    full_bytes: Number
    saves: list[_Save] = Field(default_factory=list)
    alone: list[_Save] = Field(default_factory=list)
    restores: list[_Restore] = Field(default_factory=list)
    spec: _StudySpec | None = None
    meaning: _Meaning | None = None


class RunFacts(_Facts):
    """What the analysis computes with of the parts that ``RunDocument`` leaves free."""

    accelerators: Annotated[int, Field(ge=1, le=10**6)] = 1
    workload: WorkloadFacts
    dataset: DatasetFacts
    host: HostFacts
    storage: StorageFacts
    loader: LoaderFacts = LoaderFacts()
    ceilings: dict[str, _Ceiling] = Field(default_factory=dict)
    repetitions: list[_Repetition] = Field(default_factory=list)
    quiet: _Repetition | None = None
    checkpoint: _Study | None = None

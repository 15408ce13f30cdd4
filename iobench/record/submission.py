"""The ``summary.json`` of a run of MLPerf Storage, as far as it is read. MB are 2^20 bytes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationError

from ..settings.base import MAX_COUNT, Figure, OpenRecord

Whole = Annotated[int, Field(ge=0, le=MAX_COUNT)]


class MlperfMetric(OpenRecord):
    train_au_percentage: list[Figure] | Figure | None = None
    train_throughput_samples_per_second: list[Figure] | Figure | None = None
    train_io_mean_MB_per_second: Figure | None = None
    save_checkpoint_io_mean_GB_per_second: Figure | None = None
    load_checkpoint_io_mean_GB_per_second: Figure | None = None


class MlperfSummary(OpenRecord):
    num_accelerators: Whole
    num_hosts: Whole = 1
    metric: MlperfMetric
    start: str = ""
    num_files_train: Whole | None = None
    num_samples_per_file: Whole | None = None
    host_memory_GB: list[Figure | None] = Field(default_factory=list)
    data_size_per_host_GB: Figure | None = None


def summary_of(found: object) -> MlperfSummary:
    """The summary in a JSON document. Raises ValueError if it is none."""
    try:
        return MlperfSummary.model_validate(found)
    except ValidationError:
        raise ValueError("it is no summary of MLPerf Storage") from None

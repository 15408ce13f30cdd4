"""What a run records of an accelerator that computes, and the file of recorded step times."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, isclose
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..base.documents import require_place
from .base import Count, Duration, Figure, OpenRecord, Record, fitting, read_json


class StepFacts(Record):
    """The training of one rank. A value that was not measured is None."""

    model: str = ""
    precision: str = ""
    device: str = ""  # the name that the device or the CPU gives itself
    parameters: Count | None = None
    threads: Count | None = None  # of torch, set by iobench
    interop_threads: Count | None = None  # of torch, for independent operations
    # Variables of OpenMP and MKL that set threads and affinity, as the rank was started with them.
    environment: dict[str, str] = {}
    cpus: Count | None = None  # on which the rank and its workers may run
    allocator: str = ""  # system, tcmalloc or jemalloc: what is loaded in the rank
    warm_up_steps: Count | None = None  # before the first epoch, on made-up bytes
    warm_up_s: Figure | None = None
    # Bytes of gradients that each rank exchanges in a step, and the mean time that this takes; in
    # part beside the backward pass. None without an exchange; the time is not measured on GPUs.
    gradient_bytes: Count | None = None
    exchange_s: Figure | None = None
    first_loss: float | None = None  # a loss may be negative
    last_loss: float | None = None


class StepsHost(OpenRecord):
    """Where step times were recorded."""

    device: str = ""
    host: str = ""
    cpu: str = ""
    torch: str = ""
    cuda: str | None = None
    driver: str | None = None
    clock_mhz: Figure | None = None  # of the SMs, mean while the steps were recorded
    memory_clock_mhz: Figure | None = None
    power_w: Figure | None = None
    power_limit_w: Figure | None = None


QUANTILES = 101
MIN_RECORDED_STEPS = 2
MAX_RECORDED_STEPS = 1_000_000


_ROUNDING = 1e-6
"""Relative difference that rounding may leave between a figure and the steps that it is of."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of ordered values by linear interpolation, which is numpy's default."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


class StepRecording(Record):
    """Step times of a real model, which ``accelerator.kind: recorded`` replays.

    ``quantiles_s``: 101 quantiles, from the shortest to the longest step. ``lag_correlation``: of
    steps that are 1, 2, 3 ... apart. ``block_steps``: how many consecutive steps are replayed
    together, the first lag with a correlation below 0.1.
    """

    schema_version: Literal["1"] = "1"
    model: str
    batch_size: Annotated[int, Field(ge=1, le=10**7)]
    precision: str = ""
    memory_format: str = ""
    compiled: bool = False
    device_kind: Literal["cpu", "cuda"]
    recorded: str = ""  # date, ISO 8601
    iobench_version: str = ""
    source: str = ""  # what measured it, and where
    where: StepsHost = StepsHost()
    flops_per_sample: Figure | None = None
    peak_flops: Figure | None = None
    mfu: Figure | None = None  # model FLOPs utilization
    mean_s: Duration
    quantiles_s: Annotated[list[Duration], Field(min_length=QUANTILES, max_length=QUANTILES)]
    lag_correlation: list[Annotated[float, Field(ge=-1, le=1)]] = []
    block_steps: Annotated[int, Field(ge=1, le=MAX_RECORDED_STEPS)] = 1
    steps_s: Annotated[
        list[Duration], Field(min_length=MIN_RECORDED_STEPS, max_length=MAX_RECORDED_STEPS)
    ]
    not_measured: dict[str, str] = {}

    @model_validator(mode="after")
    def _has_positive_steps(self) -> StepRecording:
        if min(self.steps_s) <= 0:
            raise ValueError("'steps_s' has a step that took no time")
        return self

    @model_validator(mode="after")
    def _has_the_figures_of_its_steps(self) -> StepRecording:
        steps = sorted(self.steps_s)
        if not isclose(self.mean_s, fsum(steps) / len(steps), rel_tol=_ROUNDING):
            raise ValueError("'mean_s' is not the mean of 'steps_s'")
        quantiles = (quantile(steps, share / (QUANTILES - 1)) for share in range(QUANTILES))
        if not all(
            isclose(told, found, rel_tol=_ROUNDING)
            for told, found in zip(self.quantiles_s, quantiles, strict=True)
        ):
            raise ValueError("'quantiles_s' are not those of 'steps_s'")
        if self.block_steps > len(steps):
            raise ValueError("'block_steps' is more than there are steps")
        return self


def read_recording(path: str | Path) -> StepRecording:
    """Read a file that ``iobench train --record`` has written. Raises UsageError, IobenchError."""
    file = Path(path)
    require_place(file, "record steps: iobench train MODEL --record FILE", directory=False)
    return fitting(file, StepRecording, read_json(file, version="1", what="a file of such steps"))

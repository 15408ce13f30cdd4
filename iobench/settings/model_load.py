"""The specification of loads of a model's weights: what is loaded by what, and how often."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from .base import Bytes, Few, Ranks, Seconds, Strict

MODEL_LOAD = "model-load"
"""The name of this work where others are named by their workload or scenario."""


class LoadSpec(Strict):
    """Loads of one model.

    ``loaders`` take turns, each with every number of ``replicas``; one of either may be given
    alone. ``share``: what each rank of a replica reads: ``all``, its ``sliced`` part, or an equal
    part that it then ``exchange``s. ``state``: of the page cache before a trial.
    ``engine_start_s``: what an engine needs beside the weights, as the user said; nothing measures
    it. ``block_size`` (bytes of a read) and ``concurrency`` (reads in flight in each process): None
    is the loader's own.
    """

    loaders: list[str] = []
    replicas: list[Ranks] = []
    tensor_parallel: Ranks = 1
    share: Literal["all", "sliced", "exchange"] = "all"
    state: Literal["cold", "warm"] = "cold"
    repetitions: Few = 3
    device: Literal["cpu", "cuda"] = "cpu"
    engine_start_s: Annotated[Seconds, Field(gt=0)] | None = None
    block_size: Annotated[Bytes, Field(ge=4096, le=1 << 30)] | None = None
    concurrency: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None

    def storage_options(self) -> dict[str, str]:
        """Options of the storage, which its URL has."""
        return {}

    @field_validator("loaders", "replicas", mode="before")
    @classmethod
    def _one_alone(cls, value: object) -> object:
        return [value] if isinstance(value, str | int) else value

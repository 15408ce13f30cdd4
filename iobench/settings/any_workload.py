"""What is measured, by its name: a workload, a scenario of requests, or loads of a model's weights.

Verbs that measure variants or combinations of settings take any of them. Loads are specified here:
what is loaded by what, and how often.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from ..base.errors import UnknownNameError
from .base import Bytes, Few, Ranks, Seconds, Strict, apply_overrides, build, find_spec, known_specs
from .scenario import Scenario, load_scenario
from .workload import Workload, load_workload
from .yamlfile import read_yaml

MODEL_LOAD = "model-load"
"""The name of this work where others are named by their workload or scenario."""


class LoadSpec(Strict):
    """Loads of one model.

    ``loaders`` take turns, each with every number of ``replicas``; one of either may be given
    alone. ``tensor_parallel``: ranks of a replica. ``repetitions``: how many of each. ``device``:
    where the tensors are to be. ``share``: what each rank of a replica reads: ``all``, its
    ``sliced`` part, or an equal part that it then ``exchange``s. ``state``: of the page cache
    before a trial. ``engine_start_s``: what an engine needs beside the weights, as the user said;
    nothing measures it. ``block_size`` (bytes of a read) and ``concurrency`` (reads in flight in
    each process): None is the loader's own.
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


AnyWorkload = Workload | Scenario | LoadSpec


def kind_of(name: str) -> type[AnyWorkload]:
    """What a name or a path of a file stands for; a file with a ``limit`` is a scenario.

    Raises SpecError, and UnknownNameError for a name that is none of them.
    """
    if name == MODEL_LOAD:
        return LoadSpec
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or "/" in name:
        return Scenario if "limit" in read_yaml(find_spec("workload", name)) else Workload
    scenarios, workloads = known_specs("scenario"), known_specs("workload")
    if name in workloads:
        return Workload
    if name in scenarios:
        return Scenario
    raise UnknownNameError(
        "workload",
        name,
        [*workloads, *scenarios, MODEL_LOAD],
        remedy="list them with: iobench list workloads, or iobench list scenarios",
    )


def is_known(name: str) -> bool:
    """Whether it is a name, and no path of a file."""
    return name == MODEL_LOAD or any(name in known_specs(each) for each in ("workload", "scenario"))


def read_any_workload(name: str) -> dict[str, object]:
    """What the file of this name says; loads of a model have none. Raises as ``kind_of``."""
    kind = kind_of(name)
    if kind is LoadSpec:
        return {}
    return read_yaml(find_spec("scenario" if kind is Scenario else "workload", name))


def load_any_workload(
    name: str, overrides: Sequence[str] = (), *, kinds: Iterable[str] = ()
) -> AnyWorkload:
    """Load what has this name, with ``a.b=c`` overrides; ``kinds`` as of ``load_workload``.

    Raises as ``kind_of``.
    """
    kind = kind_of(name)
    if kind is Workload:
        return load_workload(name, overrides, kinds=kinds)
    if kind is Scenario:
        return load_scenario(name, overrides)
    return build(LoadSpec, apply_overrides({}, overrides), where=MODEL_LOAD)

"""What is measured, by its name: a workload, a scenario of requests, or loads of a model's weights.

Verbs that measure variants or combinations of settings take any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..base.errors import UnknownNameError
from .base import apply_overrides, build, find_spec, known_specs
from .model_load import MODEL_LOAD, LoadSpec
from .scenario import Scenario, load_scenario
from .workload import Workload, load_workload
from .yamlfile import read_yaml

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


def load_any_workload(name: str, overrides: Sequence[str] = ()) -> AnyWorkload:
    """Load what has this name, with ``a.b=c`` overrides. Raises as ``kind_of``."""
    kind = kind_of(name)
    if kind is Workload:
        return load_workload(name, overrides)
    if kind is Scenario:
        return load_scenario(name, overrides)
    return build(LoadSpec, apply_overrides({}, overrides), where=MODEL_LOAD)

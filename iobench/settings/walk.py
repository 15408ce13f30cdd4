"""The file of a walk: settings that are varied one after the other, each from the best so far.

Such a file is in ``sweeps/``, or any YAML file with a key ``walk``::

    name: mine
    workload: cpu-training
    set: {batch_size: 32}
    walk:
      - {name: workers, key: loader.workers, values: [1, 2, cores]}
      - {name: bfloat16, key: accelerator.precision, values: [bfloat16]}
      - {name: an old extension, not_measured: ended with 2.8}
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue, model_validator

from ..base.errors import SpecError
from .base import Record, Strict, build, find_spec, known_specs
from .yamlfile import read_yaml

KIND = "sweep"

MAX_STEPS = 100
MAX_VALUES = 100

_CORES = re.compile(r"cores(?:([/-])([1-9]\d{0,3}))?")


class WalkStep(Record):
    """One step of a walk, as it is recorded: the values of one setting that are tried.

    ``not_measured``: why the step can't be measured at all any more; it then has no values.
    """

    name: str
    key: str = ""
    values: list[JsonValue] = []
    not_measured: str = ""


class AskedStep(Strict):
    """One step of a walk, as a file has it.

    ``key``: the setting, of which the ``values`` are tried. ``not_measured``: why the step can't be
    measured any more, in place of both.

    A value may be ``cores``, ``cores/N`` (whole part) or ``cores-N``: of those that this process
    may use. One that is below 1 is left out.
    """

    name: str = Field(min_length=1, max_length=60)
    key: str = ""
    values: Annotated[list[JsonValue], Field(max_length=MAX_VALUES)] = []
    not_measured: str = ""

    @model_validator(mode="after")
    def _varies_or_says_why_not(self) -> AskedStep:
        if bool(self.key and self.values) == bool(self.not_measured):
            raise ValueError(
                "a step has either 'key' and 'values', or 'not_measured' with the reason"
            )
        return self

    def on(self, cores: int) -> WalkStep:
        """The step on a host with so many cores."""
        values: list[JsonValue] = []
        for value in self.values:
            number = _of_cores(value, cores)
            if number is not None and number < 1:
                continue
            known = value if number is None else number
            if known not in values:
                values.append(known)
        return WalkStep(name=self.name, key=self.key, values=values, not_measured=self.not_measured)


class WalkSpec(Strict):
    """The content of a walk's file.

    ``workload``: what is measured. ``set``: settings of the workload that the walk begins with.
    ``walk``: its steps, each from the best settings so far.
    """

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    source: str = ""
    workload: str
    set: dict[str, JsonValue] = {}
    walk: Annotated[list[AskedStep], Field(min_length=1, max_length=MAX_STEPS)]


def find_walk(name: str) -> WalkSpec | None:
    """The walk of this name or path; None if it names none, but maybe a workload.

    Raises SpecError for a file that does not fit.
    """
    if name in known_specs(KIND):
        path = find_spec(KIND, name)
    else:
        path = Path(name)
        if path.suffix not in (".yaml", ".yml") or not path.is_file():
            return None
        if "walk" not in read_yaml(path):
            return None
    return build(WalkSpec, read_yaml(path), where=str(path))


def check_keys(spec: WalkSpec) -> None:
    """Raise SpecError if two steps have one name: the report tells them by it."""
    names = [step.name for step in spec.walk]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SpecError(f"the walk '{spec.name}' has two steps of the name '{twice}'")


def _of_cores(value: JsonValue, cores: int) -> int | None:
    """The number that a value means which names the cores; None for other values."""
    found = _CORES.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    sign, number = found.groups()
    if sign is None:
        return cores
    return cores // int(number) if sign == "/" else cores - int(number)

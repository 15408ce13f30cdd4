"""The record of a sweep, ``sweep.json``, next to the directories of its runs.

It is written again after every repetition of a point, so that an interrupted sweep can continue.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import Field, JsonValue

from ..base.errors import SpecError
from ..settings.base import (
    Count,
    Figure,
    Record,
    RecordHead,
    apply_overrides,
    load_record,
    save_record,
)
from ..settings.walk import WalkStep
from .metrics import COMPARED, ComparedMetric, Metric

SWEEP_FILE = "sweep.json"
SCHEMA_VERSION = "1.0"

Setting = JsonValue
"""The value of a setting, as YAML or JSON says it: a scalar, or a list or group of such values."""

Settings = Mapping[str, Setting]
"""Settings by their keys, such as ``loader.workers``."""


class SweepPoint(Record):
    """One combination of settings, and the runs that measured it: one per repetition."""

    settings: dict[str, Setting]
    data: str = ""  # the dataset that it reads
    dataset_bytes: int = 0  # expected, before the codec
    runs: list[str] = Field(default_factory=list)  # run directories, relative to the sweep's
    # Of the sweep's metric, one for each run.
    figures: list[float] = Field(default_factory=list)
    seconds: list[float] = Field(default_factory=list)  # duration of each run
    # Other combinations that mean the same, and share its figures.
    also: list[dict[str, Setting]] = Field(default_factory=list)
    stored_bytes: Figure | None = None  # of its dataset
    samples: Count | None = None  # of its dataset
    generated_s: Figure | None = None  # what that took; None: it was there, or a part of it was
    # Of each run; None: not measured. Bytes that the readers read, over the samples delivered.
    read_bytes_per_sample: list[Figure | None] = Field(default_factory=list)
    # CPU seconds of ranks and workers, over 1e9 bytes of uncompressed samples, or of weights.
    cpu_s_per_gb: list[Figure | None] = Field(default_factory=list)
    # Cores of the host that other processes used at least, on average over each run; None: not
    # recorded.
    other_cores: list[Figure | None] = Field(default_factory=list)
    dropped: str = ""  # why it was not measured again
    failed: str = ""  # the error that ended it
    # The step of the walk that it belongs to, from 0; None in a sweep that is no walk. The first
    # point of a step has the settings that were kept before.
    step: Count | None = None

    @property
    def counted(self) -> list[float]:
        """Its ``figures``; none of a point that has failed, whatever it measured before."""
        return [] if self.failed else self.figures


class Sweep(RecordHead):
    """The content of ``sweep.json``.

    ``default`` are the unchanged settings of the workload, if they are one of the points.
    """

    schema_version: str = SCHEMA_VERSION
    status: Literal["running", "ok", "interrupted", "out of time"] = "running"
    workload: str  # or a scenario of requests, or loads of a model
    metric: ComparedMetric = "samples_per_s"  # by which the points are compared
    data_root: str  # below which datasets are generated; empty if ``data`` is given
    # A dataset that exists already and is read by all points; the empty text: there is none.
    data: str = ""
    overrides: list[str] = Field(default_factory=list)
    samples: int | None = Field(default=None, ge=1)
    size_bytes: int | None = Field(default=None, ge=0)
    seed: int = Field(ge=0, lt=2**62)
    repetitions: int = Field(ge=1, le=10**6)
    calibration_s: float = Field(ge=0, le=3600)
    accelerators: int = Field(default=1, ge=1, le=10**6)
    hosts: int = Field(default=1, ge=1, le=10**6)
    axes: dict[str, list[Setting]]
    default: dict[str, Setting] | None = None
    # Price of this host for an hour, and of which instance type; None: no price was given.
    usd_per_hour: Figure | None = None
    instance: str = ""
    points: list[SweepPoint] = Field(default_factory=list)
    # A walk: its name and steps, and how many of them have been begun. The step behind the last one
    # is that of all kept settings against those of the beginning.
    preset: str = ""
    walk: list[WalkStep] = Field(default_factory=list)
    walked: Count = 0
    # Samples that each trial trains on, in whole batches; None: as many as the workload says.
    samples_per_trial: Annotated[int, Field(ge=1)] | None = None
    # How the points were made from the axes, if that needs an explanation.
    planned: list[str] = Field(default_factory=list)
    # ``planned``, and what the budgets of the last run did not allow.
    left_out: list[str] = Field(default_factory=list)

    @property
    def compared_by(self) -> Metric:
        return COMPARED[self.metric]

    def speed(self, figure: float) -> float:
        """The larger, the better the figure, which is above 0."""
        return figure if self.compared_by.better == "more" else 1 / figure


def parse_axis(text: str) -> tuple[str, list[Setting]]:
    """Parse ``dataset.codec=none,zstd:1`` to ("dataset.codec", ["none", "zstd:1"]).

    Each value is parsed as YAML. Raises SpecError.
    """
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise SpecError(
            f"'{text}' is not a key with its values",
            remedy="write it like --sweep loader.workers=1,2,4",
        )
    found: list[Setting] = []
    for value in values.split(","):
        # YAML has no values of other kinds.
        changed = cast(Setting, apply_overrides({}, [f"value={value}"])["value"])
        if setting_text(changed) in map(setting_text, found):  # 1 is not true
            raise SpecError(f"--sweep {key} has the value {value.strip() or 'null'} twice")
        found.append("null" if changed is None else changed)
    return key.strip(), found


def combinations(
    axes: Mapping[str, Sequence[Setting]], *, one_at_a_time: bool, base: Settings
) -> list[dict[str, Setting]]:
    """Return all combinations of the axes' values.

    With ``one_at_a_time``: ``base``, and variants of it that differ in the value of one axis.
    """
    if not one_at_a_time:
        return [
            dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
        ]
    points = [dict(base)]
    for key, values in axes.items():
        now = setting_text(base[key])  # 1 is not true
        points += [{**base, key: value} for value in values if setting_text(value) != now]
    return points


def save_sweep(directory: Path, sweep: Sweep) -> None:
    """Write ``sweep.json`` atomically. Raises IobenchError."""
    save_record(directory / SWEEP_FILE, sweep)


def load_sweep(directory: Path) -> Sweep:
    """Load ``sweep.json`` of a directory. Raises IobenchError as ``load_record`` does."""
    what = "the directory of a sweep"
    return load_record(directory / SWEEP_FILE, Sweep, version=SCHEMA_VERSION, what=what)


def setting_text(value: object) -> str:
    """Return the text of a setting's value as in ``--set key=value``: ``null``, ``true``, ``0.5``.

    A whole float is written like an integer.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if "e" not in short and float(short) == value else repr(value)
    return str(value)


def describe(settings: Settings, keys: Sequence[str] = ()) -> str:
    """Return the settings in one line, such as ``codec=zstd:1 workers=4``.

    The first part of each name is left out. ``keys`` selects settings; without it, all are shown.
    """
    return " ".join(
        f"{key.partition('.')[2] or key}={setting_text(settings[key])}" for key in keys or settings
    )

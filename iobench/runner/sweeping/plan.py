"""Plan a sweep from its axes: the points, the data that they need, and what fits a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ...dataset import load_dataset_spec
from ...errors import SpecError, UsageError
from ...generator.target import dataset_id
from ...registry import CODECS, CONTENTS, FORMATS
from ...schema.base import apply_overrides, build
from ...schema.dataset import DatasetSpec, resized
from ...schema.sweep import (
    Setting,
    Settings,
    Sweep,
    SweepPoint,
    combinations,
    describe,
    setting_text,
)
from ...schema.workload import Workload, load_workload
from ...storage import below
from ...units import format_bytes
from ..directory import new_directory
from ..plan import check_asked

DATASET = "dataset."
OVER_BUDGET = "exceeds the byte budget"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits and options of a sweep; None: no limit.

    ``keep_data`` leaves the datasets for another sweep.
    """

    seconds: float | None = None
    data_bytes: int | None = None
    keep_data: bool = False
    drop: bool = True  # drop points that are clearly dominated
    break_lock: bool = False  # take over locks whose holders are on other hosts and dead


def plan_sweep(sweep: Sweep, *, one_at_a_time: bool) -> Sweep:
    """Make the points of the axes, today's settings first.

    Each point is checked as far as possible without data. Points with the same meaning are merged.
    Raises UsageError, SpecError.
    """
    base = {key: _value_now(sweep, key) for key in sweep.axes}
    today = _meaning(*resolve(sweep, base))
    points: dict[str, SweepPoint] = {}  # by what their settings mean
    folded: list[str] = []
    asked = [
        (settings, *resolve(sweep, settings))
        for settings in combinations(sweep.axes, one_at_a_time=one_at_a_time, base=base)
    ]
    if all(_meaning(workload, spec) != today for _, workload, spec in asked):
        # The gain of the other points is measured against today's settings.
        asked.append((base, *resolve(sweep, base)))
        folded.append(f"today's settings, {describe(base)}, were added as a point")
    for settings, workload, spec in asked:
        CONTENTS.open(spec.content)
        CODECS.open(spec.codec)
        check_asked(workload, accelerators=sweep.accelerators, repetitions=sweep.repetitions)
        meaning = _meaning(workload, spec)
        if meaning in points:
            same = describe(points[meaning].settings)
            folded.append(f"{describe(settings)} is the same as {same}")
            points[meaning].also.append(settings)
            continue
        data = place_of_data(sweep, spec)
        points[meaning] = SweepPoint(settings=settings, data=data, dataset_bytes=spec.nominal_bytes)
    # If a budget leaves points out, today's settings should not be among them.
    now = points.pop(today)
    return sweep.model_copy(
        update={
            "points": [now, *points.values()],
            "default": now.settings,
            "planned": folded,
            "left_out": folded,
        }
    )


def _meaning(workload: Workload, spec: DatasetSpec) -> str:
    """Return a text that is equal for settings that mean the same (``64MiB`` and 67108864)."""
    return f"{workload.model_dump_json()}{spec.identity()}"


def resolve(sweep: Sweep, settings: Settings) -> tuple[Workload, DatasetSpec]:
    """The workload and the dataset of a point. Raises SpecError, UnknownNameError."""
    given = [
        *sweep.overrides,
        *(
            f"{key}={setting_text(value)}"
            for key, value in settings.items()
            # A storage option without a value is left out: the storage's default holds.
            if value is not None or not key.startswith("storage.")
        ),
    ]
    workload = load_workload(
        sweep.workload, [text for text in given if not text.startswith(DATASET)]
    )
    of_dataset = [text.removeprefix(DATASET) for text in given if text.startswith(DATASET)]
    form = FORMATS.open(
        load_dataset_spec(
            workload.dataset, [text for text in of_dataset if text.startswith("format=")]
        ).format
    )
    if form.one_sample_per_shard:  # no shards to cut, whatever the other axes say
        of_dataset = [
            text
            for text in of_dataset
            if text.partition("=")[0] not in ("shard_size", "samples_per_shard")
        ]
    spec = resized(
        load_dataset_spec(workload.dataset, of_dataset),
        samples=sweep.samples,
        size_bytes=sweep.size_bytes,
    )
    return workload, spec


def groups_within(sweep: Sweep, budget: Budget) -> list[list[SweepPoint]]:
    """Divide the points into groups whose runs take turns.

    All points are one group, unless their datasets together exceed the byte budget. Then a group
    has as many datasets as fit at a time, in the order in which the points first need them: today's
    settings are in the first group, since a time budget leaves out the last ones. A point whose
    dataset alone exceeds the budget is left out, and listed. Raises UsageError if that is every
    point.
    """
    if budget.data_bytes is None:
        return [sweep.points]
    groups: list[list[SweepPoint]] = []
    inside: dict[str, int] = {}
    turn = {data: number for number, data in enumerate(dict.fromkeys(p.data for p in sweep.points))}
    for point in sorted(sweep.points, key=lambda p: turn[p.data]):
        if point.dataset_bytes > budget.data_bytes:
            sweep.left_out.append(
                f"{describe(point.settings)}: its {format_bytes(point.dataset_bytes)} exceed "
                "--data-budget"
            )
            point.failed = OVER_BUDGET
            continue
        if not groups or (
            point.data not in inside
            and sum(inside.values()) + point.dataset_bytes > budget.data_bytes
        ):
            groups.append([])
            inside = {}
        inside[point.data] = point.dataset_bytes
        groups[-1].append(point)
    if not groups:
        smallest = format_bytes(min(point.dataset_bytes for point in sweep.points))
        remedy = f"raise --data-budget to at least {smallest}, or generate less with --samples"
        raise UsageError("--data-budget is too small for any of the datasets", remedy=remedy)
    if len(groups) > 1:
        few = f"--data-budget divides the datasets into {len(groups)} groups, measured in sequence"
        sweep.left_out.append(f"{few}: drift between groups is not averaged out")
    return groups


def _value_now(sweep: Sweep, key: str) -> Setting:
    """The value that a key has today, in the workload or its dataset.

    Raises SpecError for a key that does not exist.
    """
    workload, spec = resolve(sweep, {})
    data: Setting = (
        spec.model_dump(mode="json")
        if key.startswith(DATASET)
        else workload.model_dump(mode="json")
    )
    for part in key.removeprefix(DATASET).split("."):
        if not isinstance(data, dict):
            raise SpecError(f"there is no setting '{key}'")
        if part not in data:
            # The schema raises the error for an unknown key, with the nearest names. Options of a
            # storage are known only to the storage.
            if not key.startswith("storage."):
                _refuse_unknown(sweep, key, workload, spec)
            return None
        data = data[part]
    return data


def _refuse_unknown(sweep: Sweep, key: str, workload: Workload, spec: DatasetSpec) -> None:
    value = sweep.axes[key][0]
    if key.startswith(DATASET):
        build(
            DatasetSpec,
            apply_overrides(
                spec.model_dump(mode="json"), [f"{key.removeprefix(DATASET)}={setting_text(value)}"]
            ),
            where="--sweep",
        )
    else:
        build(
            Workload,
            apply_overrides(workload.model_dump(mode="json"), [f"{key}={setting_text(value)}"]),
            where="--sweep",
        )


def place_of_data(sweep: Sweep, spec: DatasetSpec) -> str:
    """Location of a point's dataset, which is generated and removed again, below ``data_root``."""
    return below(sweep.data_root, f"{spec.name}-{dataset_id(spec)[:8]}")


def new_sweep(results: Path, command: Sequence[str], asked: Sweep) -> tuple[Sweep, Path]:
    """Begin the sweep that was asked for: with a time, a command and a fresh directory."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    sweep = asked.model_copy(update={"created": created, "command": list(command)})
    return sweep, new_directory(results, f"sweep-{Path(sweep.workload).stem}")

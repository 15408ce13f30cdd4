"""Plan a sweep: the points of its axes or of a walk's steps, their data, and what fits a budget.

A walk is announced before anything is measured, since it may take hours.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from ...accelerate.possible import why_not
from ...ask.tuning.walk import changed, is_complete, kept_settings, points_of
from ...base.errors import SpecError, UsageError
from ...base.units import counted, format_bytes, format_duration
from ...data.codecs import CODECS
from ...data.contents import CONTENTS
from ...data.dataset import find_dataset, load_dataset_spec
from ...data.formats import FORMATS
from ...data.generator.target import dataset_id
from ...record.sweep import (
    Setting,
    Settings,
    Sweep,
    SweepPoint,
    combinations,
    describe,
    setting_text,
)
from ...settings.any_workload import AnyWorkload, LoadSpec, load_any_workload, read_any_workload
from ...settings.base import apply_overrides, head, with_overrides
from ...settings.dataset import DatasetSpec, resized
from ...settings.walk import WalkSpec, check_keys
from ...settings.workload import Workload, code_of, load_workload
from ...storage import below, open_storage
from ..model_load_plan import one_of_each
from ..plan import check_asked, make_plan
from ..results import new_directory

DATASET = "dataset."
OVER_BUDGET = "exceeds the byte budget"


def plan_sweep(sweep: Sweep, *, one_at_a_time: bool) -> Sweep:
    """Make the points of the axes, today's settings first.

    Each point is checked as far as possible without data. Points with the same meaning are merged.
    Raises UsageError, SpecError.
    """
    base = {key: value_now(sweep, key) for key in sweep.axes}
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
        _check_point(sweep, workload, spec)
        meaning = _meaning(workload, spec)
        if meaning in points:
            same = describe(points[meaning].settings)
            folded.append(f"{describe(settings)} is the same as {same}")
            points[meaning].also.append(settings)
            continue
        points[meaning] = _point(sweep, settings, spec)
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


def plan_points(sweep: Sweep, asked: Sequence[Settings]) -> list[SweepPoint]:
    """A point for each of the settings, checked as far as possible without data.

    Raises UsageError, SpecError.
    """
    points = []
    for settings in asked:
        workload, spec = resolve(sweep, settings)
        _check_point(sweep, workload, spec)
        points.append(_point(sweep, settings, spec))
    return points


def _check_point(sweep: Sweep, workload: AnyWorkload, spec: DatasetSpec | None) -> None:
    if spec is not None:
        CONTENTS.open(spec.content)
        CODECS.open(spec.codec)
    if isinstance(workload, Workload):
        check_asked(workload, accelerators=sweep.accelerators, repetitions=sweep.repetitions)


def _point(sweep: Sweep, settings: Settings, spec: DatasetSpec | None) -> SweepPoint:
    data = place_of_data(sweep, spec)
    size = 0 if spec is None else spec.nominal_bytes
    return SweepPoint(settings=dict(settings), data=data, dataset_bytes=size)


def _meaning(workload: AnyWorkload, spec: DatasetSpec | None) -> str:
    """Return a text that is equal for settings that mean the same (``64MiB`` and 67108864)."""
    return f"{workload.model_dump_json()}{spec.identity() if spec is not None else ''}"


def resolve(sweep: Sweep, settings: Settings) -> tuple[AnyWorkload, DatasetSpec | None]:
    """The workload and the dataset of a point. Raises SpecError, UnknownNameError.

    Loads of a model read no dataset, but weights. Where the sweep reads a dataset that exists, it
    raises UsageError for a point that needs another one, and what ``find_dataset`` raises.
    """
    workload, given = workload_of(sweep, settings), _given(sweep, settings)
    if isinstance(workload, LoadSpec):
        _check_weights(sweep, given)
        return one_of_each(workload, open_storage(sweep.data)), None
    if sweep.data:
        spec = _existing(sweep.data, json.dumps(workload.storage_options(), sort_keys=True))
        _check_same_data(sweep, spec, given)
        return workload, spec
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


def _check_weights(sweep: Sweep, given: Sequence[str]) -> None:
    """Raise UsageError for loads of weights that are to be generated, or to be changed."""
    if not sweep.data:
        raise UsageError(
            f"{sweep.workload} reads weights that exist",
            remedy="use --data with their directory or URL instead of --to; iobench generate "
            "llama3-8b-weights makes some",
        )
    changed = next((text for text in given if text.startswith(DATASET)), None)
    if changed is not None:
        raise UsageError(
            f"{changed} changes a dataset, and {sweep.workload} reads none", remedy="leave it out"
        )


_KINDS = ("accelerator.kind", "loader.kind")


def workload_of(sweep: Sweep, settings: Settings) -> AnyWorkload:
    """The workload of a point. Raises SpecError, UnknownNameError.

    If the trials of the sweep have a number of samples, they are trained on in whole batches.
    """
    given = _given(sweep, settings)
    workload = load_any_workload(
        sweep.workload,
        [text for text in given if not text.startswith(DATASET)],
        kinds=[str(kind) for key in _KINDS for kind in sweep.axes.get(key, ())],
    )
    if sweep.samples_per_trial is None or not isinstance(workload, Workload):
        return workload
    steps = round(sweep.samples_per_trial / (workload.batch_size * sweep.accelerators))
    return workload.model_copy(update={"max_steps": max(1, steps)})


def training_of(sweep: Sweep, settings: Settings) -> Workload:
    """The workload of a point of a walk, which compares samples/s. Raises as ``workload_of``."""
    workload = workload_of(sweep, settings)
    if not isinstance(workload, Workload):
        raise SpecError(
            f"the walk '{sweep.preset}' is of {sweep.workload}, which loads no data for training",
            remedy="name a workload in it: iobench list workloads",
        )
    return workload


def code_named(sweep: Sweep) -> dict[str, list[object]]:
    """What the sweep would run as code, in any of its points: the keys, each with its values.

    A walk makes points while it goes on, from settings that are known here. Raises SpecError, and
    as ``find_spec``.
    """
    found: dict[str, list[object]] = {}
    settings: list[Settings] = [point.settings for point in sweep.points]
    settings += [{step.key: value} for step in sweep.walk if step.key for value in step.values]
    base = read_any_workload(sweep.workload)
    for each in ({}, sweep.default or {}, *settings):
        given = [text for text in _given(sweep, each) if not text.startswith(DATASET)]
        for key, value in code_of(apply_overrides(base, given)).items():
            if value not in found.setdefault(key, []):
                found[key].append(value)
    return found


def with_own_places(sweep: Sweep) -> Sweep:
    """The sweep, with each point's data where its own root or dataset says, and nowhere else."""
    points = [
        point.model_copy(update={"data": place_of_data(sweep, resolve(sweep, point.settings)[1])})
        for point in sweep.points
    ]
    return sweep.model_copy(update={"points": points})


def _given(sweep: Sweep, settings: Settings) -> list[str]:
    return [
        *sweep.overrides,
        *(
            f"{key}={setting_text(value)}"
            for key, value in settings.items()
            # A storage option without a value is left out: the storage's default holds.
            if value is not None or not key.startswith("storage.")
        ),
    ]


@lru_cache(maxsize=8)
def _existing(data: str, options: str) -> DatasetSpec:
    """The specification of a dataset that exists; read once, since many points have it."""
    return find_dataset(data, json.loads(options))[0].spec


def _check_same_data(sweep: Sweep, spec: DatasetSpec, given: Sequence[str]) -> None:
    """Raise UsageError for a setting of the dataset that the existing one does not have."""
    for text in given:
        key, _, value = text.partition("=")
        if not key.startswith(DATASET):
            continue
        changed = [f"{key.removeprefix(DATASET)}={value}"]
        if with_overrides(spec, changed, where="--sweep") != spec:
            raise UsageError(
                f"{key}={value} needs another dataset than the one at {sweep.data}",
                remedy="use --to DIR instead of --data, so that each dataset is generated there",
            )


def groups_within(sweep: Sweep, data_bytes: int | None) -> list[list[SweepPoint]]:
    """Divide the points into groups whose runs take turns.

    All points are one group, unless their datasets together exceed the byte budget. Then a group
    has as many datasets as fit at a time, in the order in which the points first need them: today's
    settings are in the first group, since a time budget leaves out the last ones. A point whose
    dataset alone exceeds the budget is left out, and listed. Raises UsageError if that is every
    point.
    """
    if data_bytes is None:
        return [sweep.points]
    groups: list[list[SweepPoint]] = []
    inside: dict[str, int] = {}
    turn = {data: number for number, data in enumerate(dict.fromkeys(p.data for p in sweep.points))}
    for point in sorted(sweep.points, key=lambda p: turn[p.data]):
        if point.dataset_bytes > data_bytes:
            sweep.left_out.append(
                f"{describe(point.settings)}: its {format_bytes(point.dataset_bytes)} exceed "
                "--data-budget"
            )
            point.failed = OVER_BUDGET
            continue
        if not groups or (
            point.data not in inside and sum(inside.values()) + point.dataset_bytes > data_bytes
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


def value_now(sweep: Sweep, key: str) -> Setting:
    """The value that a key has today, in the workload or its dataset.

    Raises SpecError for a key that does not exist.
    """
    workload, spec = resolve(sweep, {})
    asked: AnyWorkload | DatasetSpec = workload
    if key.startswith(DATASET) and spec is not None:
        asked = spec
    data: Setting = asked.model_dump(mode="json")
    for part in key.removeprefix(DATASET).split("."):
        if not isinstance(data, dict):
            raise SpecError(f"there is no setting '{key}'")
        if part not in data:
            # The schema raises the error for an unknown key, with the nearest names. Options of a
            # storage are known only to the storage.
            if not key.startswith("storage."):
                name = key if asked is workload else key.removeprefix(DATASET)
                value = setting_text(sweep.axes[key][0])
                with_overrides(asked, [f"{name}={value}"], where="--sweep")
            return None
        data = data[part]
    return data


def place_of_data(sweep: Sweep, spec: DatasetSpec | None) -> str:
    """Location of a point's data: that which exists, or a folder below ``data_root``.

    The latter is generated and removed again.
    """
    if sweep.data or spec is None:
        return sweep.data
    return below(sweep.data_root, f"{spec.name}-{dataset_id(spec)[:8]}")


def new_sweep(results: Path, command: Sequence[str], asked: Sweep) -> tuple[Sweep, Path]:
    """Begin the sweep that was asked for: with a time, a command and a fresh directory."""
    sweep = asked.model_copy(update=head(command))
    named = sweep.preset or Path(sweep.workload).stem
    return sweep, new_directory(results, f"sweep-{named}")


def plan_walk(asked: Sweep, spec: WalkSpec) -> Sweep:
    """The walk ``spec`` as a sweep whose first step is planned.

    Every value of every step is checked as far as possible without data. Raises UsageError,
    SpecError.
    """
    check_keys(spec)
    training_of(asked.model_copy(update={"preset": spec.name}), {})
    steps = [step.on(len(os.sched_getaffinity(0))) for step in spec.walk]
    axes: dict[str, list[Setting]] = {}
    for step in steps:
        if step.key:
            axes.setdefault(step.key, []).extend(step.values)
    sweep = asked.model_copy(update={"preset": spec.name, "walk": steps, "axes": axes})
    begun = {key: value_now(sweep, key) for key in axes}
    sweep.default = begun
    for key, values in axes.items():
        plan_points(sweep, [{**begun, key: value} for value in values])
    return sweep


def next_step(sweep: Sweep) -> list[SweepPoint]:
    """The points of the step that is to be tried, which are added to the sweep if it is new.

    Empty after the last step, and where the settings that were kept have failed, since nothing can
    be compared with them. A step whose values can't be tried on this host has points that
    have failed, and none that is tried.
    """
    if sweep.walked:
        begun = points_of(sweep, sweep.walked - 1)
        if not all(is_complete(sweep, point) for point in begun):
            return begun
        if begun and begun[0].failed:
            return []
    while sweep.walked <= len(sweep.walk):
        number = sweep.walked
        points = _points_of_step(sweep, number)
        sweep.walked = number + 1
        sweep.points += points
        if any(not is_complete(sweep, point) for point in points):
            return points
    return []


def _points_of_step(sweep: Sweep, number: int) -> list[SweepPoint]:
    """The points of a step, the settings that are kept so far first; those are not tried alone.

    The step behind the last one compares all kept settings with those of the beginning, if several
    were kept: of one, its own step has told that already.
    """
    kept = kept_settings(sweep)
    if number == len(sweep.walk):
        if len(changed(sweep, kept)) < 2:
            return []
        asked = [dict(sweep.default or {}), kept]
    else:
        step = sweep.walk[number]
        others: list[Mapping[str, Setting]] = [
            {**kept, step.key: value} for value in step.values if value != kept.get(step.key)
        ]
        same = _effect(sweep, kept)
        asked = [dict(each) for each in others if _effect(sweep, each) != same]
        asked = [kept, *asked] if asked else []
    points = plan_points(sweep, asked)
    for point in points:
        point.step = number
        point.failed = why_not(training_of(sweep, point.settings).accelerator)
    if points and all(point.failed for point in points[1:]):
        points[0].dropped = "there is nothing to compare it with"
    return points


def _effect(sweep: Sweep, settings: Mapping[str, Setting]) -> str:
    """A text that is equal for settings that do the same.

    Threads that are not set are as many as the cores of a rank.
    """
    workload = training_of(sweep, settings)
    spec = workload.accelerator
    if spec.threads is None:
        share = max(1, len(os.sched_getaffinity(0)) // sweep.accelerators)
        spec = spec.model_copy(update={"threads": share})
    return workload.model_copy(update={"accelerator": spec}).model_dump_json()


def about_step(points: Sequence[SweepPoint]) -> Iterator[str]:
    """Yield a line for each point of a step that can't be tried on this host."""
    for point in points:
        if point.failed and not point.runs:
            yield f"{describe(point.settings)}: not measured: {point.failed}"


def samples_within(seconds: float, step_s: float, batch_size: int) -> int:
    """The samples of whole batches that a trial of about ``seconds`` trains on.

    At least two steps, so that a trial is no single step.
    """
    return batch_size * max(2, math.ceil(seconds / step_s))


TRIAL_S = 10.0
"""About how long each trial trains where ``--time`` says nothing."""

_TRIAL_S = 3.0
_START_S = 2.0
"""The process of a trial begins, and opens the dataset and the model in about this time."""

_WARM_UP_STEPS = 7
"""A warm-up takes about so many steps of the baseline."""


def overrides_of(spec: WalkSpec, data: str | None, overrides: Sequence[str]) -> list[str]:
    """The settings of the walk's workload: its own, what data and model need, and the user's.

    Raises what ``find_dataset`` and ``sample_bytes_of`` raise.
    """
    found = [f"{key}={setting_text(value)}" for key, value in spec.set.items()]
    asked = load_workload(spec.workload, [*found, *overrides])
    given = {text.partition("=")[0].strip() for text in overrides}
    if data and "dataset" not in given:
        manifest, _ = find_dataset(data, asked.storage_options())
        found.append(f"dataset={manifest.spec.name}")
    accelerator = asked.accelerator
    if accelerator.kind == "model" and accelerator.model is not None:
        if "accelerator.name" not in given:
            found.append(f"accelerator.name={accelerator.model}")
        if "reader.crop" not in given:
            from ...accelerate.model import sample_bytes_of

            found.append(f"reader.crop={sample_bytes_of(accelerator.model)}")
    return [*found, *overrides]


def sized(
    sweep: Sweep,
    overrides: Sequence[str],
    trial_s: float | None,
    tell: Callable[[str], None],
) -> Sweep:
    """The walk with the samples of each trial, after its model was tried; tell how long it takes.

    ``--set max_steps=N`` says it in steps, which are then the same whatever the batch size is.
    Raises UsageError for a time that can't be heeded, and what ``make_plan`` and ``mean_step``
    raise.
    """
    workload = training_of(sweep, {})
    kind = workload.accelerator.kind
    steps_given = any(text.partition("=")[0].strip() == "max_steps" for text in overrides)
    if trial_s is not None and (steps_given or kind != "model"):
        why = "--set max_steps" if steps_given else f"accelerator.kind={kind}"
        raise UsageError(
            f"--time can't be used with {why}",
            remedy="say how long a trial is with --set max_steps=N alone",
        )
    if kind != "model":
        return sweep
    from ...accelerate.recording import mean_step

    if sweep.data:  # refuses data that the beginning can't read, before the model is tried
        ranks = sweep.accelerators
        make_plan(workload, sweep.data, accelerators=ranks, repetitions=1, seed=sweep.seed)
    tell(f"trying {workload.accelerator.model} with batches of {workload.batch_size} ...")
    step_s = mean_step(workload.accelerator, workload.batch_size, seconds=_TRIAL_S)
    if not steps_given:
        seconds = TRIAL_S if trial_s is None else trial_s
        samples = samples_within(seconds, step_s, workload.batch_size * sweep.accelerators)
        sweep = sweep.model_copy(update={"samples_per_trial": samples})
    tell(_announced(sweep, step_s))
    return sweep


def _announced(sweep: Sweep, step_s: float) -> str:
    """How long the walk takes: at most a trial of each value, and of the settings before it."""
    workload = training_of(sweep, {})
    steps = workload.max_steps or 1
    points = sum(len(step.values) + 1 for step in sweep.walk if step.values) + 2
    trials = points * sweep.repetitions
    warm_up_s = min(_WARM_UP_STEPS * step_s, max(workload.accelerator.warm_up, 3 * step_s))
    trial_s = steps * step_s + warm_up_s + _START_S
    trained = steps * workload.batch_size * sweep.accelerators
    return (
        f"a step takes {format_duration(step_s)} with batches of {workload.batch_size}; each trial "
        f"trains on {counted(trained, 'sample')} and takes {format_duration(trial_s)}, and there "
        f"are at most {counted(trials, 'trial')}: up to {format_duration(trials * trial_s)}, and "
        "less where the settings are faster (--budget ends it earlier, --resume continues)"
    )

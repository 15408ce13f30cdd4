"""The steps of a walk: which points each of them has, from what was measured before it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence

from ...accelerate.possible import why_not
from ...analyse.tuning.walk import changed, is_complete, kept_settings, points_of
from ...schema.sweep import Setting, Sweep, SweepPoint, describe
from ...schema.walk import WalkSpec, check_keys
from .plan import plan_points, resolve, value_now


def plan_walk(asked: Sweep, spec: WalkSpec) -> Sweep:
    """The walk ``spec`` as a sweep whose first step is planned.

    Every value of every step is checked as far as possible without data. Raises UsageError,
    SpecError.
    """
    check_keys(spec)
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
    """The points of the step that is to be visited, which are added to the sweep if it is new.

    Empty after the last step, and where the settings that were kept have failed, since nothing can
    be compared with them. A step whose values can't be tried on this host has points that
    have failed, and none that is visited.
    """
    if sweep.walked:
        begun = points_of(sweep, sweep.walked - 1)
        if not all(is_complete(sweep, point) for point in begun):
            return begun
        if begun and begun[0].failed:
            return []
    while sweep.walked <= len(sweep.walk):
        number = sweep.walked
        points = _points(sweep, number)
        sweep.walked = number + 1
        sweep.points += points
        if any(not is_complete(sweep, point) for point in points):
            return points
    return []


def _points(sweep: Sweep, number: int) -> list[SweepPoint]:
    """The points of a step, the settings that are kept so far first; those are not visited alone.

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
        same = _meaning(sweep, kept)
        asked = [dict(each) for each in others if _meaning(sweep, each) != same]
        asked = [kept, *asked] if asked else []
    points = plan_points(sweep, asked)
    for point in points:
        point.step = number
        point.failed = why_not(resolve(sweep, point.settings)[0].accelerator)
    if points and all(point.failed for point in points[1:]):
        points[0].dropped = "there is nothing to compare it with"
    return points


def _meaning(sweep: Sweep, settings: Mapping[str, Setting]) -> str:
    """A text that is equal for settings that do the same.

    Threads that are not set are as many as the cores of a rank.
    """
    workload, _ = resolve(sweep, settings)
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


def expected_visits(sweep: Sweep) -> int:
    """The most visits that the walk may take: of each value, and of the settings before it."""
    points = sum(len(step.values) + 1 for step in sweep.walk if step.values) + 2
    return points * sweep.repetitions


def samples_within(seconds: float, step_s: float, batch_size: int) -> int:
    """The samples of whole batches that a visit of about ``seconds`` trains on.

    At least two steps, so that a visit is no single step.
    """
    return batch_size * max(2, math.ceil(seconds / step_s))

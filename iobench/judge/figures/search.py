"""The search for the largest number of accelerators: what a try says, and what all of them say.

A try counts its steady window alone: from the time at which every rank has received its first whole
round of batches to the time at which the first of them ends. While the pipeline fills, all workers
read for the first batches, so a rate that includes that time is too low.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from ...record.training import Epoch, FindMax, FindMaxPoint, Repetition
from .events import Events, RankEpoch, rank_epochs
from .metrics import repetition_metrics

STEADY = "accelerator_utilization_steady"

IN_FLIGHT = 20
"""Where a steady window has so many times the steps that a rank has batches in flight, those that
were read before it are 5 % of what it counts at most, and are left out of account."""


class Steady(NamedTuple):
    """The steady window of a try. ``steps``: of the rank with the fewest."""

    accelerator_utilization: float
    samples_per_s: float
    stored_bytes_per_s: float
    steps: int


def steady(events: Events, *, round_steps: int) -> Steady | None:
    """The steady window of all epochs together; None if no rank made a whole round in it.

    ``round_steps``: the workers of a rank, whose batches arrive in rounds. Only whole rounds count.
    """
    epochs: dict[int, list[RankEpoch]] = {}
    for part in rank_epochs(events) if len(events["step"]) else ():
        epochs.setdefault(part.epoch, []).append(part)
    ranks = {part.rank for parts in epochs.values() for part in parts}
    steps = dict.fromkeys(ranks, 0)
    span_ns = busy_ns = 0.0
    rates = np.zeros(2)
    for parts in epochs.values():
        begin = max(_begin_ns(part, round_steps) for part in parts)
        end = min(part.end_ns for part in parts)
        for part in parts:
            window = _window(part, begin, end, round_steps)
            if window is None:
                continue
            first, last, window_ns = window
            rows = slice(first, last)
            busy_ns += float(part.rows["busy_ns"][rows].sum())
            span_ns += window_ns
            steps[part.rank] += int(part.rows["steps"][rows].sum())
            rates += [float(part.rows[name][rows].sum()) for name in ("samples", "sample_bytes")]
    if not ranks or not min(steps.values()) or span_ns <= 0:
        return None
    samples, stored = (rates * len(ranks) / (span_ns / 1e9)).tolist()
    return Steady(min(1.0, busy_ns / span_ns), samples, stored, min(steps.values()))


def _begin_ns(part: RankEpoch, round_steps: int) -> float:
    """When the rank has made its first round; its end if it made none."""
    later = np.flatnonzero(part.rows["step"] >= round_steps)
    return float(part.rows["start_ns"][later[0]]) if len(later) else part.end_ns


def _window(
    part: RankEpoch, begin: float, end: float, round_steps: int
) -> tuple[int, int, float] | None:
    """(first row, row after the last one, nanoseconds) of the whole rounds between two times."""
    starts = part.rows["start_ns"].astype(np.float64)
    ends = np.append(starts[1:], part.end_ns)
    inside = np.flatnonzero((starts >= begin) & (ends <= end + 1))
    if not len(inside):
        return None
    first, last = int(inside[0]), int(inside[-1]) + 1
    if (part.rows["steps"][first:last] == 1).all():
        last = first + (last - first) // round_steps * round_steps
    if last <= first:
        return None
    return first, last, float(ends[last - 1] - starts[first])


def find_max_point(
    events: Events,
    *,
    accelerators: int,
    required: float,
    round_steps: int,
    startup_s: float | None = None,
    trial: int = 0,
    in_flight: int | None = None,
) -> FindMaxPoint:
    """One try of a number of accelerators.

    ``events`` holds the rows of phase ``find-max.<accelerators>``, with the trial as repetition.
    ``round_steps``: that of ``steady``. ``in_flight``: batches that each rank reads ahead.
    """
    context = Repetition(
        seed=0, accelerators=accelerators, epochs=[Epoch(epoch=0, startup_s=startup_s)]
    )
    figures = repetition_metrics(events, context)
    sustained = figures.accelerator_utilization_sustained
    found = FindMaxPoint(
        accelerators=accelerators,
        accelerator_utilization=figures.accelerator_utilization,
        accelerator_utilization_sustained=sustained,
        samples_per_s=figures.samples_per_s,
        read_bytes_per_s=figures.read_bytes_per_s,
        passed=False,
        startup_s=startup_s,
        trial=trial,
        in_flight_batches=in_flight,
        not_measured={
            key: figures.not_measured[key]
            for key in ("accelerator_utilization_sustained",)
            if key in figures.not_measured
        },
    )
    window = steady(events, round_steps=round_steps)
    update: dict[str, object] = {"steps": window.steps if window else 0}
    if window is None:
        update["not_measured"] = found.not_measured | {
            STEADY: "not every rank made a whole round of batches after the first one"
        }
    elif sustained is not None:  # a null accelerator has no utilization
        update[STEADY] = window.accelerator_utilization
        update["samples_per_s"] = window.samples_per_s
    found = found.model_copy(update=update)
    certain = certain_utilization(found) if STEADY in update else None
    return found.model_copy(update={"passed": certain is not None and certain >= required})


def utilization_of(point: FindMaxPoint) -> float | None:
    """The utilization that decides; None if it was not measured."""
    if point.steps is None:
        return point.accelerator_utilization_sustained
    return point.accelerator_utilization_steady


def certain_utilization(point: FindMaxPoint) -> float | None:
    """The utilization that the storage gave for certain; None if it was not measured.

    In a short window, what was read before it began may have fed the accelerator. The truth is then
    at least the utilization that counts the time of the fill too, and at least that of the window
    without as many steps as batches were in flight.
    """
    most = utilization_of(point)
    steps, in_flight = point.steps or 0, point.in_flight_batches or 0
    if most is None or steps >= IN_FLIGHT * in_flight:
        return most
    drained = most * max(0.0, 1.0 - in_flight / steps) if steps else 0.0
    return min(most, max(drained, point.accelerator_utilization_sustained or 0.0))


def trials_of(points: Sequence[FindMaxPoint]) -> Mapping[int, list[FindMaxPoint]]:
    """The tries of each number, in the order of numbers."""
    found: dict[int, list[FindMaxPoint]] = {}
    for point in sorted(points, key=lambda point: point.accelerators):
        found.setdefault(point.accelerators, []).append(point)
    return found


Load = TypeVar("Load", bound=float)


def edge(
    tries: Mapping[Load, Sequence[bool]], refused: Collection[Load] = ()
) -> tuple[Load | None, Load | None]:
    """The largest load that passes below every one that fails, and the smallest that fails.

    A load passes if most of its tries do; the first one decides where as many passed as failed.
    ``refused``: loads that could not be tried, which fail.
    """
    passing = [
        load
        for load, each in tries.items()
        if load not in refused and 2 * sum(each) + each[0] > len(each)
    ]
    high = min({*tries, *refused}.difference(passing), default=None)
    low = max((load for load in passing if high is None or load < high), default=None)
    return low, high


def with_answer(found: FindMax) -> FindMax:
    """The answer of all tries by ``edge``, as the search went on by it, and its interval.

    The interval is [the largest number up to that whose tries passed always, the largest number of
    which one passed ever, or may have passed].
    """
    required = found.required_accelerator_utilization
    trials = trials_of(found.points)
    answer, _ = edge({number: [one.passed for one in tries] for number, tries in trials.items()})
    low = high = None
    if any(point.steps is not None for point in found.points):
        always = [
            number
            for number, tries in trials.items()
            if number <= (answer or 0) and all(point.passed for point in tries)
        ]
        ever = [
            number
            for number, tries in trials.items()
            if any((utilization_of(one) or 0.0) >= required for one in tries)
        ]
        low, high = max(always, default=0), max(ever, default=0)
    return found.model_copy(update={"accelerators": answer, "low": low, "high": high})


def may_be_more(found: FindMax) -> bool:
    """Whether the search stopped before a number above its interval had failed twice.

    Once alone may be a disturbed try; with two of three tries a number has failed, whatever the
    third one says.
    """
    above = (tries for n, tries in trials_of(found.points).items() if n > (found.high or 0))
    return bool(found.bound) and all(len(tries) < 2 for tries in above)

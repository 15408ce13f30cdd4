"""Find how many accelerators the storage can feed: real runs with varying ranks, by bisection.

The numbers at the edge, the last that passes and the first that fails, are tried several times in
turns, so that one disturbed try does not decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ...base.errors import IobenchError, NoMemoryError, NoRoomError, UsageError
from ...base.units import counted, format_duration
from ...judge.figures.search import IN_FLIGHT, find_max_point, trials_of, with_answer
from ...record.training import FindMax, FindMaxPoint
from ...settings.workload import Workload
from ..budget import Budget
from ..plan import Plan
from ..repetition import repetition_phase
from ..trials import TRIALS, LoadSearch, seed_of
from .bench import Bench

MAX_ACCELERATORS = 256
"""Of one host: ranks are processes, and with more of them it would measure itself."""

MIN_STEPS = 500
"""Steps of a try after the pipeline was filled: at least so many, and IN_FLIGHT times the batches
that a rank has in flight. Where the dataset or the time is too small for these, there are fewer,
but never fewer than ``least_steps``; what was read ahead then makes the interval wider."""

MAX_POINT_S = 60.0

USUAL_TRIES = 9
"""What a search usually tries: a few numbers, and two of them three times."""

_PATIENCE = 1.3
"""A try that takes so many times as long as one that just passes has failed."""

_UNFINISHED = "the search did not end"

_PART = "find_max"


class _OutOfTimeError(IobenchError):
    """The budget has no time for another try."""


Try = Callable[[int, int], FindMaxPoint]
"""(number of accelerators, trial from 0). Raises NoRoomError or NoMemoryError."""


def check_search(workload: Workload) -> None:
    """Raise UsageError if the accelerator has no step time, so that no utilization is known."""
    if workload.samples_per_s_per_accelerator is None:
        raise UsageError(
            "--find-max needs an accelerator with a step time",
            remedy="use a workload with accelerator.kind: emulated",
        )


def begin_search(bench: Bench) -> FindMax:
    """The record of a search that has tried nothing yet. Raises as ``check_search``."""
    workload = bench.plan.workload
    check_search(workload)
    return FindMax(
        required_accelerator_utilization=workload.required_accelerator_utilization,
        accelerators=None,
        points=[],
        bound=_UNFINISHED,
        wanted_steps=wanted_steps(workload, bench.loader.in_flight_batches),
    )


def wanted_steps(workload: Workload, in_flight: int | None = None) -> int:
    """The steps of a rank that a try should have in its steady window.

    ``in_flight``: batches of a rank, if it is known how many each worker reads ahead.
    """
    return max(MIN_STEPS, least_steps(workload), IN_FLIGHT * (in_flight or 0))


def least_steps(workload: Workload) -> int:
    """The fewest steps of a try: IN_FLIGHT times the batches that the workers were asked for."""
    loader = workload.loader
    return IN_FLIGHT * max(1, loader.workers) * max(1, loader.prefetch_factor)


def most_s(workload: Workload) -> float:
    """The time of one try, if it passes. Where that is too short, there are fewer steps."""
    loader, step_time = workload.loader, workload.accelerator.step_time or 0.0
    least_s = (max(1, loader.workers) + least_steps(workload)) * step_time
    return max(MAX_POINT_S, _PATIENCE * least_s / workload.required_accelerator_utilization)


def find_max(bench: Bench, found: FindMax, budget: Budget) -> None:
    """Find the largest number of accelerators at the required utilization.

    The search starts at the number that the calibrated rates predict: an accelerator at utilization
    u takes u times its full demand. ``found`` is updated after each try. With a budget, tries have
    fewer steps, but never fewer than those that tell what the storage feeds; the search ends when
    the next try has no time.
    """
    workload = bench.plan.workload
    step_s = workload.accelerator.step_time or 0.0
    steps = found.wanted_steps or wanted_steps(workload)
    if budget.limited and step_s:
        fitting = int(budget.left_s / USUAL_TRIES / step_s)
        steps = min(steps, max(fitting, least_steps(workload)))

    def attempt(number: int, trial: int) -> FindMaxPoint:
        each_s = max(steps * step_s, budget.longest_s(_PART))
        if not budget.fits(each_s):
            raise _OutOfTimeError(f"the budget had no time for a try of {format_duration(each_s)}")
        again = f", try {trial + 1}" if trial else ""
        bench.observer.phase(f"trying {counted(number, 'accelerator')}{again}")
        required = found.required_accelerator_utilization
        with budget.trial(_PART):
            limit_s = min(most_s(workload), budget.left_s)
            return _try(bench, number, trial, required, steps=steps, limit_s=limit_s)

    most, why = _most(bench.plan, bench.hosts.count)
    first = _first_number(bench, found.required_accelerator_utilization)
    try:
        search(found, attempt, first=first, most=most, why=why)
    except _OutOfTimeError as over:
        found.bound = over.what


class _NumberSearch(LoadSearch):
    def between(self, low: float | None, high: float) -> float | None:
        low = low or 0
        return (low + high) // 2 if high - low > 1 else None


def search(found: FindMax, attempt: Try, *, first: int, most: int, why: str) -> None:
    """Try numbers from ``first`` on, up to ``most``; ``why`` no larger number is tried.

    ``found`` has what is known so far.
    """
    numbers = _NumberSearch(least=1, most=most, first=first)

    def try_once_more(number: int) -> None:
        trial = len(trials_of(found.points).get(number, []))
        found.points.append(attempt(number, trial))
        answer = with_answer(found)
        found.accelerators, found.low, found.high = answer.accelerators, answer.low, answer.high
        numbers.tried(number, passed=found.points[-1].passed)

    while (number := numbers.next_load()) is not None:
        try:
            try_once_more(int(number))
        except (NoRoomError, NoMemoryError) as error:
            # So many ranks do not fit into the host's memory: the limit is the host, not the
            # storage.
            ranks = counted(int(number), "accelerator")
            numbers.refused[number] = f"this host can't emulate {ranks}: {error.what}"
    low, high = numbers.edge()
    found.bound = ""
    if low is not None and (high is None or high in numbers.refused):
        found.bound = why if high is None else numbers.refused[high]
    below = int(low or 0) - 1
    if below > 0 and below not in numbers.trials and not all(numbers.trials[below + 1]):
        try_once_more(below)  # the lower end of the interval


def least_tries(plan: Plan, hosts: int) -> tuple[int, float]:
    """The tries of a search at least, and the seconds of each if the accelerators are fed.

    Where a try ends with the dataset, it is one of the largest number that is tried.
    """
    workload = plan.workload
    most, _ = _most(plan, hosts)
    steps = wanted_steps(workload)
    if plan.passes is not None:
        steps = min(steps, max(1, plan.manifest.sample_count // (most * workload.batch_size)))
    step_s = workload.accelerator.step_time or 0.0
    return min(USUAL_TRIES, TRIALS * most), min(most_s(workload), steps * step_s)


def _most(plan: Plan, hosts: int) -> tuple[int, str]:
    """The largest number that is tried, and why no larger one is.

    It is never below the number of the run itself, as far as the dataset is large enough.
    Where the page cache may serve a second pass, each rank needs all of its steps of one.
    """
    workload, samples = plan.workload, plan.manifest.sample_count
    steps = max(1, workload.loader.workers) + least_steps(workload)
    each = steps * workload.batch_size if plan.passes is not None else 1
    most = max(1, samples // each)
    allowed = max(MAX_ACCELERATORS * hosts, plan.accelerators)
    if most >= allowed:
        return allowed, f"the search stops at {counted(allowed, 'accelerator')}"
    return most, f"the dataset has too few samples for more than {counted(most, 'accelerator')}"


def _first_number(bench: Bench, required: float) -> int:
    ceilings = [
        bench.ceilings[name].samples_per_s
        for name in ("fetch", "prep", "loader")
        if name in bench.ceilings
    ]
    known = [value for value in ceilings if value]
    rate = bench.plan.workload.samples_per_s_per_accelerator
    if not known or rate is None:
        return bench.plan.accelerators
    return max(1, math.floor(min(known) / (rate * required)))


def _try(
    bench: Bench, number: int, trial: int, required: float, *, steps: int, limit_s: float
) -> FindMaxPoint:
    plan, workload = bench.plan, bench.plan.workload
    round_steps = max(1, workload.loader.workers)
    phase = replace(
        repetition_phase(plan, trial, name=f"find-max.{number}"),
        accelerators=number,
        seed=seed_of(plan.seed, "find-max", number, series=trial),
        epochs=plan.passes,
        max_steps=round_steps + steps,
        limit_s=limit_s,
        whole_rounds=True,
        evicts=False,
    )
    outcome = bench.run(phase, stored=True)
    bench.keep(phase, outcome)
    startup = outcome.epochs[0].startup_s if outcome.epochs else None
    return find_max_point(
        outcome.events(),
        accelerators=number,
        required=required,
        startup_s=startup,
        round_steps=round_steps,
        trial=trial,
        in_flight=outcome.loader.in_flight_batches,
    )

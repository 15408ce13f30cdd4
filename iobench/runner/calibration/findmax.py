"""Find how many accelerators the storage can feed: real runs with varying ranks, by bisection.

The numbers at the edge, the last that passes and the first that fails, are tried several times in
turns, so that one disturbed try does not decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from ...base.errors import IobenchError, NoMemoryError, NoRoomError, UsageError
from ...base.units import counted, format_duration
from ...judge.figures.search import IN_FLIGHT, find_max_point, passes, trials_of, with_answer
from ...record.training import FindMax, FindMaxPoint
from ...settings.workload import Workload
from ..budget import Budget
from ..plan import Plan
from ..repetition import repetition_phase
from ..trials import seed_of
from .bench import Bench

MAX_ACCELERATORS = 256
"""Ranks are processes; with more of them, one host would measure itself."""

TRIALS = 3
"""Tries of each number at the edge."""

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
    limit_s = min(most_s(workload), budget.left_s)

    def attempt(number: int, trial: int) -> FindMaxPoint:
        each_s = max(steps * step_s, budget.longest_s(_PART))
        if not budget.fits(each_s):
            raise _OutOfTimeError(f"the budget had no time for a try of {format_duration(each_s)}")
        again = f", try {trial + 1}" if trial else ""
        bench.observer.phase(f"trying {counted(number, 'accelerator')}{again}")
        required = found.required_accelerator_utilization
        with budget.trial(_PART):
            return _try(bench, number, trial, required, steps=steps, limit_s=limit_s)

    most, why = _most(bench.plan)
    first = _first_number(bench, found.required_accelerator_utilization)
    try:
        search(found, attempt, first=first, most=most, why=why)
    except _OutOfTimeError as over:
        found.bound = over.what


def search(found: FindMax, attempt: Try, *, first: int, most: int, why: str) -> None:
    """Try numbers from ``first`` on, up to ``most``; ``why`` no larger number is tried."""
    _Search(found, attempt, first=first, most=most, why=why).run()


class _Search:
    """Which numbers are tried, one after the other; ``found`` has what is known so far.

    The number doubles or halves until one passes and a larger one fails, and then the interval is
    bisected. Then both are repeated in turns. Where the medians of their tries disagree with that,
    the search goes on.

    ``low`` passes (0 trivially); ``high`` fails, or is ``limit``, which is not tried.
    """

    def __init__(self, found: FindMax, attempt: Try, *, first: int, most: int, why: str) -> None:
        self.found, self.attempt = found, attempt
        self.low, self.high = 0, most + 1
        self.limit, self.why_no_more = most + 1, why
        self.number = first

    def run(self) -> None:
        goes_on = True
        while goes_on:
            self._close_in()
            self._repeat_the_edge()
            goes_on = self._was_wrong()
        trials, below = self._trials(), self.low - 1
        if below > 0 and below not in trials and not all(one.passed for one in trials[self.low]):
            self._try(below)  # the lower end of the interval
        at_limit = self.high == self.limit
        self.found.bound = self.why_no_more if at_limit and self.low else ""

    def _trials(self) -> Mapping[int, list[FindMaxPoint]]:
        return trials_of(self.found.points)

    def _try(self, number: int) -> bool:
        """Try a number once more, and keep what it says; whether it passed."""
        found = self.found
        found.points.append(self.attempt(number, len(self._trials().get(number, []))))
        answer = with_answer(found)
        found.accelerators, found.low, found.high = answer.accelerators, answer.low, answer.high
        return found.points[-1].passed

    def _close_in(self) -> None:
        """Try numbers until the one that passes and the one that fails are neighbours."""
        while self.high - self.low > 1:
            number = min(max(self.number, self.low + 1), self.high - 1)
            try:
                passed = self._try(number)
            except (NoRoomError, NoMemoryError) as error:
                # So many ranks do not fit into the host's memory: the limit is the host, not the
                # storage.
                ranks = counted(number, "accelerator")
                self.why_no_more = f"this host can't emulate {ranks}: {error.what}"
                self.high = self.limit = number
                self.number = self._middle
                continue
            if passed:
                self.low = number
                doubled = min(2 * number, self.high - 1)
                self.number = doubled if self.high == self.limit else self._middle
            else:
                self.high = number
                self.number = number // 2 if self.low == 0 else self._middle

    def _repeat_the_edge(self) -> None:
        """Try the two neighbours in turns, until each has ``TRIALS`` tries."""
        for _ in range(TRIALS):
            for each in (self.low, self.high):
                if 0 < each < self.limit and len(self._trials()[each]) < TRIALS:
                    self._try(each)

    def _was_wrong(self) -> bool:
        """Whether the medians of all tries disagree with the two, which then are others."""
        required = self.found.required_accelerator_utilization
        passing = {each: passes(tries, required) for each, tries in self._trials().items()}
        if self.low in passing and not passing[self.low]:
            below = (each for each in passing if each < self.low and passing[each])
            self.high, self.low = self.low, max(below, default=0)
        elif self.high < self.limit and passing[self.high]:
            above = (each for each in passing if each > self.high and not passing[each])
            self.low, self.high = self.high, min(above, default=self.limit)
        else:
            return False
        self.number = self._middle if self.high < self.limit else 2 * self.low
        return True

    @property
    def _middle(self) -> int:
        return (self.low + self.high) // 2


def least_tries(plan: Plan) -> tuple[int, float]:
    """The tries of a search at least, and the seconds of each if the accelerators are fed.

    Where a try ends with the dataset, it is one of the largest number that is tried.
    """
    workload = plan.workload
    most, _ = _most(plan)
    steps = wanted_steps(workload)
    if plan.passes is not None:
        steps = min(steps, max(1, plan.manifest.sample_count // (most * workload.batch_size)))
    step_s = workload.accelerator.step_time or 0.0
    return min(USUAL_TRIES, TRIALS * most), min(most_s(workload), steps * step_s)


def _most(plan: Plan) -> tuple[int, str]:
    """The largest number that is tried, and why no larger one is.

    Where the page cache may serve a second pass, each rank needs all of its steps of one.
    """
    workload, samples = plan.workload, plan.manifest.sample_count
    steps = max(1, workload.loader.workers) + least_steps(workload)
    each = steps * workload.batch_size if plan.passes is not None else 1
    most = max(1, samples // each)
    if most >= MAX_ACCELERATORS:
        return MAX_ACCELERATORS, f"the search stops at {counted(MAX_ACCELERATORS, 'accelerator')}"
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
    return max(1, math.floor(min(min(known) / (rate * required), MAX_ACCELERATORS)))


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

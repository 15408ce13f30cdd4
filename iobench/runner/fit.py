"""A run of the length of a budget: first a short pilot tells how many steps fit into it.

The time first buys a few repetitions that are long enough to tell the bottleneck, then what decides
the answer: the storage's curve, the same without one stage each, and each stage alone. What does
not fit is made shorter, then there is less of it, and then it is left out, with the reason.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..base.errors import UsageError
from ..base.units import format_duration
from ..judge.figures.ablations import How, in_step, steady_rate
from ..judge.figures.events import rank_epochs
from ..record.training import Ceiling
from .budget import Budget, Given
from .calibration.bench import Bench
from .calibration.ceilings import MAX_SLOW_S
from .estimate import START_S, CeilingTimes, Pilot, Work, demand, needed_of
from .options import Options
from .phase import FEW_ROUNDS, MIN_ROUNDS, Outcome, Saving
from .plan import Plan
from .repetition import repetition_phase

REPETITIONS, MIN_REPETITIONS, MAX_REPETITIONS = 6, 3, 12
"""As many as ``iobench run`` has by default; the fewest that give an interval; and the most, where
all that was planned took less than its time."""

MIN_REPETITION_S = 2.0
"""Fewer repetitions are made rather than shorter ones, or ones of fewer than ``_GOOD`` times the
steps that are needed."""

_GOOD = 2

ABLATIONS = 1.5
"""Time of the ablations for each second of repetitions: their round has three stages or more."""

CALIBRATION_SHARE = 0.25
MIN_CALIBRATION_S, MAX_CALIBRATION_S = 0.1, 3.0

CURVE_SHARE = 0.15
"""Share of the time for the storage's curve, which is measured before the pilot."""

_CURVE_START_S, _CURVE_WINDOWS = 2.0, 3
"""What a curve takes for windows of a second (``calibration.curve.budget_s``)."""

_LEAST_SHARE = 0.8
"""Share of the estimate of the shortest run below which it is refused: its parts may be shorter."""

_PILOT_SHARE, _MIN_PILOT_S, _MAX_PILOT_S = 0.04, 0.4, 3.0

_CAUTION = 0.8
"""Share of a rate that is known from the first round of batches alone, or from the curve."""

_LONG_FILL = 0.15
"""A pilot that would wait for its first batches for more than this share of the time is not made:
the curve tells how long they take at least."""

_FULL = 0.95
"""The share of the time that is planned: what a part takes is not known exactly."""

_STARVED, _EXPLAINED = 0.7, 0.6
"""A curve below this share of the demand tells that the storage is the bottleneck, if all stages
together reach that share of it."""

_WAITED_NS = 1_000_000
"""A batch for which the training waited less had arrived before."""

STAGES = 3
"""Stages that a round of ablations usually leaves out; with ranks in step there is one more."""

NO_TIME = "the budget had no time for it: raise --budget"

Skipped = frozenset[str]
"""Names of ceilings that are left out."""

CURVE: Skipped = frozenset({"storage_raw"})
_FETCH: Skipped = frozenset({"fetch"})  # of which the curve tells the most
_SLOW: Skipped = frozenset({"fetch", "prep"})
_ALL: Skipped = frozenset({"fetch", "prep", "loader", "accelerator"})


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A plan whose run takes about as long as there is time.

    ``calibration_s``: of each ceiling; ``min_rounds``: of workers, in each of its windows and in
    each ablation; ``skipped``: ceilings for which there is no time. ``ablations_s``: of all
    ablations together; ``least_s``: of the shortest run that can tell anything.
    """

    plan: Plan
    calibration_s: float
    ablations_s: float
    least_s: float
    min_rounds: int = MIN_ROUNDS
    skipped: Skipped = frozenset()

    def options(self, asked: Options) -> Options:
        """The options as they were fitted."""
        ablations_s = None if asked.budget.usual else self.ablations_s
        return replace(asked, calibration_s=self.calibration_s, ablations_s=ablations_s)


def curve_windows_s(seconds: float) -> float:
    """The time of a ceiling for which the storage's curves take their share of ``seconds``."""
    each = (CURVE_SHARE * seconds - _CURVE_START_S) / _CURVE_WINDOWS
    return min(MAX_CALIBRATION_S, max(MIN_CALIBRATION_S, each))


def check_budget(plan: Plan, options: Options, budget: Budget) -> None:
    """Raise UsageError where the budget is too short even if the accelerators are fed.

    Of a model that trains on the CPU two steps are tried: they may take as long as the budget.
    """
    if not budget.strict:
        return
    pilot, least_s = Pilot(samples_per_s=None, start_s=START_S), _MIN_PILOT_S + START_S
    share, spec = 1.0, plan.workload.accelerator
    if not budget.left_s:  # the start of the process took all of it
        raise too_short(budget, least_s)
    if spec.kind == "model" and (spec.device or "cpu") == "cpu" and not spec.compile:
        pilot, share = _cold_pilot(plan, budget), _LEAST_SHARE
        least_s = pilot.start_s + Work.of(plan, pilot).step_s
    least_s += choose(plan, pilot, 0.0, options, budget.given).least_s / share
    if not budget.fits(least_s):
        raise too_short(budget, least_s)


def _cold_pilot(plan: Plan, budget: Budget) -> Pilot:
    """What two steps without a warm-up tell of a pilot in which the accelerators are fed.

    Raises UsageError where they take so long that the pilot and a repetition do not fit.
    """
    from ..accelerate.model import MIN_WARM_UP_STEPS, SETTLED_STEPS
    from ..accelerate.recording import quick_step

    spec, size = plan.workload.accelerator, plan.workload.batch_size
    needed = Work.of(plan, Pilot(samples_per_s=None, start_s=START_S), steps_given=False).needed
    steps = 2 * MIN_WARM_UP_STEPS + 1 + needed
    each_s = budget.left_s / steps
    step_s = quick_step(spec, size, within_s=2 * each_s)
    if step_s is None:
        raise UsageError(
            f"--budget {format_duration(budget.seconds or 0.0)} is too short for this run, which "
            f"takes at least {steps} steps of the model '{spec.model}', and one takes longer than "
            f"{format_duration(each_s)} here",
            remedy="give more time, a smaller batch_size or a smaller model",
        )
    warm_up_s = max(MIN_WARM_UP_STEPS * step_s, min(spec.warm_up, SETTLED_STEPS * step_s))
    return Pilot(samples_per_s=size * plan.accelerators / step_s, start_s=START_S + warm_up_s)


def too_short(budget: Budget, least_s: float) -> UsageError:
    """The error of a run that takes at least ``least_s`` from now on."""
    given = [_FLAGS[name] for name in sorted(budget.given) if name in _FLAGS]
    return budget.too_short(least_s, other=f", or leave {', '.join(given)} to it" if given else "")


_FLAGS: dict[Given, str] = {
    "repetitions": "--repeat",
    "calibration": "--calibration",
    "ablations": "--ablations",
    "steps": "the number of steps",
}
"""What a user gave that a budget would otherwise fit."""


def measure_pilot(bench: Bench, seconds: float, saving: Saving | None = None) -> Pilot:
    """Run all stages together for a moment, of ``seconds`` for a whole run, and record nothing.

    It ends with a step, whether or not the other batches of its round have arrived.
    """
    plan = bench.plan
    phase = replace(
        repetition_phase(plan, 0, name="pilot", kind="pilot", saving=saving),
        epochs=1,
        max_steps=None,
        limit_s=min(_MAX_PILOT_S, max(_MIN_PILOT_S, _PILOT_SHARE * seconds)),
    )
    began = time.monotonic()
    outcome = bench.run(phase, stored=True)
    return pilot_of(outcome, time.monotonic() - began, demand(plan))


def pilot_of(outcome: Outcome, took_s: float, demand: float | None) -> Pilot:
    """What a pilot of ``took_s`` seconds told. ``demand``: samples/s of fed accelerators.

    A pilot that ends before the second round of batches knows no steady rate. Workers begin
    together, and the first batches of all of them arrive at about the same time: then all of these
    were made, however many of them were trained on.
    """
    events = outcome.events()
    if not len(events["samples"]):
        return Pilot(samples_per_s=None, start_s=took_s)
    together = max(1, outcome.loader.round_batches or 1)
    starts = {epoch.epoch: epoch.startup_s or 0.0 for epoch in outcome.epochs}
    parts = list(rank_epochs(events))
    ends = [part.end_ns / 1e9 for part in parts]
    loads = 0.0
    for part in parts:
        waits, begins = part.rows["wait_ns"], part.rows["start_ns"]
        waited = (waits >= _WAITED_NS) & (part.rows["step"] < together)
        waited[0] = True
        arrived_s = float((begins + waits)[waited].max()) / 1e9 - starts.get(part.epoch, 0.0)
        each = float(np.median(part.rows["samples"]))
        loads += _CAUTION * together * each / max(arrived_s, 1e-3)
    rate = loads
    if all(int(part.rows["steps"].sum()) >= 2 * together for part in parts):
        rate = steady_rate(events, How(together)) or loads
    rate = min(rate, demand or math.inf)
    worked = max(max(ends), 1e-3)
    startup = min(starts.values(), default=0.0)
    return Pilot(
        samples_per_s=rate or None,
        start_s=max(0.0, took_s - worked) + min(startup, worked),
        round_steps=together,
        loads_per_s=max(rate, loads) or None,
    )


def pilot_by_curve(plan: Plan, ceilings: Mapping[str, Ceiling], left_s: float) -> Pilot | None:
    """The pilot of a storage so slow that the first batches alone take too much of the time.

    None where it is not, or where its curve is not known.
    """
    raw = ceilings.get("storage_raw")
    most = raw.samples_per_s if raw is not None else None
    if not most:
        return None
    workers = max(1, plan.workload.loader.workers)
    first_s = workers * plan.workload.batch_size * plan.accelerators / most
    if first_s <= _LONG_FILL * left_s:
        return None
    rate = min(_CAUTION * most, demand(plan) or math.inf)
    return Pilot(samples_per_s=rate, start_s=2 * START_S, loads_per_s=_CAUTION * most)


def check_curve(bench: Bench, options: Options, budget: Budget) -> None:
    """Raise UsageError where the budget is too short even for reads as the curve has them.

    A pilot, which fills the whole pipeline, would take longer to tell that. The curve tells nothing
    of data that may be in the page cache.
    """
    plan, size = bench.plan, bench.plan.sample_bytes
    points = bench.curve.curve.points if bench.curve is not None else []
    as_read = plan.front is plan.storage and not plan.subject.reads_itself
    if not (budget.strict and as_read and plan.workload.cache == "cold" and points and size > 0):
        return
    enough = min((n for each in points if (n := each.in_flight) >= plan.reads_in_flight), default=0)
    known = [each for each in points if not enough or each.in_flight <= enough]
    rate = max(each.bytes_per_s.value for each in known) / _CAUTION
    if not rate > 0:
        return
    pilot = Pilot(samples_per_s=min(rate / size, demand(plan) or math.inf))
    least_s = _MIN_PILOT_S + START_S
    least_s += choose(plan, pilot, budget.left_s, options, budget.given).least_s
    if not budget.fits(least_s):
        raise too_short(budget, least_s)


def with_curve(pilot: Pilot, plan: Plan, ceilings: Mapping[str, Ceiling]) -> Pilot:
    """The pilot, with what the storage's curve says about its rate."""
    raw = ceilings.get("storage_raw")
    most, fed = raw.samples_per_s if raw is not None else None, demand(plan)
    if not most or not fed or not pilot.samples_per_s:
        return pilot
    told = most < _STARVED * fed and pilot.samples_per_s >= _EXPLAINED * most
    return replace(pilot, told=told)


def with_ceilings(pilot: Pilot, ceilings: Mapping[str, Ceiling]) -> Pilot:
    """The pilot, whose rate is that of no more than the slowest stage alone."""
    known = [
        rate
        for name in ("fetch", "prep", "loader")
        if name in ceilings and (rate := ceilings[name].samples_per_s)
    ]
    if not known or pilot.samples_per_s is None:
        return pilot
    most = min(known)
    return replace(
        pilot,
        samples_per_s=min(pilot.samples_per_s, most),
        loads_per_s=min(pilot.loads_per_s or most, most),
    )


def choose(
    plan: Plan,
    pilot: Pilot,
    seconds: float,
    options: Options,
    given: frozenset[Given] = frozenset(),
    *,
    calibrated: bool = False,
    before: Fitted | None = None,
) -> Fitted:
    """Divide ``seconds``: the fewest repetitions that are long enough, and then all the rest.

    Where the dataset is so small that its epochs can't tell the bottleneck, a repetition has
    several of them, unless the steps are ``given``.

    The storage's curve has been measured. Usually the ceilings have CALIBRATION_SHARE, and the
    ablations ABLATIONS times as much as the repetitions; the trial of advice as much as these.
    What is ``given`` stays as it is. ``calibrated``: each ceiling has been measured once, as
    ``before`` says.
    """
    if "steps" not in given:
        plan = with_enough_epochs(plan, pilot)
    work = Work.of(plan, pilot, steps_given="steps" in given)
    if work.every:  # as many saves for each step as in a long training
        for saves in (pilot.saves, 1):
            steps = work.every * max(saves, math.ceil(work.needed / work.every))
            if steps <= work.whole and 2 * work.repetition_s(steps) <= seconds:
                work = replace(work, needed=steps)
                break
    division = _Division(
        plan=plan,
        told=pilot.told,
        work=work,
        seconds=seconds,
        options=options,
        given=given,
        calibrated=calibrated,
    )
    window_s, min_rounds, skipped = options.calibration_s, MIN_ROUNDS, Skipped()
    if calibrated and before is not None:
        min_rounds, skipped = before.min_rounds, before.skipped
    elif "calibration" not in given and window_s > 0:
        window_s, min_rounds, skipped = division.windows()
    left = max(0.0, seconds - division.ceilings_s(window_s, min_rounds, skipped))
    others, fixed_s = ABLATIONS * options.ablations + options.later, 0.0
    if "ablations" in given:
        others = options.find_max
        fixed_s = (options.ablations + options.confirms) * (options.ablations_s or 0.0)
        left = max(0.0, left - fixed_s)
    repetitions, steps = division.repetitions(left, left / (1 + others))
    workload = plan.workload
    if steps < work.whole:
        if work.every and steps - steps % work.every >= work.needed:
            steps -= steps % work.every
        workload = workload.model_copy(update={"max_steps": steps})
    rest_s = max(0.0, left - repetitions * work.repetition_s(steps))
    ablations_s = rest_s * ABLATIONS / (ABLATIONS + options.later) * options.ablations
    if "ablations" in given:
        ablations_s = options.ablations_s or 0.0
    least_s = fixed_s + work.repetition_s(work.needed) * (
        plan.repetitions if "repetitions" in given else 1
    )
    if "calibration" in given:
        least_s += division.ceilings_s(window_s, MIN_ROUNDS, Skipped())
    return Fitted(
        plan=replace(plan, workload=workload, repetitions=repetitions),
        calibration_s=window_s,
        ablations_s=ablations_s,
        min_rounds=min_rounds,
        skipped=skipped,
        least_s=_LEAST_SHARE * least_s,
    )


@dataclass(frozen=True, kw_only=True)
class _Division:
    """What ``choose`` divides. ``told``: the curve tells the bottleneck."""

    plan: Plan
    told: bool
    work: Work
    seconds: float
    options: Options
    given: frozenset[Given]
    calibrated: bool

    @property
    def fewest(self) -> int:
        """Repetitions as they are given, or the fewest that give an interval."""
        return self.plan.repetitions if "repetitions" in self.given else MIN_REPETITIONS

    @property
    def needed_s(self) -> float:
        """Seconds of a repetition that can just tell the bottleneck."""
        return self.work.repetition_s(self.work.needed)

    def ceilings_s(self, window_s: float, min_rounds: int, skipped: Skipped) -> float:
        if window_s <= 0:
            return 0.0
        least_s = min_rounds * self.work.load_s
        times = CeilingTimes(
            plan=self.plan,
            least_s=least_s,
            start_s=self.work.start_s,
            without=skipped | CURVE,
        )
        first_s = 0.0 if self.calibrated else times.all_s(window_s, 1)
        if least_s > max(MAX_SLOW_S, window_s):  # windows that take long are not repeated
            times = replace(times, without=times.without | _SLOW)
        usual = self.fewest if "repetitions" in self.given else REPETITIONS
        return first_s + times.later_s(window_s, usual)

    def windows(self) -> tuple[float, int, Skipped]:
        """Seconds of each ceiling, the rounds of workers in it, and the ceilings left out.

        Fewer repetitions rather than no ceilings at all, unless the curve tells the bottleneck.
        """
        window_s, min_rounds, skipped = MIN_CALIBRATION_S, MIN_ROUNDS, Skipped()
        stages = STAGES + in_step(self.plan.workload.accelerator, self.plan.accelerators)
        others_s = self.fewest * self.needed_s
        others_s += self.work.ablations_s(stages, MIN_ROUNDS) * self.options.ablations
        if others_s + self.ceilings_s(window_s, MIN_ROUNDS, skipped) > self.seconds:
            min_rounds = FEW_ROUNDS
        fewest = self.fewest if self.told or "repetitions" in self.given else 1
        choices = [
            (number, left_out)
            for group in ((Skipped(), _FETCH), (_SLOW,))
            for number in range(self.fewest, fewest - 1, -1)
            for left_out in group
        ]
        full_s = _FULL * self.seconds
        for number, skipped in [*choices, (1, _ALL)]:
            takes_s = self.ceilings_s(window_s, min_rounds, skipped)
            if number * self.needed_s + takes_s <= full_s:
                break
        longer = MAX_CALIBRATION_S
        while longer > window_s:
            takes_s = self.ceilings_s(longer, min_rounds, skipped)
            if takes_s <= CALIBRATION_SHARE * self.seconds and others_s + takes_s <= full_s:
                window_s = longer
            longer *= 0.9
        return window_s, min_rounds, skipped

    def repetitions(self, left_s: float, share_s: float) -> tuple[int, int]:
        """How many repetitions there are, and their steps.

        ``left_s``: after the ceilings; ``share_s``: what of it the repetitions have.
        """
        work, count = self.work, self.fewest
        if "repetitions" not in self.given:
            good = min(work.whole, max(_GOOD * work.needed, work.steps_in(MIN_REPETITION_S)))
            if "steps" in self.given:
                good = work.whole
            count = min(REPETITIONS, max(MIN_REPETITIONS, int(share_s / _some(good, work))))
            if left_s < self.fewest * self.needed_s:
                count = max(1, int(left_s / _some(work.needed, work)))
        if "steps" in self.given:
            return count, work.whole
        # The fewest that can tell come before all other parts.
        least_s = min(count * self.needed_s, left_s)
        steps = min(work.whole, work.steps_in(max(share_s, least_s) / max(1, count) + 1e-6))
        if count == 1 and self.needed_s <= left_s + self.options.budget.slack_s:
            steps = max(steps, work.needed)
        return count, steps


def with_enough_epochs(plan: Plan, pilot: Pilot) -> Plan:
    """The plan with as many epochs in a repetition as have twice the steps that are needed.

    A training goes through its data again and again, so more epochs of a small dataset are more of
    the same job. A workload whose own ``max_steps`` is smaller stays as it is.
    """
    work = Work.of(plan, pilot)
    epochs = math.ceil(_GOOD * needed_of(plan.workload, work.together) / work.epoch_steps)
    if epochs <= plan.workload.epochs:
        return plan
    return replace(plan, workload=plan.workload.model_copy(update={"epochs": epochs}))


def _some(steps: int, work: Work) -> float:
    return max(1e-3, work.repetition_s(steps))


# While the repetitions are made


def repetitions_again(
    planned: int, made: int, *, left_s: float, repetition_s: float, round_s: float
) -> int:
    """How many repetitions a fitted run makes in all, once it is known what one takes.

    ``round_s``: of a round of ablations. Where not all is possible, there are fewer repetitions,
    but MIN_REPETITIONS if there is time for these alone.
    """
    if repetition_s <= 0:
        return planned
    room = made + int(max(0.0, left_s - round_s) / repetition_s)
    alone = made + int(left_s / repetition_s + 0.05)
    return max(1, min(planned, max(room, min(MIN_REPETITIONS, alone))))

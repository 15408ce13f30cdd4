"""A run of the length of a budget: first a short pilot tells how many steps fit into it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import UsageError
from ..units import format_duration
from .calibration.bench import Bench
from .estimate import START_S, calibrating_s, later_s
from .phase import Outcome
from .plan import Plan, steps_per_repetition
from .repetition import repetition_phase

REPETITIONS, MIN_REPETITIONS = 6, 3
"""As many as ``iobench run`` has by default, and the fewest that give an interval."""

MIN_REPETITION_S = 2.0
"""Fewer repetitions are made rather than shorter ones."""

KNOCK_OUTS = 1.5
"""Time of the knock-outs for each second of repetitions: their round has three stages or more."""

CALIBRATION_SHARE = 0.3
MIN_CALIBRATION_S, MAX_CALIBRATION_S = 0.1, 3.0

END_S = 1.3
"""What is kept for the end of the process: the verdict is found, and the files are written."""

_LEAST_SHARE = 0.8
"""Share of the estimate of the shortest run below which it is refused: its parts may be shorter."""

_PILOT_SHARE, _MIN_PILOT_S, _MAX_PILOT_S = 0.04, 0.4, 3.0
_MIN_ROUNDS = 3
"""Batches of each worker in the shortest repetition, and in the shortest window of a ceiling."""

_SEED_STEP = 15_485_863
"""Distance of the pilot's seed from the run's, so that no repetition reads in the same order."""

Given = Literal["repetitions", "steps", "calibration", "knock_outs"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The time of a whole run, to which all is fitted that is not ``given``.

    ``seconds`` as the user gave them; ``ends_s``: when they are over, by ``time.monotonic()``.
    ``strict``: a run for which they are too short is refused.
    """

    seconds: float
    ends_s: float
    given: frozenset[Given] = frozenset()
    strict: bool = True

    @property
    def left_s(self) -> float:
        """Seconds that are left for measuring."""
        return max(0.0, self.ends_s - END_S - time.monotonic())

    def too_short(self, missing_s: float) -> UsageError:
        """The error of a run that takes at least ``missing_s`` longer."""
        least = math.ceil(self.seconds + missing_s)
        fewer = ", or leave --repeat, --calibration, --knockouts and steps to it"
        return UsageError(
            f"--budget {format_duration(self.seconds)} is too short for this run, which takes at "
            f"least {least}s",
            remedy=f"give at least {least}s{fewer if self.given else ''}",
        )


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """What a short run of all stages together told. ``samples_per_s`` None: no batch was ready."""

    samples_per_s: float | None
    start_s: float  # of a repetition: what it takes besides its steps


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What takes time in a run besides its plan. ``knock_outs_s`` None: as is fitted."""

    calibration_s: float
    knock_outs: bool = True
    knock_outs_s: float | None = None
    confirms: bool = False


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A plan whose run takes about as long as there is time.

    ``calibration_s``: of each ceiling; ``knock_outs_s``: of all knock-outs together; ``least_s``:
    of the shortest run.
    """

    plan: Plan
    calibration_s: float
    knock_outs_s: float
    least_s: float


def check_budget(plan: Plan, asked: Asked, budget: Budget) -> None:
    """Raise UsageError where the budget is too short even if the accelerators are fed."""
    pilot = Pilot(samples_per_s=None, start_s=START_S)
    least_s = _MIN_PILOT_S + START_S + choose(plan, pilot, 0.0, asked, budget.given).least_s
    if budget.strict and least_s > budget.left_s:
        raise budget.too_short(least_s - budget.left_s)


def measure_pilot(bench: Bench, seconds: float) -> Pilot:
    """Run all stages together for a moment, of ``seconds`` for a whole run, and record nothing."""
    phase = replace(
        repetition_phase(bench.plan, _SEED_STEP, name="pilot"),
        epochs=1,
        max_steps=None,
        limit_s=min(_MAX_PILOT_S, max(_MIN_PILOT_S, _PILOT_SHARE * seconds)),
    )
    began = time.monotonic()
    outcome = bench.run(phase, stored=True)
    return _told(outcome, time.monotonic() - began)


def _told(outcome: Outcome, took_s: float) -> Pilot:
    events = outcome.events()
    if not len(events["samples"]):
        return Pilot(samples_per_s=None, start_s=took_s)
    ends = events["start_ns"] + events["wait_ns"] + events["busy_ns"] + events["late_ns"]
    worked = max(float(ends.max()) / 1e9, 1e-3)
    return Pilot(
        samples_per_s=float(events["samples"].sum()) / worked,
        start_s=max(0.0, took_s - worked),
    )


def choose(
    plan: Plan,
    pilot: Pilot,
    seconds: float,
    asked: Asked,
    given: frozenset[Given] = frozenset(),
    *,
    calibrated: bool = False,
) -> Fitted:
    """Divide ``seconds``: a part for the ceilings, and the rest for repetitions and knock-outs.

    Knock-outs take KNOCK_OUTS times as long as the repetitions, and the trial of advice as long as
    these. What is ``given`` stays as it is. ``calibrated``: each ceiling has been measured once.
    """
    whole = steps_per_repetition(
        plan.workload, samples=plan.manifest.sample_count, accelerators=plan.accelerators
    )
    rate = pilot.samples_per_s or plan.workload.samples_per_s_per_accelerator or 0.0
    steps_per_s = rate / (plan.workload.batch_size * plan.accelerators)
    rounds = _MIN_ROUNDS * max(1, plan.workload.loader.workers)  # steps of the shortest repetition
    fewest = whole if "steps" in given else min(whole, rounds)
    round_s = rounds / steps_per_s if steps_per_s else 0.0

    def needed(window_s: float) -> float:
        if window_s <= 0:
            return 0.0
        takes = later_s if calibrated else calibrating_s
        return takes(
            plan,
            window_s,
            repetitions=plan.repetitions if "repetitions" in given else REPETITIONS,
            least_s=round_s,
            start_s=min(START_S, pilot.start_s),
        )

    calibration_s = asked.calibration_s
    if "calibration" not in given and not calibrated:
        calibration_s = MAX_CALIBRATION_S
        while needed(calibration_s) > CALIBRATION_SHARE * seconds:
            if calibration_s <= MIN_CALIBRATION_S:
                break
            calibration_s = max(MIN_CALIBRATION_S, 0.9 * calibration_s)
    left = max(0.0, seconds - needed(calibration_s))
    others = KNOCK_OUTS * asked.knock_outs + asked.confirms
    fixed_s: float = 0.0
    knock_outs_s: float | None = None
    if "knock_outs" in given:
        knock_outs_s, others = asked.knock_outs_s or 0.0, 0.0
        fixed_s = (asked.knock_outs + asked.confirms) * knock_outs_s
    share = max(0.0, left - fixed_s) / (1 + others)

    least_s = pilot.start_s + (fewest / steps_per_s if steps_per_s else 0.0)
    repetitions = plan.repetitions
    if "repetitions" not in given:
        shortest = whole / steps_per_s if steps_per_s else MIN_REPETITION_S
        if "steps" not in given:
            shortest = min(MIN_REPETITION_S, shortest)
        turn = pilot.start_s + shortest
        repetitions = min(REPETITIONS, max(MIN_REPETITIONS, int(share / turn) if turn else 0))
    workload = plan.workload
    if "steps" not in given:
        steps = max(1, int(steps_per_s * max(0.0, share / repetitions - pilot.start_s)))
        if steps < whole:
            workload = workload.model_copy(update={"max_steps": steps})
    least = repetitions if "repetitions" in given else MIN_REPETITIONS
    return Fitted(
        plan=replace(plan, workload=workload, repetitions=repetitions),
        calibration_s=calibration_s,
        knock_outs_s=KNOCK_OUTS * share if knock_outs_s is None else knock_outs_s,
        least_s=_LEAST_SHARE
        * (
            needed(calibration_s if "calibration" in given else MIN_CALIBRATION_S)
            + least * least_s
            + fixed_s
        ),
    )

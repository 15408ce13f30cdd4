"""A run of the length that is left of a budget: first a short pilot tells how many steps fit."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from ...storage.locks.reading import reading
from ..agent import HostAgent
from ..calibration.bench import Bench
from ..estimate import START_S, calibrating_s
from ..plan import Plan, steps_per_repetition
from ..repetition import repetition_phase
from ..third_party import is_library

REPETITIONS, MIN_REPETITIONS = 6, 3
"""As many as ``iobench run`` has by default, and the fewest that give an interval."""

MIN_REPETITION_S = 2.0
"""Fewer repetitions are made rather than shorter ones."""

CALIBRATION_SHARE = 0.3
MIN_CALIBRATION_S, MAX_CALIBRATION_S = 0.1, 3.0

_PILOT_SHARE, _MIN_PILOT_S, _MAX_PILOT_S = 0.04, 0.4, 3.0
_SEED_STEP = 15_485_863
"""Distance of the pilot's seed from the run's, so that no repetition reads in the same order."""


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """What a short run of all stages together told. ``samples_per_s`` None: no batch was ready."""

    samples_per_s: float | None
    start_s: float  # of a repetition: what it takes besides its steps


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A plan whose run takes about as long as there is time.

    ``calibration_s``: of each ceiling; ``knock_outs_s``: of all knock-outs together.
    """

    plan: Plan
    calibration_s: float
    knock_outs_s: float


def fit(plan: Plan, seconds: float) -> Fitted:
    """Choose steps, repetitions and calibration for a run of about ``seconds``.

    Reads data for a moment. Raises what a run raises.
    """
    began = time.monotonic()
    pilot = Pilot(samples_per_s=None, start_s=START_S)
    if not is_library(plan):  # its preparation belongs to the run
        pilot = measure_pilot(plan, min(_MAX_PILOT_S, max(_MIN_PILOT_S, _PILOT_SHARE * seconds)))
    return choose(plan, pilot, seconds - (time.monotonic() - began))


def measure_pilot(plan: Plan, seconds: float) -> Pilot:
    """Run all stages together for a moment, and record nothing."""
    with (
        tempfile.TemporaryDirectory(prefix="iobench-check-") as folder,
        reading(plan.home, plan.manifest, verb="check"),
    ):
        bench = Bench(
            plan=plan, agent=HostAgent(plan.storage), directory=Path(folder), seconds=seconds
        )
        phase = replace(
            repetition_phase(plan, _SEED_STEP, name="pilot"),
            epochs=1,
            max_steps=None,
            limit_s=seconds,
        )
        began = time.monotonic()
        outcome = bench.run(phase, stored=True)
        took = time.monotonic() - began
    events = outcome.events()
    if not len(events["samples"]):
        return Pilot(samples_per_s=None, start_s=took)
    ends = events["start_ns"] + events["wait_ns"] + events["busy_ns"] + events["late_ns"]
    worked = max(float(ends.max()) / 1e9, 1e-3)
    return Pilot(
        samples_per_s=float(events["samples"].sum()) / worked,
        start_s=max(0.0, took - worked),
    )


def choose(plan: Plan, pilot: Pilot, seconds: float) -> Fitted:
    """Divide ``seconds``: a part for the ceilings, and one half of the rest for the repetitions.

    The knock-outs take the other half.
    """

    def needed(window_s: float) -> float:
        return calibrating_s(plan, window_s, repetitions=REPETITIONS)

    calibration_s = MAX_CALIBRATION_S
    while needed(calibration_s) > CALIBRATION_SHARE * seconds:
        if calibration_s <= MIN_CALIBRATION_S:
            break
        calibration_s = max(MIN_CALIBRATION_S, 0.9 * calibration_s)
    left = max(0.0, seconds - needed(calibration_s)) / 2
    workload = plan.workload
    whole = steps_per_repetition(
        workload, samples=plan.manifest.sample_count, accelerators=plan.accelerators
    )
    rate = pilot.samples_per_s or workload.samples_per_s_per_accelerator or 0.0
    steps_per_s = rate / (workload.batch_size * plan.accelerators)
    shortest = min(MIN_REPETITION_S, whole / steps_per_s) if steps_per_s else MIN_REPETITION_S
    turn = pilot.start_s + shortest
    repetitions = min(REPETITIONS, max(MIN_REPETITIONS, int(left / turn)))
    steps = max(1, int(steps_per_s * max(0.0, left / repetitions - pilot.start_s)))
    if steps < whole:
        workload = workload.model_copy(update={"max_steps": steps})
    return Fitted(
        plan=replace(plan, workload=workload, repetitions=repetitions),
        calibration_s=calibration_s,
        knock_outs_s=left,
    )

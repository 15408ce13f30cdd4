"""Find how many accelerators the storage can feed: real runs with varying ranks, by bisection."""

from __future__ import annotations

from ..analyse.verdict.rebuild import find_max_point
from ..errors import UsageError
from ..load import make_reader
from ..schema.result import FindMax, FindMaxPoint, RunDocument
from .cache import run_cached_phase
from .calibrate import Calibration, joined
from .phase import Phase
from .plan import Plan
from .progress import Progress

MAX_ACCELERATORS = 256
"""Ranks are processes; with more of them, one host would measure itself."""

_UNFINISHED = "it was cut short"
_POINT_S = 10.0
_MIN_STEPS = 8


def find_max(plan: Plan, doc: RunDocument, calibration: Calibration, progress: Progress) -> None:
    """Find the largest number of accelerators at the required utilization, as ``doc.find_max``.

    The search starts at the number that the calibrated fetch rate predicts: an accelerator at
    utilization u takes u times its full demand. It doubles or halves the number until one passes
    and a larger one fails, and then bisects. ``doc.find_max`` is updated after each point. Raises
    UsageError if the accelerator has no step time.
    """
    rate = plan.workload.samples_per_s_per_accelerator
    if rate is None:
        raise UsageError(
            "--find-max needs an accelerator with a step time",
            remedy="use a workload with accelerator.kind: emulated",
        )
    required = plan.workload.required_accelerator_utilization
    doc.find_max = found = FindMax(
        required_accelerator_utilization=required, accelerators=None, points=[], bound=_UNFINISHED
    )
    bound = ""
    # ``low`` passes (0 trivially); ``high`` fails (or can't be tried).
    low, high = 0, min(MAX_ACCELERATORS, plan.manifest.sample_count) + 1
    limit = high
    number = _seed(calibration, rate, required, doc.accelerators)
    while high - low > 1:
        number = min(max(number, low + 1), high - 1)
        try:
            point = _try(plan, number, required, calibration, progress)
        except UsageError as error:
            # The rings of this many ranks do not fit into the host's memory: the limit is the host,
            # not the storage.
            bound = f"{number} accelerators can't be emulated on this host: {error.what}"
            high = limit = number
            number = (low + high) // 2
            continue
        found.points.append(point)
        if point.passed:
            low = found.accelerators = number
            number = min(2 * number, high - 1) if high == limit else (low + high) // 2
        else:
            high = number
            number = max(number // 2, low + 1) if low == 0 else (low + high) // 2
    if high == limit and not bound and low:
        bound = f"the search stops at {limit - 1} accelerators"
    found.bound = bound


def _seed(calibration: Calibration, rate: float, required: float, fallback: int) -> int:
    ceilings = [
        calibration.ceilings[name].samples_per_s
        for name in ("fetch", "prep", "harness")
        if name in calibration.ceilings
    ]
    known = [value for value in ceilings if value]
    return max(1, int(min(known) / (rate * required))) if known else fallback


def _try(
    plan: Plan, number: int, required: float, calibration: Calibration, progress: Progress
) -> FindMaxPoint:
    progress.phase(f"trying {number} accelerator{'s' if number != 1 else ''}")
    workload = plan.workload
    step_time = workload.accelerator.step_time or 1.0
    steps = max(_MIN_STEPS, round(_POINT_S / step_time))
    phase = Phase(
        name=f"find-max.{number}",
        reader=make_reader(plan.manifest, plan.storage, workload.reader),
        reading=workload.reader,
        loading=workload.loader,
        accelerator=workload.accelerator,
        accelerators=number,
        batch_size=workload.batch_size,
        seed=plan.seed + 1000 + number,
        epochs=0 if plan.direct else 1,  # buffered: read each byte once, not from the page cache
        max_steps=steps,
        limit_s=4 * _POINT_S,
    )
    outcome = run_cached_phase(plan, phase, tick=progress.steps)
    calibration.parts += [
        (phase.name, 0, rank, columns) for rank, columns in sorted(outcome.columns.items())
    ]
    startup = outcome.epochs[0].startup_s if outcome.epochs else None
    return find_max_point(
        joined(outcome), accelerators=number, required=required, startup_s=startup
    )

"""Find how many accelerators the storage can feed: real runs with varying ranks, by bisection."""

from __future__ import annotations

from ...analyse.verdict.rebuild import find_max_point
from ...errors import UsageError
from ...load import make_reader
from ...schema.training import FindMax, FindMaxPoint
from ...units import counted
from ..phase import Phase
from ..progress import Progress
from .bench import Bench

MAX_ACCELERATORS = 256
"""Ranks are processes; with more of them, one host would measure itself."""

_UNFINISHED = "the search did not end"
_POINT_S = 10.0
_LIMIT_S = 4 * _POINT_S
_MIN_STEPS = 8


def begin_search(bench: Bench) -> FindMax:
    """The record of a search that has tried nothing yet.

    Raises UsageError if the accelerator has no step time.
    """
    workload = bench.plan.workload
    if workload.samples_per_s_per_accelerator is None:
        raise UsageError(
            "--find-max needs an accelerator with a step time",
            remedy="use a workload with accelerator.kind: emulated",
        )
    return FindMax(
        required_accelerator_utilization=workload.required_accelerator_utilization,
        accelerators=None,
        points=[],
        bound=_UNFINISHED,
    )


def find_max(bench: Bench, found: FindMax, progress: Progress) -> None:
    """Find the largest number of accelerators at the required utilization.

    The search starts at the number that the calibrated fetch rate predicts: an accelerator at
    utilization u takes u times its full demand. It doubles or halves the number until one passes
    and a larger one fails, and then bisects. ``found`` is updated after each point.
    """
    required = found.required_accelerator_utilization
    bound = ""
    # ``low`` passes (0 trivially); ``high`` fails (or can't be tried).
    low, high = 0, min(MAX_ACCELERATORS, bench.plan.manifest.sample_count) + 1
    limit = high
    number = _first_number(bench, required)
    while high - low > 1:
        number = min(max(number, low + 1), high - 1)
        try:
            point = _try(bench, number, required, progress)
        except UsageError as error:
            # The rings of this many ranks do not fit into the host's memory: the limit is the host,
            # not the storage.
            bound = f"this host can't emulate {counted(number, 'accelerator')}: {error.what}"
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
        bound = f"the search stops at {counted(limit - 1, 'accelerator')}"
    found.bound = bound


def _first_number(bench: Bench, required: float) -> int:
    ceilings = [
        bench.ceilings[name].samples_per_s
        for name in ("fetch", "prep", "harness")
        if name in bench.ceilings
    ]
    known = [value for value in ceilings if value]
    rate = bench.plan.workload.samples_per_s_per_accelerator
    if not known or rate is None:
        return bench.plan.accelerators
    return max(1, int(min(known) / (rate * required)))


def _try(bench: Bench, number: int, required: float, progress: Progress) -> FindMaxPoint:
    progress.phase(f"trying {counted(number, 'accelerator')}")
    plan, workload = bench.plan, bench.plan.workload
    step_time = workload.accelerator.step_time or 1.0
    phase = Phase(
        name=f"find-max.{number}",
        reader=make_reader(plan.manifest, plan.storage, workload.reader),
        reading=workload.reader,
        loading=workload.loader,
        accelerator=workload.accelerator,
        accelerators=number,
        batch_size=workload.batch_size,
        seed=plan.seed + 1000 + number,
        epochs=plan.passes,
        max_steps=max(_MIN_STEPS, round(_POINT_S / step_time)),
        limit_s=_LIMIT_S,
    )
    outcome = bench.run(phase, stored=True)
    bench.keep(phase, outcome)
    startup = outcome.epochs[0].startup_s if outcome.epochs else None
    return find_max_point(
        outcome.events(), accelerators=number, required=required, startup_s=startup
    )

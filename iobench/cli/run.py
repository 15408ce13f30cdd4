"""``iobench run``: measure a workload and find the stage that limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..accelerate.bind import use_allocator
from ..base.errors import UsageError
from ..judge.validity import parse
from ..record.checkpoint import CheckpointSpec, Training
from ..runner.budget import Budget, Given
from ..runner.checkpoint_plan import make_study_plan
from ..runner.plan import Plan, make_plan
from ..settings.base import build
from ..settings.workload import Workload, load_workload
from .hosts import (
    accelerators_here,
    check_one_host,
    come_together,
    launched,
    take_part,
)
from .outcome import finish
from .own_loader import loader_overrides, scan_first, tell_headspace
from .requests.measure import RunRequest, TrainRequest

if TYPE_CHECKING:
    from ..runner.checkpoint import Mixed

_CALIBRATION_S = 3.0


def run(request: RunRequest) -> int:
    workload = load_workload(request.workload, [*loader_overrides(request), *request.overrides])
    return measure(workload, scan_first(request), bound_only=request.headspace)


def measure(
    workload: Workload, request: RunRequest | TrainRequest, *, bound_only: bool = False
) -> int:
    """Run the workload as a request for measuring says; return the exit code.

    ``bound_only``: only find how much faster any loader could make it.
    """
    repeat = request.usual_repeat if request.repeat is None else request.repeat
    calibration_s = _CALIBRATION_S if request.calibration_s is None else request.calibration_s
    launch = launched(request)
    if launch is not None and bound_only:
        check_one_host("--headspace", "add --hosts here, or start it on one host")
    if request.confirm and calibration_s == 0:
        raise UsageError(
            "--confirm tries the advice, which comes from the ceilings, but --calibration 0s skips "
            "them",
            remedy="leave --calibration out, or --confirm",
        )

    for expression in request.fail_on:
        parse(expression)  # report a wrong condition before anything runs
    use_allocator(workload.accelerator.allocator, request.command[1:])

    def planned(accelerators: int, here: range | None = None) -> tuple[Plan, Mixed | None]:
        mixed = _mixed(request, accelerators)
        plan = make_plan(
            workload,
            str(request.data),
            origin=request.origin,
            accelerators=accelerators,
            repetitions=repeat,
            seed=request.seed,
            here=here,
        )
        return plan, mixed

    control = None
    if launch is None:
        plan, mixed = planned(accelerators_here(request, 1))
    else:
        from ..runner.hosts.job import same_of

        meeting, (plan, mixed), control = come_together(
            launch,
            request,
            lambda met: planned(met.accelerators, met.here),
            lambda both: same_of(*both),
            accelerators=accelerators_here(request, launch.hosts),
        )
        if control is None:
            return take_part(meeting, plan, mixed, request)
    if bound_only:
        return tell_headspace(plan, request, calibration_s)
    # These import torch, which takes seconds: only once the plan is known to be right.
    from ..runner.confirm import Confirm
    from ..runner.experiment import Options
    from ..runner.experiment import run as run_plan
    from ..runner.hosts.job import run_as_controller
    from .telling import RunTold

    options = Options(
        results=request.results,
        rules=request.rules,
        command=request.command,
        calibration_s=calibration_s,
        find_max=request.find_max,
        confirm=Confirm(budget_s=request.ablations_s) if request.confirm else None,
        ablations=not request.no_ablations,
        ablations_s=request.ablations_s,
        budget=Budget(seconds=request.budget_s, began_s=request.began_s, given=_given(request)),
        began_s=request.began_s,
        mixed=mixed,
        break_lock=request.break_lock,
    )
    live = RunTold(plan, options, quiet=request.quiet)
    if not options.budget.limited:
        live.announce()
    try:
        if control is None:
            doc, directory = run_plan(plan, options, live)
        else:
            doc, directory = run_as_controller(control, plan, options, live)
    finally:
        live.close()

    return finish(
        doc, directory, kind=request.format, fail_on=request.fail_on, details=request.details
    )


def _given(request: RunRequest | TrainRequest) -> frozenset[Given]:
    """What ``--budget`` leaves as it is, because it was given."""
    steps = {text.partition("=")[0].strip() for text in request.overrides} & {"max_steps", "epochs"}
    asked: dict[Given, bool] = {
        "repetitions": request.repeat is not None,
        "calibration": request.calibration_s is not None,
        "ablations": request.ablations_s is not None,
        "steps": bool(steps) or getattr(request, "time_s", None) is not None,
    }
    return frozenset(name for name, is_given in asked.items() if is_given)


def _mixed(request: RunRequest | TrainRequest, ranks: int) -> Mixed | None:
    """Return the checkpoints to save while loading, or None if none are requested."""
    if request.checkpoint is None or request.checkpoint_to is None:
        return None
    from ..runner.checkpoint import Mixed

    asked = {
        "model": request.checkpoint,
        "writer": request.checkpoint_writer,
        "scale": request.checkpoint_scale,
        "ranks": ranks,
        "restores": 0,
    }
    spec = build(CheckpointSpec, asked, where="--checkpoint")
    return Mixed(
        plan=make_study_plan(spec, request.checkpoint_to, Training()),
        every=request.checkpoint_every,
    )

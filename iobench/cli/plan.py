"""``iobench plan``: what a run would do, without doing it."""

from __future__ import annotations

from pathlib import Path

from ..base.errors import UnknownNameError, UsageError, nearest
from ..checkpoint.models import MODELS
from ..report.plan import sections
from ..runner.plan import describe_plan, make_plan
from ..runner.probe import probe
from ..settings.base import known_specs
from ..settings.workload import load_workload
from .checkpoint_plan import show_plan
from .printing import print_report
from .requests.flags import CHECKPOINT, fields_of
from .requests.start import OF_A_RUN, PlanRequest


def run(request: PlanRequest) -> int:
    of_checkpoint = request.first_of(fields_of(PlanRequest, CHECKPOINT))
    if request.workload in MODELS:
        if other := request.first_of(fields_of(PlanRequest, OF_A_RUN)):
            raise UsageError(
                f"{other} is of a run, and {request.workload} is a model, whose checkpoint is "
                "planned",
                remedy=f"leave {other} out, or name a workload",
            )
        return show_plan(request, request.workload)
    known = known_specs("workload")
    if request.workload not in known and not Path(request.workload).exists():
        near_a_model = nearest(request.workload, MODELS) and not nearest(request.workload, known)
        if of_checkpoint or near_a_model:
            raise UnknownNameError("model", request.workload, MODELS)
    if of_checkpoint:
        raise UsageError(
            f"{of_checkpoint} is of a checkpoint, and {request.workload} is a workload",
            remedy=f"leave {of_checkpoint} out, or name a model (iobench list models)",
        )
    workload = load_workload(request.workload, request.overrides)
    accelerators = 1 if request.accelerators is None else request.accelerators
    plan = describe_plan(
        workload,
        request.data,
        origin=request.origin,
        accelerators=accelerators,
        repetitions=request.repeat,
    )
    if request.probe:
        if not plan.generated or request.data is None:
            raise UsageError(
                "--probe needs an existing dataset",
                remedy="name one with --data, or generate it first",
            )
        plan.probe = probe(
            make_plan(
                workload,
                request.data,
                origin=request.origin,
                accelerators=accelerators,
                repetitions=1,
                seed=0,
            )
        )
    print_report(request.format, plan, sections(plan))
    return 0

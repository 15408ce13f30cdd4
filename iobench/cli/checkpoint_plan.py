"""``iobench plan MODEL``: the size and cost of a checkpoint before anything is written."""

from __future__ import annotations

from ..base.errors import UsageError
from ..record.checkpoint import CheckpointSpec, Training
from ..report.plan import checkpoint_sections
from ..runner.checkpoint_plan import STALL_BUDGETS, describe_checkpoint
from ..settings.base import build
from .checkpoint import asked_hosts
from .printing import print_report
from .requests.start import PlanRequest


def show_plan(request: PlanRequest, model: str) -> int:
    """Print the plan of ``model``'s checkpoint. Raises UsageError, UnknownNameError."""
    asked = {"model": model, "scale": request.scale, "ranks": request.ranks}
    spec = build(
        CheckpointSpec,
        {key: value for key, value in asked.items() if value is not None},
        where="the plan of a checkpoint",
    )
    if request.accelerators is not None and request.accelerators < 1:
        raise UsageError(f"--accelerators must be at least 1, but is {request.accelerators}")
    training = {
        "accelerators": request.accelerators,
        "mtbf_s": request.mtbf_s,
        "interval_s": request.interval_s,
        **asked_hosts(request),
    }
    plan = describe_checkpoint(
        spec,
        request.to,
        ranks=request.ranks,
        training=build(Training, training, where="the plan of a checkpoint"),
        budgets=request.stall_budget or STALL_BUDGETS,
    )
    print_report(request.format, plan, checkpoint_sections(plan))
    return 0

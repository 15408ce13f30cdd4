"""``iobench plan``: what a run would do, without doing it."""

from __future__ import annotations

from pathlib import Path

from ..base.errors import UnknownNameError, UsageError, nearest
from ..base.memory import total_bytes
from ..checkpoint.models import MODELS
from ..data.dataset import load_dataset_spec
from ..record.checkpoint import CheckpointSpec, Training
from ..report.export_mlpstorage import Clients, checkpoint_lines, training_lines
from ..report.plan import checkpoint_sections, sections
from ..runner.checkpoint_plan import STALL_BUDGETS, describe_checkpoint
from ..runner.plan import make_plan
from ..runner.plan_figures import describe_plan, probe
from ..settings.base import build, known_specs
from ..settings.workload import load_workload
from .flags import CHECKPOINT, fields_of
from .printing import print_report
from .terminal import show_data
from .verbs import OF_A_RUN, PlanRequest


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
        None if request.print_tool else request.data,
        origin=request.origin,
        accelerators=accelerators,
        repetitions=request.repeat,
    )
    if request.print_tool:
        show_data(
            training_lines(
                plan,
                workload,
                load_dataset_spec(workload.dataset),
                clients=clients(request),
                data=request.data,
                overrides=request.overrides,
            )
        )
        return 0
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
    print_report(request, plan, sections(plan))
    return 0


def show_plan(request: PlanRequest, model: str) -> int:
    """Print the plan of ``model``'s checkpoint. Raises UsageError, UnknownNameError."""
    where = "the plan of a checkpoint"
    asked = {
        key: value for key, value in request.given(CheckpointSpec).items() if value is not None
    }
    plan = describe_checkpoint(
        build(CheckpointSpec, asked | {"model": model}, where=where),
        request.to,
        ranks=request.ranks,
        training=build(Training, request.given(Training), where=where),
        budgets=request.stall_budgets or STALL_BUDGETS,
    )
    if request.print_tool:
        show_data(checkpoint_lines(plan, clients=clients(request)))
    else:
        print_report(request, plan, checkpoint_sections(plan))
    return 0


def clients(request: PlanRequest) -> Clients:
    """The hosts of a submission. Raises UsageError if their memory is not known."""
    memory = request.host_memory or total_bytes()
    if memory is None:
        raise UsageError(
            "the memory of this host is not known", remedy="name that of each host: --host-memory"
        )
    return Clients(hosts=request.hosts, memory_bytes=memory)

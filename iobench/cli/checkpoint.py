"""``iobench checkpoint``: what it costs a training to save and restore a model's state."""

from __future__ import annotations

from functools import partial

from ..checkpoint import asynchronous_version
from ..record.checkpoint import CheckpointSpec, Training
from ..runner.checkpoint import run_study
from ..runner.checkpoint_plan import StudyPlan, make_study_plan
from ..runner.hosts.job import same_of_study
from ..runner.hosts.serving import Served
from ..runner.options import StudyOptions
from ..settings.base import apply_overrides, build
from .hosts import HostPart, hosts_of, on_all_hosts, ranks_here
from .live import measured
from .verbs import CheckpointRequest


def run(request: CheckpointRequest) -> int:
    def planned(part: HostPart) -> StudyPlan:
        asked = request.given(CheckpointSpec) | {"ranks": part.ranks, "count": request.repeat}
        if request.asynchronous:
            asked["writer"] = asynchronous_version(request.writer)
        spec = build(CheckpointSpec, apply_overrides(asked, request.overrides), where="checkpoint")
        return make_study_plan(spec, request.to, asked_training(request), part.own)

    options = request.made(StudyOptions)
    return on_all_hosts(
        request,
        planned,
        same_of_study,
        lead=lambda control, plan: measured(
            request,
            lambda live: run_study(plan, options, observer=live, hosts=hosts_of(control)),
            fail_on=request.fail_on,
        ),
        serve=lambda plan: Served(results=request.results, saves=plan),
        accelerators=partial(ranks_here, request.ranks, request.ranks_per_host, "ranks"),
    )


def asked_training(request: CheckpointRequest) -> Training:
    """Return the training that the flags describe, in base units. Raises UsageError."""
    price = request.accelerator_price_per_hour
    asked = request.given(Training) | {"usd_per_accelerator_hour": price}
    return build(Training, asked, where="checkpoint")

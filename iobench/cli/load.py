"""``iobench load``: how long until replicas have a model's weights, and what limits that."""

from __future__ import annotations

from ..runner.hosts.job import same_of_loads
from ..runner.hosts.serving import Served
from ..runner.model_load import run_loads
from ..runner.model_load_plan import make_load_plan
from ..runner.options import LoadOptions
from ..runner.tasks.model_load import LoadParts
from ..settings.any_workload import LoadSpec
from .hosts import hosts_of, on_all_hosts
from .live import measured
from .verbs import LoadRequest


def run(request: LoadRequest) -> int:
    spec = request.made(
        LoadSpec,
        loaders=list(dict.fromkeys(request.loader)),
        replicas=sorted(set(request.replicas)),
        repetitions=request.repeat,
    )
    return on_all_hosts(
        request,
        lambda part: make_load_plan(request.url, spec),
        same_of_loads,
        lead=lambda control, plan: measured(
            request,
            lambda live: run_loads(plan, request.made(LoadOptions), live, hosts_of(control)),
            fail_on=request.fail_on,
        ),
        serve=lambda plan: Served(results=request.results, loads=LoadParts(plan)),
    )

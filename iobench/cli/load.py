"""``iobench load``: how long until replicas have a model's weights, and what limits that."""

from __future__ import annotations

from ..runner.hosts.control import Control
from ..runner.hosts.job import same_of_loads
from ..runner.hosts.meeting import Meeting
from ..runner.hosts.member import Member
from ..runner.model_load import run_loads
from ..runner.model_load_plan import LoadPlan, make_load_plan
from ..runner.options import LoadOptions
from ..runner.tasks.model_load import LoadParts
from ..settings.model_load import LoadSpec
from .hosts import HostPart, hosts_of, on_all_hosts
from .live import Live
from .printing import finish
from .verbs import LoadRequest


def run(request: LoadRequest) -> int:
    def planned(part: HostPart) -> LoadPlan:
        spec = request.made(
            LoadSpec,
            loaders=list(dict.fromkeys(request.loader)),
            replicas=sorted(set(request.replicas)),
            repetitions=request.repeat,
        )
        return make_load_plan(request.url, spec)

    def lead(control: Control | None, plan: LoadPlan) -> int:
        options = request.made(LoadOptions)
        with Live(quiet=request.quiet) as live:
            doc, directory = run_loads(plan, options, live, hosts_of(control))
        return finish(request, doc, directory, fail_on=request.fail_on)

    def join(meeting: Meeting, plan: LoadPlan) -> Member:
        return Member(meeting, request.results, loads=LoadParts(plan))

    return on_all_hosts(request, planned, same_of_loads, lead=lead, join=join)

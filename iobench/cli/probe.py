"""``iobench probe``: what a storage delivers with 1, 2, 4, ... reads in flight."""

from __future__ import annotations

from contextlib import ExitStack

from ..base.errors import InterruptedRun
from ..report.curve import sections
from ..runner.curve.story import DEFAULT_REQUEST, parse_requests, plan_probe, run_probe
from ..runner.curve.target import Target, open_target
from ..runner.hosts.control import Control
from ..runner.hosts.serving import Served
from .hosts import hosts_of, on_all_hosts
from .live import Live
from .printing import print_report
from .terminal import note
from .verbs import ProbeRequest


def run(request: ProbeRequest) -> int:
    requests = parse_requests(request.request) if request.request is not None else []
    least = min(requests, default=DEFAULT_REQUEST)
    with ExitStack() as held:

        def lead(control: Control | None, target: Target) -> int:
            hosts = hosts_of(control)
            plan = plan_probe(
                target,
                requests,
                max_in_flight=request.max_in_flight,
                budget=request.budget,
                hosts=hosts.count,
                metadata=request.metadata,
            )
            note(plan.announcement(), quiet=request.quiet)
            with Live(quiet=request.quiet) as live:
                live.expect(min(plan.usual_s, plan.measuring_s))
                probe = run_probe(plan, command=list(request.command), observer=live, hosts=hosts)
            print_report(request, probe, sections(probe))
            if probe.status == "interrupted":
                raise InterruptedRun("interrupted; what was measured until then is in the report")
            return 0

        return on_all_hosts(
            request,
            lambda part: held.enter_context(
                open_target(request.url, origin=request.origin, least_bytes=least, hold=part.leads)
            ),
            lambda target: {"data": target.storage.url, "objects": target.fingerprint()},
            lead=lead,
            serve=lambda target: Served(storage=target.storage),
        )

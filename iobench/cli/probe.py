"""``iobench probe``: what a storage delivers with 1, 2, 4, ... reads in flight."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ..report.curve import sections
from ..runner.curve.story import (
    DEFAULT_REQUEST,
    parse_requests,
    plan_probe,
    run_probe,
)
from ..runner.curve.target import Target, open_target
from ..runner.hosts.control import Control
from ..runner.hosts.hosts import Hosts
from ..runner.hosts.job import JobHosts
from ..runner.hosts.launch import Launch
from ..runner.hosts.meeting import Meeting
from ..runner.hosts.member import Member
from ..runner.hosts.serving import Serving
from .hosts import launched, on_all_hosts
from .live import Live
from .printing import print_report
from .terminal import note
from .verbs import ProbeRequest


def run(request: ProbeRequest) -> int:
    requests = parse_requests(request.request) if request.request is not None else []
    least = min(requests, default=DEFAULT_REQUEST)
    launch = launched(request)
    holds = launch is None or launch.index == 0
    with ExitStack() as held:

        def prepared() -> Target:
            return held.enter_context(
                open_target(request.url, origin=request.origin, least_bytes=least, hold=holds)
            )

        def measure(target: Target, hosts: Hosts | None = None) -> int:
            plan = plan_probe(
                target,
                requests,
                max_in_flight=request.max_in_flight,
                budget_s=request.budget_s,
                hosts=hosts.count if hosts else 1,
            )
            note(plan.announcement(), quiet=request.quiet)
            with Live(quiet=request.quiet) as live:
                live.expect(min(plan.usual_s, plan.budget_s))
                probe = run_probe(plan, command=list(request.command), observer=live, hosts=hosts)
            print_report(request, probe, sections(probe))
            return 0

        if launch is None:
            return measure(prepared())
        return _on_all_hosts(launch, request, prepared, measure, held)


def _on_all_hosts(
    launch: Launch,
    request: ProbeRequest,
    prepared: Callable[[], Target],
    measure: Callable[[Target, Hosts], int],
    held: ExitStack,
) -> int:
    """All hosts read at the same time, as the first one says."""

    def same(target: Target) -> dict[str, str]:
        return {"data": target.storage.url, "objects": target.fingerprint()}

    def lead(control: Control, target: Target) -> int:
        return measure(target, JobHosts(control))

    def join(meeting: Meeting, target: Target) -> Serving:
        return Member(meeting, Path(), storage=target.storage)

    return on_all_hosts(launch, request, lambda _: prepared(), same, lead=lead, join=join)

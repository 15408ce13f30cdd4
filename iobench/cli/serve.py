"""``iobench serve``: requests that arrive by themselves, and how long they take."""

from __future__ import annotations

import json

from ..runner.options import VerbOptions
from ..runner.serving import make_serving_plan, run_serving
from ..settings.scenario import load_scenario
from .live import Live
from .printing import finish
from .verbs import ServeRequest


def run(request: ServeRequest) -> int:
    overrides = [*request.overrides]
    if request.limit_s is not None:
        overrides.append(f"limit={request.limit_s}")
    if request.trace is not None:
        overrides += ["arrivals.kind=trace", f"arrivals.path={json.dumps(request.trace)}"]
        overrides += [f"arrivals.format={request.trace_format}"]
    plan = make_serving_plan(
        load_scenario(request.scenario, overrides),
        request.data,
        rate=request.rate,
        find_max=request.find_max,
        seconds=request.duration_s,
        repetitions=request.repeat,
        seed=request.seed,
        origin=request.origin,
        log=request.log,
    )
    with Live(quiet=request.quiet) as live:
        doc, directory = run_serving(plan, request.made(VerbOptions), observer=live)
    return finish(request, doc, directory, fail_on=request.fail_on)

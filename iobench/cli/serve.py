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
    for key, value in (("arrivals.rate", request.rate), ("duration", request.duration_s)):
        overrides += [] if value is None else [f"{key}={value}"]
    if request.log is not None:
        overrides.append(f"log.to={json.dumps(request.log)}")
    if request.limit_s is not None:
        overrides.append(f"limit={request.limit_s}")
    if request.trace is not None:
        overrides += ["arrivals.kind=trace", f"arrivals.path={json.dumps(request.trace)}"]
        overrides += [f"arrivals.format={request.trace_format}"]
    plan = make_serving_plan(
        load_scenario(request.scenario, overrides),
        request.data,
        find_max=request.find_max,
        repetitions=request.repeat,
        seed=request.seed,
        origin=request.origin,
    )
    with Live(quiet=request.quiet) as live:
        doc, directory = run_serving(plan, request.made(VerbOptions), observer=live)
    return finish(request, doc, directory, fail_on=request.fail_on)

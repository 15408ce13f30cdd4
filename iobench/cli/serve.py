"""``iobench serve``: requests that arrive by themselves, and how long they take."""

from __future__ import annotations

import json

from ..runner.options import VerbOptions
from ..runner.serving import make_serving_plan, run_serving
from ..settings.scenario import load_scenario
from .live import measured
from .verbs import KvRequest, ServeRequest


def overrides_of(request: ServeRequest | KvRequest) -> list[str]:
    """The keys of a scenario that were asked for, by --set and by flags of their own."""
    found = [*request.overrides]
    if request.trace is not None:
        arrivals = {"kind": "trace", "path": request.trace, "format": request.trace_format}
        found.insert(0, f"arrivals={json.dumps(arrivals)}")
    asked = {
        "arrivals.rate": request.rate,
        "duration": request.duration_s,
        "limit": request.limit_s,
    }
    return found + [f"{key}={value}" for key, value in asked.items() if value is not None]


def run(request: ServeRequest) -> int:
    overrides = overrides_of(request)
    if request.log is not None:
        overrides.append(f"log.to={json.dumps(request.log)}")
    options = request.made(VerbOptions)
    plan = make_serving_plan(
        load_scenario(request.scenario, overrides),
        request.data,
        find_max=request.find_max,
        repetitions=request.repeat,
        seed=request.seed,
        origin=request.origin,
        budget=options.budget,
    )
    return measured(
        request, lambda live: run_serving(plan, options, observer=live), fail_on=request.fail_on
    )

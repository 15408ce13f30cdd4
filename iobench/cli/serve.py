"""``iobench serve``: requests that arrive by themselves, and how long they take."""

from __future__ import annotations

import json

from ..judge.validity import parse
from ..runner.budget import Budget
from ..runner.options import VerbOptions
from ..runner.serving import make_serving_plan, run_serving
from ..settings.scenario import load_scenario
from .live import Live
from .printing import finish
from .verbs import ServeRequest


def run(request: ServeRequest) -> int:
    for expression in request.fail_on:
        parse(expression)  # report a wrong condition before anything runs
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
    options = VerbOptions(
        results=request.results,
        rules=request.rules,
        command=request.command,
        budget=Budget(seconds=request.budget_s, began_s=request.began_s),
        break_lock=request.break_lock,
    )
    live = Live(quiet=request.quiet or request.json, lines=True)
    try:
        doc, directory = run_serving(plan, options, observer=live)
    finally:
        live.close()
    return finish(
        doc, directory, kind=request.format, fail_on=request.fail_on, details=request.details
    )

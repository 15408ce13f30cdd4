"""``iobench kv``: whether it is worth it to keep a KV cache on a storage."""

from __future__ import annotations

import json

from ..runner.kv_cache import make_kv_plan, run_kv
from ..runner.options import VerbOptions
from ..settings.kv_cache import load_kv_scenario
from .live import Live
from .printing import finish
from .verbs import KvRequest


def run(request: KvRequest) -> int:
    overrides = [*request.overrides]
    if request.limit_s is not None:
        overrides.append(f"limit={request.limit_s}")
    if request.trace is not None:
        arrivals = {"kind": "trace", "path": request.trace, "format": request.trace_format}
        overrides.append(f"arrivals={json.dumps(arrivals)}")
    plan = make_kv_plan(
        load_kv_scenario(request.scenario, overrides),
        request.to,
        rate=request.rate,
        find_max=request.find_max,
        seconds=request.duration_s,
        repetitions=request.repeat,
        seed=request.seed,
        price_per_hour=request.accelerator_price_per_hour,
    )
    with Live(quiet=request.quiet) as live:
        doc, directory = run_kv(plan, request.made(VerbOptions), observer=live)
    return finish(request, doc, directory, fail_on=request.fail_on)

"""``iobench kv``: whether it is worth it to keep a KV cache on a storage."""

from __future__ import annotations

from ..runner.kv_cache import make_kv_plan, run_kv
from ..runner.options import VerbOptions
from ..settings.kv_cache import load_kv_scenario
from .live import measured
from .serve import overrides_of
from .verbs import KvRequest


def run(request: KvRequest) -> int:
    options = request.made(VerbOptions)
    plan = make_kv_plan(
        load_kv_scenario(request.scenario, overrides_of(request)),
        request.to,
        find_max=request.find_max,
        repetitions=request.repeat,
        seed=request.seed,
        price_per_hour=request.accelerator_price_per_hour,
        budget=options.budget,
    )
    return measured(
        request, lambda live: run_kv(plan, options, observer=live), fail_on=request.fail_on
    )

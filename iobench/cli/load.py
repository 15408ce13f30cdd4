"""``iobench load``: how long until replicas have a model's weights, and what limits that."""

from __future__ import annotations

from ..base.errors import UsageError
from ..judge.validity import parse
from ..record.model_load import LoadSpec
from ..runner.budget import Budget
from ..runner.model_load import run_loads
from ..runner.model_load_plan import make_load_plan
from ..runner.options import LoadOptions
from .live import Live
from .printing import finish
from .verbs import LoadRequest


def run(request: LoadRequest) -> int:
    for expression in request.fail_on:
        parse(expression)  # report a wrong condition before anything runs
    if not request.replicas or min(request.replicas) < 1:
        raise UsageError(
            "--replicas needs numbers of at least 1", remedy="write it like --replicas 1,2,4"
        )
    spec = LoadSpec(
        loaders=list(dict.fromkeys(request.loader)),
        replicas=sorted(set(request.replicas)),
        tensor_parallel=request.tensor_parallel,
        share=request.share,
        state=request.state,
        repetitions=request.repeat,
        device=request.device,
        engine_start_s=request.engine_start_s,
        block_size=request.block_size,
        concurrency=request.concurrency,
    )
    plan = make_load_plan(request.url, spec)
    options = LoadOptions(
        results=request.results,
        rules=request.rules,
        command=request.command,
        budget=Budget(seconds=request.budget_s, began_s=request.began_s),
        copy_to=request.copy_to,
    )
    live = Live(quiet=request.quiet or request.json, lines=True)
    try:
        doc, directory = run_loads(plan, options, live)
    finally:
        live.close()
    return finish(
        doc, directory, kind=request.format, fail_on=request.fail_on, details=request.details
    )

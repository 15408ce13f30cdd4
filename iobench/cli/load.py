"""``iobench load``: how long until replicas have a model's weights, and what limits that."""

from __future__ import annotations

from ..runner.model_load import run_loads
from ..runner.model_load_plan import make_load_plan
from ..runner.options import LoadOptions
from ..settings.model_load import LoadSpec
from .live import Live
from .printing import finish
from .verbs import LoadRequest


def run(request: LoadRequest) -> int:
    spec = request.made(
        LoadSpec,
        loaders=list(dict.fromkeys(request.loader)),
        replicas=sorted(set(request.replicas)),
        repetitions=request.repeat,
    )
    plan = make_load_plan(request.url, spec)
    with Live(quiet=request.quiet) as live:
        doc, directory = run_loads(plan, request.made(LoadOptions), live)
    return finish(request, doc, directory, fail_on=request.fail_on)

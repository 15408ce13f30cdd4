"""``iobench check``: the first answer about a storage, within a given time."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from ..base.errors import UsageError
from ..base.units import counted, format_bytes, format_duration, format_share
from ..runner.budget import Budget
from ..runner.checking import (
    GENERATE_SHARE,
    MIN_BUDGET_S,
    SPACE_SHARE,
    CheckPlace,
    find_place,
    left_behind,
    provided,
)
from ..runner.plan import check_asked, make_plan
from .hosts import trials
from .live import Live
from .printing import finish
from .terminal import say
from .verbs import CheckRequest

if TYPE_CHECKING:
    from ..runner.hosts.hosts import Hosts


def run(request: CheckRequest) -> int:
    if request.budget_s < MIN_BUDGET_S:
        raise UsageError(
            f"--budget {request.budget_s:g}s is too short",
            remedy=f"give at least {MIN_BUDGET_S:g}s",
        )
    return trials(
        request,
        lambda hosts: _check(
            replace(request, accelerators=max(request.accelerators, hosts.count)), hosts
        ),
        workloads=[request.workload],
        overrides=request.overrides,
        places=[request.url],
    )


def _check(request: CheckRequest, hosts: Hosts) -> int:
    began = time.monotonic()
    size_bytes = request.size
    place = find_place(request.url, request.workload, list(request.overrides))
    check_asked(place.workload, accelerators=request.accelerators, repetitions=1)
    told = Live(quiet=request.quiet)
    generating_s = GENERATE_SHARE * request.budget_s
    told.note(_announcement(request, place, generating_s))
    for folder, nbytes in left_behind(place):
        what = f"a check that was killed has left {format_bytes(nbytes)}"
        told.note(f"{what}: iobench clean {quote(folder)}")
    try:
        with provided(
            place,
            accelerators=request.accelerators,
            seconds=generating_s,
            keep=request.keep_data,
            observer=told,
            size_bytes=size_bytes,
            look=hosts.check,
        ) as data:
            ends_s = began + request.budget_s - data.removal_s
            code = _measure(request, place, data.url, ends_s, told, hosts)
            if request.keep_data and not place.found and request.format == "text":
                say(f"data:    {data.url}")
    finally:
        told.close()
    return code


def _announcement(request: CheckRequest, place: CheckPlace, generating_s: float) -> str:
    what = f"{place.workload.name} with {counted(request.accelerators, 'accelerator')}"
    budget = format_duration(request.budget_s)
    if place.found:
        return f"check of the dataset at {place.url} by {what}: {budget} to measure"
    rest = format_duration(request.budget_s - generating_s)
    end = "" if request.keep_data else " and to remove the data"
    size = f"at most {format_share(SPACE_SHARE)} of the free space"
    if request.size is not None:
        size = format_bytes(request.size)
    return (
        f"check of {place.url} by {what} within {budget}: at most {format_duration(generating_s)} "
        f"to generate data ({size}), the other {rest} to measure{end}"
    )


def _measure(
    request: CheckRequest, place: CheckPlace, url: str, ends_s: float, told: Live, hosts: Hosts
) -> int:
    """Run the workload on the dataset at ``url`` until about ``ends_s``, and print the report."""
    from ..runner.experiment import run as run_plan
    from ..runner.options import Options
    from .telling import RunTold

    plan = make_plan(
        place.workload, url, accelerators=request.accelerators, repetitions=1, seed=_SEED
    )
    told.note("a pilot of a few seconds tells how many steps fit into the time")
    told.close()
    options = request.made(
        Options,
        began_s=None,
        budget=Budget(seconds=request.budget_s, began_s=ends_s - request.budget_s, strict=False),
    )
    with ExitStack() as held:
        live = held.enter_context(RunTold(plan, options, quiet=request.quiet))
        doc, directory = run_plan(plan, options, live, hosts.of(plan, held))
    return finish(request, doc, directory)


_SEED = 42

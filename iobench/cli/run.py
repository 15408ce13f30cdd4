"""``iobench run``: measure a workload and find the stage that limits it."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from ..accelerate.bind import use_allocator
from ..base.errors import UsageError
from ..base.units import counted, format_count
from ..data.scan.saving import save
from ..data.scan.scanner import scan
from ..record.checkpoint import CheckpointSpec, Training
from ..record.manifest import MANIFEST, MARKER
from ..runner.budget import Budget
from ..runner.checkpoint_plan import make_study_plan
from ..runner.hosts.serving import Permitted, Same, Served
from ..runner.options import Confirm, Mixed, Options
from ..runner.plan import Plan, make_plan
from ..settings.base import build
from ..settings.workload import Workload, load_workload
from ..storage import is_local, open_storage
from .hosts import hosts_of, launched, on_all_hosts, ranks_here
from .live import Live, progress_bar
from .printing import finish
from .terminal import note, show_lines
from .verbs import MeasuringQuestion, MeasuringRequest, RunQuestion, RunRequest, TrainRequest

if TYPE_CHECKING:
    from ..runner.hosts.hosts import Hosts

Planned = tuple[Plan, Mixed | None]
RunOrTrain = RunQuestion | TrainRequest

_CALIBRATION_S = 3.0


def run(request: RunRequest) -> int:
    workload = load_workload(request.workload, [*flag_overrides(request), *request.overrides])
    return measure(workload, scan_first(request), bound_only=request.headspace)


def measure(
    workload: Workload, request: RunRequest | TrainRequest, *, bound_only: bool = False
) -> int:
    """Run the workload as a request for measuring says; return the exit code.

    ``bound_only``: only find how much faster any loader could make it.
    """
    use_allocator(workload.accelerator.allocator, request.command[1:])

    def same(planned: Planned) -> Same:
        from ..runner.hosts.job import same_of_run

        return same_of_run(*planned)

    def serve(planned: Planned) -> Served:
        plan, mixed = planned
        return Served(
            results=request.results,
            permitted=Permitted.of(plan),
            plan=plan,
            saves=mixed.plan if mixed is not None else None,
            command=request.command,
            rules=request.rules,
        )

    lead = tell_headspace if bound_only else _measured
    return on_all_hosts(
        request,
        lambda part: planned(workload, request, part.ranks, part.own),
        same,
        lead=lambda control, planned: lead(request, planned, hosts_of(control)),
        serve=serve,
        accelerators=partial(
            ranks_here, request.accelerators, request.accelerators_per_host, "accelerators"
        ),
    )


def calibration_of(request: MeasuringQuestion) -> float:
    """Seconds for each ceiling. Raises UsageError where advice is to be tried without any."""
    if request.confirm and request.calibration_s == 0:
        raise UsageError(
            "--confirm tries the advice, which comes from the ceilings, but --calibration 0s skips "
            "them",
            remedy="leave --calibration out, or --confirm",
        )
    return _CALIBRATION_S if request.calibration_s is None else request.calibration_s


def planned(
    workload: Workload, request: RunOrTrain, accelerators: int, here: range | None = None
) -> Planned:
    """The plan of the run, and of what it saves meanwhile. Raises UsageError."""
    calibration_of(request)
    mixed = _mixed(request, accelerators)
    plan = make_plan(
        workload,
        str(request.data),
        origin=request.origin,
        accelerators=accelerators,
        repetitions=request.usual_repeat if request.repeat is None else request.repeat,
        seed=request.seed,
        here=here,
    )
    return plan, mixed


def options_of(request: RunOrTrain, mixed: Mixed | None, *, whole: bool = False) -> Options:
    """The options of the run. ``whole``: no part of it is left out for want of time."""
    whole = whole or request.find_max or request.confirm or mixed is not None
    return request.made(
        Options,
        calibration_s=calibration_of(request),
        confirm=Confirm(budget_s=request.ablations_s) if request.confirm else None,
        ablations=not request.no_ablations,
        budget=Budget.of_run(
            request.budget_s,
            given=request.fixed,
            whole=whole or request.rules == "mlperf",
            began_s=request.began_s,
        ),
        mixed=mixed,
    )


def _measured(request: RunRequest | TrainRequest, planned: Planned, hosts: Hosts) -> int:
    """Run the plan on this host, or on those of a job, and print the report."""
    plan, mixed = planned
    # These import torch, which takes seconds: only once the plan is known to be right.
    from ..runner.experiment import run as run_plan
    from .telling import RunTold

    train = isinstance(request, TrainRequest)
    options = options_of(request, mixed, whole=train or hosts.count > 1)
    with RunTold(plan, options, quiet=request.quiet, hosts=hosts.count) as live:
        if not options.budget.limited:
            live.announce()
        doc, directory = run_plan(plan, options, live, hosts)
    return finish(request, doc, directory, fail_on=request.fail_on)


def _mixed(request: RunOrTrain, ranks: int) -> Mixed | None:
    """Return the checkpoints to save while loading, or None if none are requested."""
    if request.checkpoint is None or request.checkpoint_to is None:
        return None
    asked = {
        "model": request.checkpoint,
        "writer": request.checkpoint_writer,
        "scale": request.checkpoint_scale,
        "changed": request.checkpoint_changed,
        "ranks": ranks,
        "restores": 0,
    }
    spec = build(CheckpointSpec, asked, where="--checkpoint")
    return Mixed(
        plan=make_study_plan(spec, request.checkpoint_to, Training()),
        every=request.checkpoint_every,
    )


MIN_TRIAL_S = 1.0


def flag_overrides(request: RunQuestion) -> list[str]:
    """The overrides for the workload that flags stand for. Raises UsageError."""
    log = [] if request.log is None else [f"log.to={json.dumps(str(request.log))}"]
    if request.cache_dir is not None:
        asked = {"directory": request.cache_dir, "size": request.cache_size}
        return [*log, *(f"local_cache.{key}={json.dumps(value)}" for key, value in asked.items())]
    if request.loader is None:
        return log
    found = [*log, "loader.kind=user", f"loader.factory={json.dumps(request.loader)}"]
    for each in request.loader_args:
        key, equals, value = each.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(
                f"--loader-args {each[:80]} is not of the form KEY=VALUE",
                remedy="write it like --loader-args num_workers=4",
            )
        found.append(f"loader.args.{key}={value}")
    sizes = [each.partition("=")[2] for each in request.overrides if each.startswith("batch_size=")]
    if sizes:
        found.append(f"loader.samples_per_batch={sizes[-1]}")
    return found


def scan_first(request: RunRequest) -> RunRequest:
    """Scan a directory that is no dataset of iobench, so that ``--loader`` can read it as it is.

    The manifest is saved below the directory for results, and the request that is returned names
    it and the data. Hosts that work together need a manifest that all of them see, so there nothing
    is scanned. Raises what ``iobench scan`` raises.
    """
    data = str(request.data)
    if request.loader is None or request.origin is not None or not is_local(data):
        return request
    place = Path(data)
    known = any((place / name).exists() for name in (MANIFEST, MARKER))
    if known or not place.is_dir() or request.hosts is not None or launched(request) is not None:
        return request

    from ..runner.results import fresh_name
    from ..subject.factory import locate

    locate(request.loader)  # before a scan, which may take long
    with progress_bar("scanning", quiet=request.quiet) as tell:
        report = scan(open_storage(data), progress=tell)
    name = fresh_name(report.manifest.spec.name)
    folder = save(report, Path(request.results) / "scanned" / f"{name}.yaml")
    samples = counted(report.manifest.sample_count, "sample")
    note(
        f"scanned {data}: {samples}. Without a scan next time: --data "
        f"{shlex.quote(str(folder))} --origin {shlex.quote(data)}",
        quiet=request.quiet,
    )
    return replace(request, data=str(folder), origin=data)


def tell_headspace(request: MeasuringRequest, planned: Planned, hosts: Hosts) -> int:
    """Measure the headspace and print it; return the exit code."""
    plan, _ = planned
    from ..runner.confirm import headspace
    from ..runner.estimate import START_S

    if request.format not in ("text", "json"):
        raise UsageError(
            f"--headspace has no format {request.format}", remedy="use --format text or json"
        )
    seconds = calibration_of(request)
    if (budget := request.budget).limited:
        seconds = budget.left_s / (2 * plan.repetitions) - START_S
    seconds = max(MIN_TRIAL_S, seconds)
    found = headspace(plan, seconds=seconds, observer=Live(quiet=request.quiet), hosts=hosts)
    bound = found.bound
    document = {
        "headspace": bound.model_dump(mode="json") if bound is not None else None,
        "rounds": [
            {"samples_per_s": best, "base_samples_per_s": base} for best, base in found.rounds
        ],
        "not_measured": "" if bound is not None else _TOO_SHORT,
    }
    line = f"headspace: not measured: {_TOO_SHORT}"
    if bound is not None:
        known = bound.low is not None and bound.high is not None
        interval = f" [{bound.low:.2f}, {bound.high:.2f}]" if known else ""
        best, base = (median(each[place] for each in found.rounds) for place in (0, 1))
        line = (
            f"at most {bound.value:.2f} x{interval} from the loader: {format_count(base)} "
            f"samples/s now, {format_count(best)} with batches that are already there"
        )
    show_lines(document, [line], json=request.json)
    return 0


_TOO_SHORT = "too few batches arrived for a steady rate; give more time with --calibration"

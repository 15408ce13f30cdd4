"""``iobench run --loader``: a loader of the user's own in place of the workload's."""

from __future__ import annotations

import secrets
import shlex
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from ..base.errors import UsageError
from ..base.units import counted, format_count
from ..data.scan import save, scan
from ..record.manifest import MANIFEST, MARKER
from ..runner.budget import Budget
from ..runner.plan import Plan
from ..storage import is_local, open_storage
from .hosts import launched
from .live import Live, progress_bar
from .requests.measure import MeasuringRequest, RunRequest
from .terminal import note, say, show_json

MIN_TURN_S = 1.0


def loader_overrides(request: RunRequest) -> list[str]:
    """The overrides for the workload that ``--loader`` stands for. Raises UsageError."""
    if request.loader is None:
        return []
    found = ["loader.kind=user", f"loader.factory={request.loader}"]
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
    if request.loader is None or request.origin is not None or not is_local(request.data):
        return request
    place = Path(request.data)
    known = any((place / name).exists() for name in (MANIFEST, MARKER))
    if known or not place.is_dir() or request.hosts is not None or launched(request) is not None:
        return request

    with progress_bar("scanning", quiet=request.quiet) as tell:
        report = scan(open_storage(request.data), progress=tell)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = f"{report.manifest.spec.name}-{stamp}-{secrets.token_hex(2)}.yaml"
    folder = save(report, Path(request.results) / "scanned" / name)
    samples = counted(report.manifest.sample_count, "sample")
    note(
        f"scanned {request.data}: {samples}. Without a scan next time: --data "
        f"{shlex.quote(str(folder))} --origin {shlex.quote(request.data)}",
        quiet=request.quiet,
    )
    return replace(request, data=str(folder), origin=request.data)


def tell_headspace(plan: Plan, request: MeasuringRequest, calibration_s: float) -> int:
    """Measure the headspace and print it; return the exit code."""
    from ..runner.confirm import headspace
    from ..runner.estimate import START_S

    if request.format not in ("text", "json"):
        raise UsageError(
            f"--headspace has no format {request.format}", remedy="use --format text or json"
        )
    budget = Budget(seconds=request.budget_s, began_s=request.began_s)
    seconds = calibration_s
    if budget.limited:
        seconds = budget.left_s / (2 * plan.repetitions) - START_S
    seconds = max(MIN_TURN_S, seconds)
    found = headspace(plan, seconds=seconds, observer=Live(quiet=request.quiet))
    bound = found.bound
    if request.format == "json":
        show_json(
            {
                "headspace": bound.model_dump(mode="json") if bound is not None else None,
                "turns": [
                    {"samples_per_s": best, "base_samples_per_s": base}
                    for best, base in found.turns
                ],
                "not_measured": "" if bound is not None else _TOO_SHORT,
            }
        )
        return 0
    if bound is None:
        say(f"headspace: not measured: {_TOO_SHORT}")
        return 0
    interval = (
        f" [{bound.low:.2f}, {bound.high:.2f}]"
        if bound.low is not None and bound.high is not None
        else ""
    )
    best, base = (median(each[place] for each in found.turns) for place in (0, 1))
    say(
        f"at most {bound.value:.2f} x{interval} from the loader: {format_count(base)} samples/s "
        f"now, {format_count(best)} with batches that are already there"
    )
    return 0


_TOO_SHORT = "too few batches arrived for a steady rate; give more time with --calibration"

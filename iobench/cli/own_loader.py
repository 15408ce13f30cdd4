"""``iobench run --loader``: a loader of the user's own in place of the workload's."""

from __future__ import annotations

import argparse
import secrets
import shlex
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from .hosts import launched

if TYPE_CHECKING:
    from ..runner.plan import Plan

MIN_TURN_S = 1.0


def add_own_loader(parser: argparse.ArgumentParser) -> None:
    """Add ``--loader``, ``--loader-arg`` and ``--headspace``."""
    group = parser.add_argument_group("your own loader")
    group.add_argument(
        "--loader",
        metavar="MODULE:FUNCTION",
        help="measure the loader that this function of yours returns (a torch DataLoader, any "
        "iterable of batches, a Lightning DataModule), unchanged",
    )
    group.add_argument(
        "--loader-args",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an argument for that function; repeatable. The dataset's directory is passed as "
        "'data' if the function has this parameter",
    )
    group.add_argument(
        "--headspace",
        action="store_true",
        help="only find how much faster any loader could make this run: repeat 10 of its batches "
        "that are kept in memory, in turns with the run itself",
    )


def loader_overrides(args: argparse.Namespace) -> list[str]:
    """The overrides for the workload that ``--loader`` stands for. Raises UsageError."""
    from ..errors import UsageError

    if args.loader is None:
        for flag, given in (
            ("--loader-args", bool(args.loader_args)),
            ("--headspace", args.headspace),
        ):
            if given:
                raise UsageError(
                    f"{flag} is about a loader of your own", remedy="add --loader MODULE:FUNCTION"
                )
        return []
    for flag, given in (("--confirm", args.confirm), ("--find-max", args.find_max)):
        if given:
            raise UsageError(
                f"{flag} changes settings that your own loader does not have",
                remedy=f"leave {flag} out",
            )
    for flag, given in (
        ("--checkpoint", args.checkpoint is not None),
        ("--fail-on", bool(args.fail_on)),
    ):
        if args.headspace and given:
            raise UsageError(
                f"--headspace measures one ratio only, so {flag} has no effect",
                remedy=f"leave {flag} out, or --headspace",
            )
    found = ["loader.kind=user", f"loader.factory={args.loader}"]
    for each in args.loader_args:
        key, equals, value = each.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(
                f"--loader-args {each[:80]} is not of the form KEY=VALUE",
                remedy="write it like --loader-args num_workers=4",
            )
        found.append(f"loader.args.{key}={value}")
    sizes = [each.partition("=")[2] for each in args.overrides if each.startswith("batch_size=")]
    if sizes:
        found.append(f"loader.samples_per_batch={sizes[-1]}")
    return found


def scan_first(args: argparse.Namespace) -> None:
    """Scan a directory that is no dataset of iobench, so that ``--loader`` can read it as it is.

    The manifest is saved below the directory for results, and ``args`` name it and the data. Hosts
    that work together need a manifest that all of them see, so there nothing is scanned. Raises
    what ``iobench scan`` raises.
    """
    from ..schema.manifest import MANIFEST, MARKER
    from ..storage import is_local

    if args.loader is None or args.origin is not None or not is_local(args.data):
        return
    place = Path(args.data)
    known = any((place / name).exists() for name in (MANIFEST, MARKER))
    if known or not place.is_dir() or args.hosts is not None or launched(args) is not None:
        return
    from datetime import UTC, datetime

    from ..scan import save, scan
    from ..storage import open_storage
    from ..units import counted
    from .live import progress_bar
    from .terminal import note

    with progress_bar("scanning", quiet=args.quiet) as tell:
        report = scan(open_storage(args.data), progress=tell)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = f"{report.manifest.spec.name}-{stamp}-{secrets.token_hex(2)}.yaml"
    folder = save(report, Path(args.results) / "scanned" / name)
    samples = counted(report.manifest.sample_count, "sample")
    note(
        f"scanned {args.data}: {samples}. Without a scan next time: --data "
        f"{shlex.quote(str(folder))} --origin {shlex.quote(args.data)}",
        quiet=args.quiet,
    )
    args.data, args.origin = str(folder), args.data


def tell_headspace(plan: Plan, args: argparse.Namespace) -> int:
    """Measure the headspace and print it; return the exit code."""
    from ..errors import UsageError
    from ..runner.budget import Budget
    from ..runner.confirm import headspace
    from ..runner.estimate import START_S
    from ..units import format_count
    from .live import Live
    from .terminal import say, show_json

    if args.format not in ("text", "json"):
        raise UsageError(
            f"--headspace has no format {args.format}", remedy="use --format text or json"
        )
    budget = Budget(seconds=args.budget, began_s=args.began_s)
    seconds = args.calibration_s
    if budget.limited:
        seconds = budget.left_s / (2 * plan.repetitions) - START_S
    seconds = max(MIN_TURN_S, seconds)
    found = headspace(plan, seconds=seconds, observer=Live(quiet=args.quiet))
    bound = found.bound
    if args.format == "json":
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

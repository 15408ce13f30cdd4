"""``iobench sweep``: the same workload over combinations of settings, points taking turns."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .common import add_common

_EXAMPLES = """examples:
  iobench sweep resnet50-h100 --data-root /mnt/fast/sweep --samples 2000 --sweep dataset.format=files,tar --sweep loader.workers=1,2,4
  iobench sweep resnet50-h100 --data-root /mnt/fast/sweep --samples 2000 --sweep dataset.codec=none,zstd:1 --one-at-a-time --time-budget 20m

When it is done: iobench advise results/<sweep>, and iobench sweep --confirm results/<sweep>
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "sweep",
        help="run a workload over combinations of settings of data and loader",
        description="Generate what the points need, run each several times with the points taking turns, and remove the data again. "
        "Keys that begin with 'dataset.' change the data, all others the workload. Ctrl-C keeps what was measured, --resume goes on.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "workload", nargs="?", help="a workload's name or YAML file (iobench list workloads)"
    )
    parser.add_argument(
        "--data-root",
        metavar="DIR",
        help="a directory or URL below which the datasets are generated",
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=A,B,C",
        dest="axes",
        help="an axis; repeatable",
    )
    parser.add_argument(
        "--one-at-a-time", action="store_true", help="vary one key at a time from today's settings"
    )
    parser.add_argument("--samples", type=int, metavar="N", help="samples of each dataset")
    parser.add_argument(
        "--size", metavar="SIZE", help="total bytes of each dataset's samples, e.g. 2GiB"
    )
    parser.add_argument(
        "--repeat", type=int, default=5, metavar="N", help="visits of each point (default: 5)"
    )
    parser.add_argument(
        "--accelerators", type=int, default=1, metavar="N", help="ranks of each run (default: 1)"
    )
    parser.add_argument(
        "--time-budget", metavar="TIME", help="stop in time, e.g. 20m; what was left out is named"
    )
    parser.add_argument(
        "--data-budget", metavar="SIZE", help="keep no more than this many bytes of data at a time"
    )
    parser.add_argument(
        "--keep-data", action="store_true", help="leave the datasets for another sweep"
    )
    parser.add_argument(
        "--resume", type=Path, metavar="SWEEP_DIR", help="go on with an interrupted sweep"
    )
    parser.add_argument(
        "--confirm",
        type=Path,
        metavar="SWEEP_DIR",
        help="advised settings against today's, on fresh runs with other seeds; exit 4 if not",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="where the sweep's directory goes",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=42,
        help="of the first visits; each round has its own (default: 42)",
    )
    parser.add_argument(
        "--calibration-s",
        type=float,
        default=1.0,
        metavar="S",
        help="seconds for each ceiling at a point's first visit",
    )
    from .common import add_break_lock, add_overrides

    add_break_lock(parser)
    add_overrides(parser, "batch_size=64")
    add_common(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import signal

    from ..errors import UsageError
    from ..run.sweep import Budget
    from ..units import parse_duration, parse_size
    from .common import Live

    asked = (
        args.workload or args.axes or args.overrides or args.data_root or args.samples or args.size
    )
    if args.confirm is not None and (asked or args.resume):
        raise UsageError(
            "--confirm asks what the sweep asked",
            remedy="give it alone, with --repeat and budgets if you like",
        )
    budget = Budget(
        seconds=parse_duration(args.time_budget) if args.time_budget else None,
        data_bytes=parse_size(args.data_budget) if args.data_budget else None,
        keep_data=args.keep_data,
        drop=args.confirm is None,
        break_lock=args.break_lock,
    )
    begun = _begin(args, budget) if args.confirm is None else None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    live = Live(quiet=args.quiet or args.json)
    try:
        return _confirm(args, budget, live) if begun is None else _sweep(args, *begun, budget, live)
    finally:
        live.close()


def _sweep(args: argparse.Namespace, sweep: Any, directory: Path, budget: Any, live: Any) -> int:
    from ..report.sweep import render_sweep
    from ..run.visits import run_sweep
    from .common import print_json

    sweep = run_sweep(sweep, directory, budget, progress=live, tell=_teller(args, live))
    live.close()
    if args.json:
        print_json({**sweep.model_dump(mode="json"), "directory": str(directory)})
    else:
        print(render_sweep(sweep))
        print(f"\nresults: {directory}\nadvice:  iobench advise {directory}")
    return 0 if any(point.runs for point in sweep.points) else 1


def _confirm(args: argparse.Namespace, budget: Any, live: Any) -> int:
    from ..report.sweep import confirmation_document, render_confirmation
    from ..run.confirm import confirm
    from .common import print_json

    found = confirm(
        args.confirm,
        results=args.results,
        budget=budget,
        command=tuple(args.command_line),
        repetitions=args.repeat,
        progress=live,
        tell=_teller(args, live),
    )
    live.close()
    if args.json:
        print_json(confirmation_document(found))
    else:
        print(render_confirmation(found), end="")
    return 0 if found.confirmed else 4


def _teller(args: argparse.Namespace, live: Any) -> Any:
    """Lines for each visit, on a progress line of its own."""

    def tell(line: str) -> None:
        live.close()
        if not (args.quiet or args.json):
            print(line, file=sys.stderr)

    return tell


def _begin(args: argparse.Namespace, budget: Any) -> tuple[Any, Path]:
    from ..errors import UsageError
    from ..run.sweep import groups_within, new_sweep, plan_sweep
    from ..spec.sweep import load_sweep, parse_axis
    from ..units import parse_size

    if args.resume is not None:
        if (
            args.workload
            or args.axes
            or args.overrides
            or args.data_root
            or args.samples
            or args.size
        ):
            raise UsageError(
                "--resume goes on with what was asked then",
                remedy="give --resume alone, with --time-budget if you like",
            )
        return load_sweep(args.resume), args.resume
    if not args.workload or not args.data_root or not args.axes:
        raise UsageError(
            "a sweep needs a workload, --data-root and at least one --sweep",
            remedy="see iobench sweep --help",
        )
    if (
        args.repeat < 1
        or args.accelerators < 1
        or args.seed < 0
        or not 0 <= args.calibration_s <= 3600
    ):
        raise UsageError(
            "--repeat, --accelerators, --seed or --calibration-s makes no sense",
            remedy="see iobench sweep --help",
        )
    axes: dict[str, list[Any]] = {}
    for text in args.axes:
        key, values = parse_axis(text)
        if key in axes:
            raise UsageError(
                f"axis '{key}' is given twice", remedy="give all its values in one --sweep"
            )
        axes[key] = values
    given = {
        "workload": args.workload,
        "data_root": args.data_root,
        "overrides": args.overrides,
        "samples": args.samples,
        "size_bytes": parse_size(args.size) if args.size else None,
        "seed": args.seed,
        "repetitions": args.repeat,
        "calibration_s": args.calibration_s,
        "accelerators": args.accelerators,
        "axes": axes,
    }
    from ..spec.sweep import Sweep, save_sweep

    # Planned before a directory is made: what can't be swept leaves nothing behind.
    planned = plan_sweep(Sweep(created="", command=[], **given), one_at_a_time=args.one_at_a_time)
    groups_within(planned.model_copy(deep=True), budget)
    sweep, directory = new_sweep(args.results, args.command_line, **given)
    sweep = sweep.model_copy(
        update={
            name: getattr(planned, name) for name in ("points", "default", "planned", "left_out")
        }
    )
    save_sweep(directory, sweep)
    return sweep, directory

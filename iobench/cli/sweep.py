"""``iobench sweep``: measure a workload with combinations of settings, in rounds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import (
    add_break_lock,
    add_calibration,
    add_overrides,
    add_renamed,
    whole_number,
)
from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
    from ..runner.sweeping.plan import Budget
    from ..runner.sweeping.takeup import Given
    from ..schema.sweep import Setting, Sweep

EXAMPLES = """examples:
  iobench sweep resnet50-h100 --to /mnt/fast/sweep --samples 2000 --sweep dataset.format=files,tar \
--sweep loader.workers=1,2,4
  iobench sweep resnet50-h100 --to /mnt/fast/sweep --samples 2000 \
--sweep dataset.codec=none,zstd:1 --one-at-a-time --time-budget 20m

Of a sweep on a URL, --resume and --confirm want to be told again where that is:
add --to URL.

When it is done: iobench advise results/<sweep>, and iobench sweep --confirm results/<sweep>
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workload", nargs="?", help="a workload's name or YAML file (iobench list workloads)"
    )
    parser.add_argument(
        "--to",
        dest="data_root",
        metavar="DIR",
        help="a directory or URL below which the datasets are generated",
    )
    add_renamed(parser, "--data-root", "--to", dest="data_root")
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
    parser.add_argument("--samples", type=whole_number, metavar="N", help="samples of each dataset")
    parser.add_argument(
        "--size", metavar="SIZE", help="total bytes of each dataset's samples, e.g. 2GiB"
    )
    parser.add_argument(
        "-n",
        "--repeat",
        type=whole_number,
        default=5,
        metavar="N",
        help="visits of each point (default: 5)",
    )
    parser.add_argument(
        "--accelerators",
        type=whole_number,
        default=1,
        metavar="N",
        help="ranks of each run (default: 1)",
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
        type=whole_number,
        default=42,
        metavar="N",
        help="seed of the first visits; each round has its own (default: 42)",
    )
    add_calibration(parser, "1s", "time to measure each ceiling at a point's first visit")
    add_break_lock(parser)
    add_overrides(parser, "batch_size=64")


def run(args: argparse.Namespace) -> int:
    import signal

    from ..errors import UsageError
    from ..runner.sweeping.plan import Budget
    from ..units import parse_duration, parse_size
    from .terminal import Live

    if args.confirm is not None and args.resume is not None:
        raise UsageError("--confirm and --resume are two things", remedy="give one of them")
    if (args.confirm or args.resume) and (args.samples or args.size or args.one_at_a_time):
        raise UsageError(
            "a sweep that is taken up again asks what it asked before",
            remedy="give --resume or --confirm with budgets if you like, and of a sweep on a URL "
            "what led there: --to, --set storage.KEY=VALUE",
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
    from ..report.sweep import sections
    from ..runner.sweeping.visits import run_sweep
    from .printing import print_report
    from .terminal import say

    sweep = run_sweep(sweep, directory, budget, progress=live, tell=_teller(args, live))
    live.close()
    document = {**sweep.model_dump(), "directory": str(directory)}
    print_report(args.format, document, sections(sweep))
    if args.format == "text":
        say()
        say(f"results: {directory}")
        say(f"advice:  iobench advise {directory}")
    return 0 if any(point.runs for point in sweep.points) else 1


def _confirm(args: argparse.Namespace, budget: Any, live: Any) -> int:
    from ..report.confirmation import document, sections
    from ..runner.sweeping.confirm import confirm
    from .printing import print_report

    found = confirm(
        args.confirm,
        given=_given(args),
        results=args.results,
        budget=budget,
        command=tuple(args.command_line),
        repetitions=args.repeat,
        progress=live,
        tell=_teller(args, live),
    )
    live.close()
    print_report(args.format, document(found), sections(found))
    return 0 if found.confirmed else 4


def _teller(args: argparse.Namespace, live: Any) -> Any:
    """Return a function that prints a line on stderr and closes the progress line first."""
    from .terminal import note

    def tell(line: str) -> None:
        live.close()
        note(line, quiet=args.quiet or args.json)

    return tell


def _axes(args: argparse.Namespace) -> dict[str, list[Setting]]:
    from ..errors import UsageError
    from ..schema.sweep import parse_axis

    axes: dict[str, list[Setting]] = {}
    for text in args.axes:
        key, values = parse_axis(text)
        if key in axes:
            raise UsageError(
                f"axis '{key}' is given twice", remedy="give all its values in one --sweep"
            )
        axes[key] = values
    return axes


def _given(args: argparse.Namespace) -> Given:
    """Return the arguments that the user repeated for a sweep that is continued."""
    from ..runner.sweeping.takeup import Given

    return Given(
        workload=args.workload,
        data_root=args.data_root,
        overrides=args.overrides,
        axes=_axes(args),
    )


def _begin(args: argparse.Namespace, budget: Budget) -> tuple[Sweep, Path]:
    from ..errors import UsageError
    from ..runner.sweeping.plan import groups_within, new_sweep, plan_sweep
    from ..runner.sweeping.takeup import take_up
    from ..storage import open_storage
    from ..units import parse_size

    if args.resume is not None:
        return take_up(args.resume, _given(args)), args.resume
    if not args.workload or not args.data_root or not args.axes:
        raise UsageError(
            "a sweep needs a workload, --to and at least one --sweep",
            remedy="see iobench sweep --help",
        )
    if (
        args.repeat < 1
        or args.accelerators < 1
        or args.seed < 0
        or not 0 <= args.calibration_s <= 3600
    ):
        raise UsageError(
            "--repeat, --accelerators, --seed or --calibration makes no sense",
            remedy="see iobench sweep --help",
        )
    open_storage(args.data_root)  # refuses a wrong URL before anything is written
    axes = _axes(args)
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
    from ..schema.base import build
    from ..schema.sweep import Sweep, save_sweep

    # The plan is made before the directory, so that a sweep that is refused leaves no files.
    asked = build(Sweep, {"created": "", "command": [], **given}, where="the sweep")
    planned = plan_sweep(asked, one_at_a_time=args.one_at_a_time)
    groups_within(planned.model_copy(deep=True), budget)
    sweep, directory = new_sweep(args.results, args.command_line, planned)
    save_sweep(directory, sweep)
    return sweep, directory


VERB = Verb(
    help="run a workload over combinations of settings of data and loader",
    description=(
        "Generate what the points need, run each several times with the points taking turns, and "
        "remove the data again. Keys that begin with 'dataset.' change the data, all others the "
        "workload. Ctrl-C keeps what was measured, --resume goes on."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)

"""``iobench sweep``: measure a workload with combinations of settings, in rounds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import (
    add_break_lock,
    add_calibration,
    add_overrides,
    add_results,
    add_tags,
    check_measuring,
    duration,
    number,
    whole_number,
)
from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
    from ..runner.sweeping.plan import SweepOptions
    from ..runner.sweeping.takeup import Given
    from ..schema.sweep import Setting, Sweep
    from ..schema.walk import WalkSpec

EXAMPLES = """examples:
  iobench sweep resnet50-h100 --to /mnt/fast/sweep --samples 2000 --sweep dataset.format=files,tar \
--sweep loader.workers=1,2,4
  iobench sweep resnet50-h100 --to /mnt/fast/sweep --samples 2000 \
--sweep dataset.codec=none,zstd:1 --one-at-a-time --budget 20m
  iobench sweep cpu-training --data /mnt/fast/images --host-price-per-hour 0.357
  iobench sweep cpu-training --data /mnt/fast/images --set accelerator.model=vit-s16 \
--set batch_size=32 --budget 20m

A walk, such as cpu-training, varies one setting after the other, and keeps what is told to be
faster.

To resume or confirm a sweep whose data is at a URL, give that URL again, with --to or --data. What
it names as code is named again, too: --set loader.factory=MODULE:FUNCTION.

After a sweep: iobench advise results/<sweep>, and then iobench sweep --confirm results/<sweep>
"""

_REPEAT, _ACCELERATORS, _SEED, _CALIBRATION = 5, 1, 42, "1s"
_DEFAULTS = {
    "repeat": _REPEAT,
    "accelerators": _ACCELERATORS,
    "seed": _SEED,
    "calibration_s": duration(_CALIBRATION),
}
"""Defaults that are filled in later, so that flags given with --resume are noticed."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workload",
        nargs="?",
        help="name of a workload (iobench list workloads) or YAML file; or of a walk, which has "
        "its own settings (iobench list sweeps)",
    )
    parser.add_argument(
        "--to",
        dest="data_root",
        metavar="DIR",
        help="directory or URL below which the datasets are generated",
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="directory or URL of a dataset that exists, which all points read, instead of --to",
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=A,B,C",
        dest="axes",
        help="key to vary, and its values; repeatable",
    )
    parser.add_argument(
        "--one-at-a-time",
        action="store_true",
        help="vary one key at a time, and keep the others as in the workload (default: all "
        "combinations)",
    )
    parser.add_argument(
        "--samples", type=whole_number, metavar="N", help="number of samples in each dataset"
    )
    parser.add_argument(
        "--size", metavar="SIZE", help="total bytes of each dataset's samples, e.g. 2GiB"
    )
    parser.add_argument(
        "-n",
        "--repeat",
        type=whole_number,
        metavar="N",
        help=f"number of repetitions of each point (default: {_REPEAT})",
    )
    parser.add_argument(
        "--time",
        type=duration,
        dest="time_s",
        metavar="TIME",
        help="in a walk: about how long each visit trains, at the pace of its beginning "
        "(default: 10s)",
    )
    parser.add_argument(
        "--accelerators",
        type=whole_number,
        metavar="N",
        help=f"number of ranks in each run (default: {_ACCELERATORS})",
    )
    parser.add_argument(
        "--budget",
        dest="time_budget",
        metavar="TIME",
        help="time limit, e.g. 20m; points for which no time is left are listed",
    )
    parser.add_argument(
        "--data-budget", metavar="SIZE", help="largest number of bytes of data to keep at a time"
    )
    parser.add_argument(
        "--keep-data", action="store_true", help="keep the datasets for another sweep"
    )
    parser.add_argument(
        "--resume", type=Path, metavar="SWEEP_DIR", help="continue an interrupted sweep"
    )
    parser.add_argument(
        "--confirm",
        type=Path,
        metavar="SWEEP_DIR",
        help="compare the advised settings with those in use today, by new runs with other seeds; "
        "exit with status 4 if the advice is not confirmed",
    )
    parser.add_argument(
        "--instance",
        metavar="TYPE",
        help="instance type of this host (iobench list instances): the points get the cost of "
        "their samples, by its price on demand",
    )
    parser.add_argument(
        "--host-price-per-hour",
        type=number,
        metavar="USD",
        help="price of this host for one hour, instead of that of --instance",
    )
    add_results(parser, "for the directory of the sweep")
    add_tags(parser)
    parser.add_argument(
        "--seed",
        type=whole_number,
        metavar="N",
        help=f"seed of the first round; each round has its own (default: {_SEED})",
    )
    add_calibration(parser, _CALIBRATION, "time to measure each ceiling, once for each point")
    parser.set_defaults(calibration_s=None)
    add_break_lock(parser)
    add_overrides(parser, "batch_size=64")


def run(args: argparse.Namespace) -> int:
    import signal

    from ..errors import UsageError
    from ..runner.budget import Budget
    from ..runner.sweeping.plan import SweepOptions
    from ..units import parse_duration, parse_size
    from .hosts import check_one_host
    from .live import Live

    check_one_host("sweep")
    if args.confirm is not None and args.resume is not None:
        raise UsageError("--confirm and --resume can't be used together", remedy="give one of them")
    _refuse_changes(args)
    walk = _walk(args)
    defaults = _DEFAULTS if walk is None else {**_DEFAULTS, "calibration_s": 0.0}
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    check_measuring(args)
    seconds = parse_duration(args.time_budget) if args.time_budget else None
    options = SweepOptions(
        budget=Budget(seconds=seconds, began_s=args.began_s),
        data_bytes=parse_size(args.data_budget) if args.data_budget else None,
        keep_data=args.keep_data,
        drop=args.confirm is None,
        break_lock=args.break_lock,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    live = Live(quiet=args.quiet or args.json, lines=True)
    begun = _begin(args, options, walk, live) if args.confirm is None else None
    try:
        return (
            _confirm(args, options, live) if begun is None else _sweep(args, *begun, options, live)
        )
    finally:
        live.close()


def _refuse_changes(args: argparse.Namespace) -> None:
    """Raise UsageError for a flag that would change a sweep that is continued or confirmed."""
    from ..errors import UsageError

    if args.confirm is None and args.resume is None:
        return
    word = "--confirm" if args.resume is None else "--resume"
    fixed = ["samples", "size", "one_at_a_time", "accelerators", "seed", "calibration_s"]
    fixed += ["instance", "host_price_per_hour", "time_s"]
    for name in fixed if args.resume is None else [*fixed, "repeat", "tags"]:
        if getattr(args, name) not in (None, False, []):
            flag = f"--{name.removesuffix('_s').replace('_', '-')}" if name != "tags" else "--tag"
            raise UsageError(
                f"{flag} can't be used with {word}, since the sweep has its own value",
                remedy=f"leave {flag} out, or begin a new sweep",
            )


def _sweep(args: argparse.Namespace, sweep: Any, directory: Path, options: Any, live: Any) -> int:
    from ..runner.sweeping.visits import run_sweep

    sweep = run_sweep(sweep, directory, options, observer=live)
    live.close()
    return finish(sweep, directory, kind=args.format, new=True)


def finish(sweep: Sweep, directory: Path, *, kind: str, new: bool) -> int:
    """Print the sweep, and return the exit code: 0, or 1 if no point was measured.

    ``new``: it has just ended, and its directory gets the report as a page.
    """
    from ..report.sweep import sections
    from ..report.walk import facts
    from ..report.walk import sections as walk_sections
    from .outcome import keep_page, say_where
    from .printing import print_report
    from .terminal import say

    document = {**sweep.model_dump(), **facts(sweep), "directory": str(directory)}
    shown = sections(sweep) if not sweep.walk else walk_sections(sweep)
    print_report(kind, document, shown)
    if new:
        keep_page(document, shown, directory)
    if kind == "text":
        say_where(directory)
        if not sweep.walk:
            say(f"advice:  iobench advise {directory}")
    return 0 if any(point.runs for point in sweep.points) else 1


def _confirm(args: argparse.Namespace, options: Any, live: Any) -> int:
    from ..report.tried import sections
    from ..runner.sweeping.confirm import confirm
    from .printing import print_report

    found = confirm(
        args.confirm,
        given=_given(args),
        results=args.results,
        options=options,
        command=tuple(args.command_line),
        repetitions=args.repeat,
        observer=live,
    )
    live.close()
    print_report(args.format, found, sections(found))
    return 0 if found.confirmed else 4


def _price(args: argparse.Namespace) -> float | None:
    """The price of this host for one hour, if one was asked for. Raises UsageError."""
    from ..errors import UsageError
    from ..schema.instances import MAX_USD_PER_HOUR, find_instance

    if (stated := args.host_price_per_hour) is not None:
        if not 0 < stated <= MAX_USD_PER_HOUR:
            raise UsageError(f"--host-price-per-hour must be above 0, but is {stated:g}")
        return float(stated)
    if args.instance is None:
        return None
    price = find_instance(args.instance).usd_per_hour
    if price is None:
        raise UsageError(
            f"the price of {args.instance} is not known", remedy="give --host-price-per-hour"
        )
    return price


def _axes(args: argparse.Namespace) -> dict[str, list[Setting]]:
    from ..errors import UsageError
    from ..schema.sweep import parse_axis

    axes: dict[str, list[Setting]] = {}
    for text in args.axes:
        key, values = parse_axis(text)
        if key in axes:
            raise UsageError(
                f"--sweep {key} is given twice", remedy="give all its values in one --sweep"
            )
        axes[key] = values
    return axes


def _given(args: argparse.Namespace) -> Given:
    """Return the arguments that the user repeated for a sweep that is continued."""
    from ..runner.sweeping.takeup import Given

    return Given(
        workload=args.workload,
        data_root=args.data_root,
        data=args.data,
        overrides=args.overrides,
        axes=_axes(args),
    )


def _walk(args: argparse.Namespace) -> WalkSpec | None:
    """The walk that the user named; None: a workload, whose settings are given by --sweep."""
    from ..errors import UsageError
    from ..schema.walk import find_walk

    new = args.workload is not None and args.resume is None and args.confirm is None
    found = find_walk(args.workload) if new and not args.axes else None
    if found is None and args.time_s is not None and new:
        raise UsageError(
            "--time is for a walk, such as cpu-training",
            remedy="leave it out, or say how long a visit is with --set max_steps=N",
        )
    return found


def _check_new(args: argparse.Namespace, walk: WalkSpec | None) -> None:
    """Raise UsageError if a new sweep lacks something, or has data of two kinds."""
    from ..errors import UsageError
    from ..storage import open_storage

    for value, what in (
        (args.workload, "the name of a workload"),
        (args.data_root or args.data, "--to DIR or --data DIR"),
        (args.axes or walk, "at least one --sweep KEY=A,B,C"),
    ):
        if not value:
            raise UsageError(f"a new sweep needs {what}", remedy="see: iobench sweep --help")
    if args.data:
        for flag, given in (
            ("--to", args.data_root),
            ("--samples", args.samples),
            ("--size", args.size),
            ("--data-budget", args.data_budget),
            ("--keep-data", args.keep_data),
        ):
            if given:
                raise UsageError(
                    f"{flag} is for datasets that the sweep generates, but --data names one that "
                    "exists",
                    remedy=f"leave out {flag} or --data",
                )
    open_storage(args.data or args.data_root)  # refuses a wrong URL before anything is written


def _begin(
    args: argparse.Namespace, options: SweepOptions, walk: WalkSpec | None, live: Any
) -> tuple[Sweep, Path]:
    from ..runner.sweeping.plan import groups_within, new_sweep, plan_sweep, plan_walk
    from ..runner.sweeping.takeup import take_up
    from ..schema.tags import tags
    from ..units import parse_size
    from .walking import overrides_of, refuse_axes, sized

    if args.resume is not None:
        return take_up(args.resume, _given(args)), args.resume
    _check_new(args, walk)
    if walk is not None:
        refuse_axes(args, walk)
    axes = _axes(args)
    given = {
        "workload": args.workload if walk is None else walk.workload,
        "data_root": args.data_root or "",
        "data": args.data or "",
        "overrides": args.overrides if walk is None else overrides_of(args, walk),
        "samples": args.samples,
        "size_bytes": parse_size(args.size) if args.size else None,
        "seed": args.seed,
        "repetitions": args.repeat,
        "calibration_s": args.calibration_s,
        "accelerators": args.accelerators,
        "axes": axes,
        "tags": tags(),
        "usd_per_hour": _price(args),
        "instance": args.instance or "",
    }
    from .. import __version__
    from ..schema.base import build
    from ..schema.sweep import Sweep, save_sweep

    # The plan is made before the directory, so that a sweep that is refused leaves no files.
    head = {"iobench_version": __version__, "created": "", "command": []}
    asked = build(Sweep, head | given, where="the sweep")
    if walk is not None:
        planned = sized(plan_walk(asked, walk), args, live.note)
    else:
        planned = plan_sweep(asked, one_at_a_time=args.one_at_a_time)
        groups_within(planned.model_copy(deep=True), options.data_bytes)
    sweep, directory = new_sweep(args.results, args.command_line, planned)
    save_sweep(directory, sweep)
    return sweep, directory


VERB = Verb(
    help="run a workload with combinations of settings",
    description=(
        "Generate the datasets that the combinations (points) need, run each point several times "
        "with the points taking turns, and remove the data again. Keys that begin with 'dataset.' "
        "change the data, all others the workload. Ctrl-C keeps what was measured, and --resume "
        "continues."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)

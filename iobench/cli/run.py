"""iobench run: measure, and say what binds."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

_EXAMPLES = """examples:
  iobench run demo --data demo-data
  iobench run resnet50-h100 --data /mnt/fast/resnet50 --accelerators 2 --repeat 5
  iobench run resnet50-h100 --data /mnt/fast/resnet50 --find-max
  iobench run unet3d-h100 --data /mnt/fast/unet3d --set reader.concurrency=16 --fail-on 'accelerator_utilization<0.9'
  iobench run resnet50-h100 --data 'throttled+/mnt/fast/resnet50?bandwidth=2GB&latency=5ms'
"""
_LONGEST_S = 3600


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        help="measure every ceiling and the real thing; print what binds and why",
        description="Run a workload over a generated dataset: each stage's ceiling alone, then all stages together, then the verdict.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workload", help="a workload's name or YAML file (iobench list workloads)")
    parser.add_argument("--data", required=True, help="the dataset's directory or URL")
    parser.add_argument("--accelerators", type=int, default=1, metavar="N", help="ranks, each with its own loader (default: 1)")
    parser.add_argument(
        "--repeat", type=int, default=6, metavar="N", help="repetitions (default: 6, so that [min, max] covers the median with 97 %%)"
    )
    parser.add_argument("--find-max", action="store_true", help="search how many accelerators this storage can feed")
    parser.add_argument(
        "--rules", choices=("quick", "mlperf"), default="quick", help="quick prints findings, mlperf makes them refuse (default: quick)"
    )
    parser.add_argument(
        "--fail-on", action="append", default=[], metavar="EXPR", help="exit 4 if it holds, e.g. 'accelerator_utilization<0.9'; repeatable"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where run directories go (default: results)")
    parser.add_argument("--seed", type=int, default=42, help="of the first repetition; each has its own (default: 42)")
    parser.add_argument(
        "--calibration-s", type=float, default=3.0, metavar="S", help="seconds for each ceiling; 0 leaves them out (default: 3)"
    )
    from .common import add_common, add_overrides

    add_overrides(parser, "loader.workers=8")
    add_common(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..errors import UsageError
    from ..spec.workload import load_workload

    workload = load_workload(args.workload, args.overrides)
    if not 0 <= args.calibration_s <= _LONGEST_S or args.seed < 0:  # NaN fails every comparison
        raise UsageError(f"--calibration-s must be 0 to {_LONGEST_S}, and --seed 0 or more")
    from ..analyse.thresholds import parse
    from ..run.plan import make_plan
    from ..run.runner import Options
    from ..run.runner import run as run_plan
    from .common import Live

    for expression in args.fail_on:
        parse(expression)  # a typing error is told before anything runs
    plan = make_plan(workload, args.data, accelerators=args.accelerators, repetitions=args.repeat, seed=args.seed)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # batch schedulers stop jobs so: save what was measured, as for Ctrl-C
    live = Live(quiet=args.quiet or args.json)
    options = Options(
        results=args.results, rules=args.rules, command=tuple(args.command_line), calibration_s=args.calibration_s, find_max=args.find_max
    )
    try:
        doc, directory = run_plan(plan, options, live)
    finally:
        live.close()
    from .outcome import finish

    return finish(doc, directory, kind="json" if args.json else "text", fail_on=args.fail_on)

"""``iobench report``: every figure of a run again, from its recorded events."""

from __future__ import annotations

import argparse
from typing import Any

EXAMPLES = """examples:
  iobench report results/<run>
  iobench report results/<run> --format csv
  iobench report results/<run> --fail-on 'accelerator_utilization<0.9' --fail-on 'headroom<1.2'
  iobench report results/<run> --rules mlperf

exit status: 0 ok, 1 failed, 2 usage, 3 the run is invalid, 4 a --fail-on condition holds
"""


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    from .common import add_common

    parser = subparsers.add_parser(
        "report",
        help="print a run again: verdict, ceilings, metrics, findings",
        description="Compute every figure of a run again from its recorded events, without torch and without the storage, and print it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", metavar="RUN_DIR", help="a run's directory, or its run.json")
    parser.add_argument("--format", choices=("text", "json", "csv", "markdown"), default="text", help="default: text")
    parser.add_argument(
        "--fail-on",
        metavar="CONDITION",
        action="append",
        default=[],
        help="exit 4 where this holds for a median, or the metric was not measured; e.g. 'accelerator_utilization<0.9'; may be repeated",
    )
    parser.add_argument("--rules", choices=("quick", "mlperf"), default=None, help="judge by this rule set (default: the run's own)")
    add_common(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import shutil
    import sys
    from pathlib import Path

    from ..analyse.rebuild import conclude, rebuild
    from ..analyse.thresholds import parse, violations
    from ..report.export import to_csv, to_json, to_markdown
    from ..report.text import render_run
    from ..spec.result import load_run

    for expression in args.fail_on:
        parse(expression)  # a typing error is told before anything is printed
    directory = Path(args.directory)
    doc = load_run(directory)
    if args.rules:
        doc = doc.model_copy(update={"rules": args.rules})
    events = (directory.parent if directory.is_file() else directory) / "events.parquet"
    if events.is_file():
        from ..measure.timeline import read_events

        doc = rebuild(doc, read_events(events))
    else:
        print(f"iobench: no events.parquet beside {directory}: figures are shown as recorded", file=sys.stderr)
        doc = conclude(doc)
    kind = "json" if getattr(args, "json", False) else args.format
    if kind == "text":
        terminal = sys.stdout.isatty()
        width = min(100, shutil.get_terminal_size((100, 24)).columns) if terminal else 100
        sys.stdout.write(render_run(doc, width=max(60, width), color=terminal))
    else:
        sys.stdout.write({"json": to_json, "csv": to_csv, "markdown": to_markdown}[kind](doc))
    failed = violations(doc, args.fail_on)
    for line in failed:
        print(f"iobench: --fail-on {line}", file=sys.stderr)
    if doc.validity == "invalid":
        return 3
    return 4 if failed else 0

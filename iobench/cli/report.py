"""``iobench report``: compute every figure of a run again from its recorded events."""

from __future__ import annotations

import argparse

from .verbs import DOCUMENTS, Verb

EXAMPLES = """examples:
  iobench report results/<run>
  iobench report results/<run> --format csv
  iobench report results/<run> --fail-on 'accelerator_utilization_sustained<0.9' \
--fail-on 'headroom<1.2'
  iobench report results/<run> --rules mlperf

exit status: 0 ok, 1 failed, 2 usage, 3 the run is invalid, 4 a --fail-on condition holds
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="RUN_DIR", help="a run's directory, or its run.json")
    parser.add_argument(
        "--fail-on",
        metavar="CONDITION",
        action="append",
        default=[],
        help="exit 4 where this holds for a median, or the metric was not measured; e.g. "
        "'accelerator_utilization_sustained<0.9', by which the verdict goes "
        "('accelerator_utilization' is MLPerf's); may be repeated",
    )
    parser.add_argument(
        "--rules",
        choices=("quick", "mlperf"),
        default=None,
        help="judge by this rule set (default: the run's own)",
    )


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from ..analyse.verdict.rebuild import conclude, rebuild
    from ..analyse.verdict.thresholds import parse
    from ..schema.record import TrainingRecord, load_run
    from .outcome import finish
    from .terminal import warn

    for expression in args.fail_on:
        parse(expression)  # report a wrong condition before anything is printed
    named = Path(args.directory)
    directory = named.parent if named.is_file() else named
    doc = load_run(named)
    if args.rules:
        doc = doc.model_copy(update={"rules": args.rules})
    if isinstance(doc, TrainingRecord) and (directory / "events.parquet").is_file():
        from ..measure.timeline import read_events

        doc = rebuild(doc, read_events(directory / "events.parquet"))
    elif isinstance(doc, TrainingRecord):
        warn(f"no events.parquet in {directory}: figures are shown as recorded")
    doc = conclude(doc)
    return finish(doc, directory, kind=args.format, fail_on=args.fail_on)


VERB = Verb(
    help="print a run again: verdict, ceilings, metrics, findings",
    description=(
        "Compute every figure of a run again from its recorded events, without torch and without "
        "the storage, and print it."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)

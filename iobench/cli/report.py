"""``iobench report``: compute every figure of a run again from its recorded events."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .common import add_details
from .verbs import RECORDS, Verb

if TYPE_CHECKING:
    from ..schema.record import RunRecord

EXAMPLES = """examples:
  iobench report results/<run>
  iobench report results/<run> --format csv
  iobench report results/<run> --format github >> "$GITHUB_STEP_SUMMARY"
  iobench report results/<run> --format trace -o trace.json     # for ui.perfetto.dev
  iobench report results/<run> results/<run> --html -o report.html
  iobench report results --format csv -o runs.csv               # all runs below results
  iobench report results/<run> --fail-on 'accelerator_utilization_sustained<0.9' \
--fail-on 'headroom<1.2'
  iobench report results/<run> --rules mlperf

exit status: 0 ok, 1 failed, 2 usage, 3 the run is invalid, 4 a --fail-on condition holds
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directories",
        nargs="+",
        metavar="RUN_DIR",
        help="directory of a run, or its run.json; of a sweep; of a comparison in turns "
        "(iobench ab); or of runs. Several runs become one document",
    )
    parser.add_argument(
        "--fail-on",
        metavar="CONDITION",
        action="append",
        default=[],
        help="exit with status 4 if this holds for the median, or if the metric was not measured; "
        "repeatable. Example: 'accelerator_utilization_sustained<0.9', the metric of the verdict "
        "('accelerator_utilization' is computed as MLPerf does)",
    )
    add_details(parser)
    parser.add_argument(
        "--rules",
        choices=("quick", "mlperf"),
        default=None,
        help="rule set by which to judge (default: the one of the run)",
    )


def run(args: argparse.Namespace) -> int:
    from ..analyse.verdict.validity import parse
    from ..schema.ab import AB_FILE
    from ..schema.sweep import SWEEP_FILE
    from .exporting import check_kind
    from .outcome import finish, finish_all

    for expression in args.fail_on:
        parse(expression)  # report a wrong condition before anything is printed
    places = [each for name in args.directories for each in _runs(Path(name))]
    if len(places) > 1:
        runs = [_computed(each, args.rules) for each in places]
        return finish_all(runs, kind=args.format, fail_on=args.fail_on)
    (named,) = places
    if named.name == AB_FILE or (named / AB_FILE).is_file():
        return _comparison(args, named.parent if named.name == AB_FILE else named)
    if named.name == SWEEP_FILE or (named / SWEEP_FILE).is_file():
        return _sweep(args, named.parent if named.name == SWEEP_FILE else named)
    doc, directory = _computed(named, args.rules)
    check_kind(args.format, doc.job.kind, named)
    return finish(
        doc, directory, kind=args.format, fail_on=args.fail_on, new=False, details=args.details
    )


def _runs(named: Path) -> list[Path]:
    """``named``, or the runs below it if it is a directory of runs."""
    from ..analyse.compare.runs import collect
    from ..schema.ab import AB_FILE
    from ..schema.record import RUN_FILE
    from ..schema.sweep import SWEEP_FILE
    from .terminal import warn

    one_thing = any((named / file).is_file() for file in (RUN_FILE, SWEEP_FILE, AB_FILE))
    if one_thing or not named.is_dir() or not any(named.glob(f"*/**/{RUN_FILE}")):
        return [named]
    found = collect(named)
    for why in found.left_out:
        warn(f"left out: {why}")
    return sorted(found.runs, key=lambda place: found.runs[place].created)


def _computed(named: Path, rules: str | None) -> tuple[RunRecord, Path]:
    """A recorded run, computed again from its events, and its directory."""
    from ..analyse.verdict.rebuild import conclude, rebuild
    from ..schema.record import EVENTS_FILE, TrainingRecord, load_run
    from .terminal import warn

    directory = named.parent if named.is_file() else named
    doc = load_run(named)
    if rules:
        doc = doc.model_copy(update={"rules": rules})
    if isinstance(doc, TrainingRecord) and (directory / EVENTS_FILE).is_file():
        from ..measure.timeline import read_events

        doc = rebuild(doc, read_events(directory / EVENTS_FILE))
    elif isinstance(doc, TrainingRecord):
        warn(f"no events.parquet in {directory}: figures are shown as recorded")
    return conclude(doc), directory


def _comparison(args: argparse.Namespace, directory: Path) -> int:
    """Print a comparison in turns again, with its claims computed from its turns."""
    from ..analyse.compare.sequential import claims_of
    from ..schema.ab import load_ab
    from .ab import finish
    from .exporting import check_kind

    runs = f"{directory}/a or {directory}/b"
    _refuse_rules(args, f"{directory} is a comparison in turns", runs)
    check_kind(args.format, "ab", directory, remedy=f"name one of its runs, {runs}")
    record = load_ab(directory)
    record = record.model_copy(update={"claims": claims_of(record)})
    return finish(record, directory, kind=args.format, new=False)


def _sweep(args: argparse.Namespace, directory: Path) -> int:
    """Print a sweep again, from its own record."""
    from ..schema.sweep import load_sweep
    from .exporting import check_kind
    from .sweep import finish

    sweep = load_sweep(directory)
    first = next((run for point in sweep.points for run in point.runs), "<run>")
    runs = f"such as {directory}/{first}"
    _refuse_rules(args, f"{directory} is a sweep", runs)
    check_kind(args.format, "sweep", directory, remedy=f"name one of its runs, {runs}")
    return finish(sweep, directory, kind=args.format, new=False)


def _refuse_rules(args: argparse.Namespace, what: str, runs: str) -> None:
    from ..errors import UsageError

    if args.fail_on or args.rules:
        raise UsageError(
            f"--fail-on and --rules are about one run, but {what}",
            remedy=f"name one of its runs, {runs}",
        )


VERB = Verb(
    help="print a recorded run again: verdict, ceilings, findings",
    description=(
        "Compute every figure of a run again from its recorded events, and print it. Neither torch "
        "nor the storage is needed."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=RECORDS,
)

"""``iobench ab``: measure two configurations in turns until their difference is told."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .common import (
    add_break_lock,
    add_origin,
    add_overrides,
    add_results,
    add_tags,
    parse_share,
    parse_time,
    whole_number,
)
from .gate import add_gate
from .live import Live
from .sides import ACCELERATORS, SEED, sides_of
from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
    from ..runner.ab import SideAsked
    from ..schema.ab import AbRecord, Side

EXAMPLES = """examples:
  iobench ab /mnt/fast/resnet50 /mnt/slow/resnet50 --workload resnet50-h100 --budget 10m
  iobench ab /mnt/fast/resnet50 --workload resnet50-h100 --set-b reader.concurrency=16
  iobench ab results/<run> --set-b loader.workers=8
  iobench ab results/<run> /mnt/slow/resnet50 --fail-on 5% --if-inconclusive warn

A is the baseline, B the candidate. A turn is one repetition of each, with the same seed; the order
is A B, B A, A B, ... After 4, 6, 8, ... turns a sequential test looks whether the difference is
told. It calls equal sides different in at most 5 % of comparisons, however often it looks.

Code that the record of a run names is not run before it is named again, as by
--set loader.factory=MODULE:FUNCTION or --set accelerator.model=MODULE:CLASS.

exit status: 0 ok, 1 failed, 2 usage, 3 a side is INVALID, 130 interrupted; with --fail-on 4 if B is
worse, and as --if-inconclusive says where nothing is told or a side is INVALID
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "a",
        metavar="A",
        help="the baseline: directory or URL of a dataset, or the directory of a run, whose "
        "workload, data and settings are repeated",
    )
    parser.add_argument(
        "b", metavar="B", nargs="?", help="the candidate, likewise (default: the same as A)"
    )
    parser.add_argument(
        "--workload",
        metavar="NAME",
        help="name of a workload (iobench list workloads) or YAML file; without it, that of the "
        "run that A or B names",
    )
    add_overrides(parser, "loader.workers=8")
    for side in ("a", "b"):
        parser.add_argument(
            f"--set-{side}",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help=f"override a key for {side.upper()} alone; repeatable",
        )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="directory or URL of the data of the runs that are repeated (default: where their "
        "records say, if that is a directory)",
    )
    add_origin(parser)
    for side in ("a", "b"):
        parser.add_argument(
            f"--origin-{side}", metavar="URL", help=f"the same for {side.upper()} alone"
        )
    parser.add_argument(
        "--accelerators",
        type=whole_number,
        metavar="N",
        help=f"number of ranks (default: as in the run that is repeated, or {ACCELERATORS})",
    )
    parser.add_argument(
        "--metric",
        default="samples_per_s",
        metavar="NAME",
        help="metric whose difference is to be told (default: samples_per_s)",
    )
    parser.add_argument(
        "--threshold",
        metavar="CHANGE",
        help="largest change that counts as equal (default: 5%%)",
    )
    parser.add_argument(
        "--max-turns",
        type=whole_number,
        default=20,
        metavar="N",
        help="most turns, 4 to 200 (default: 20)",
    )
    parser.add_argument(
        "--budget",
        metavar="TIME",
        help="time limit for all of it, e.g. 10m; no turn begins that would end later",
    )
    add_gate(parser, "of the metric that --metric names")
    parser.add_argument(
        "--rules",
        choices=("quick", "mlperf"),
        default="quick",
        help="rule set; a side that breaks a rule of mlperf is INVALID (default: quick)",
    )
    parser.add_argument(
        "--seed",
        type=whole_number,
        metavar="N",
        help="seed of the first turn; each has its own (default: as in the run that is repeated, "
        f"or {SEED})",
    )
    add_results(parser, "for the directory of the comparison")
    add_tags(parser)
    add_break_lock(parser)


def run(args: argparse.Namespace) -> int:
    import signal

    from ..analyse.compare.sequential import METRICS, MIN_TURNS
    from ..errors import UnknownNameError, UsageError
    from ..runner.ab import AbOptions, compare_in_turns
    from ..runner.budget import Budget
    from ..schema.ab import MAX_TURNS
    from .hosts import check_one_host

    check_one_host("ab")
    names = [metric.name for metric in METRICS]
    if args.metric not in names:
        raise UnknownNameError("metric", args.metric, names)
    for name, least in (("accelerators", 1), ("seed", 0)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise UsageError(f"--{name} must be at least {least}, but is {value}")
    if not MIN_TURNS <= args.max_turns <= MAX_TURNS:
        raise UsageError(f"--max-turns must be {MIN_TURNS} to {MAX_TURNS}, but is {args.max_turns}")
    threshold, budget_s = _threshold(args), parse_time("--budget", args.budget)
    a, b = sides_of(args)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    told = ShownTurns(quiet=args.quiet)
    options = AbOptions(
        results=args.results,
        metric=args.metric,
        threshold=threshold,
        max_turns=args.max_turns,
        budget=Budget(seconds=budget_s, began_s=args.began_s),
        rules=args.rules,
        command=tuple(args.command_line),
        break_lock=args.break_lock,
    )
    told.announce(a, b, options.max_turns)
    try:
        record, directory = compare_in_turns(a, b, options, told)
    finally:
        told.close()
    code = finish(record, directory, kind=args.format, new=True)
    return code if args.fail_on is None else gated(args, record)


def finish(record: AbRecord, directory: Path, *, kind: str, new: bool) -> int:
    """Print the record, and return the exit code: 0, or 3 if a side is INVALID.

    ``new``: the comparison has just ended, and its directory gets the report as a page.
    """
    from ..report.ab import sections
    from .outcome import keep_page, say_where
    from .printing import print_report

    shown = sections(record)
    print_report(kind, record, shown)
    if new:
        keep_page(record, shown, directory)
    if kind == "text":
        say_where(directory)
    return 3 if invalid_sides(record) else 0


def gated(args: argparse.Namespace, record: AbRecord) -> int:
    """The exit code of ``--fail-on``: 4 if B is worse, or as ``--if-inconclusive`` says.

    What is told of a side that is INVALID is inconclusive.
    """
    from ..analyse.compare.sequential import primary, verdict
    from ..report.ab import answer
    from .gate import status_of

    found = verdict(primary(record))
    inconclusive = [f"side {side.name} is INVALID" for side in invalid_sides(record)]
    if found == "inconclusive":
        inconclusive.append(answer(record).removeprefix("inconclusive").lstrip(": "))
    return status_of(
        args, failed=[answer(record)] if found == "worse" else [], inconclusive=inconclusive
    )


def invalid_sides(record: AbRecord) -> list[Side]:
    return [side for side in record.sides if side.validity == "invalid"]


def _threshold(args: argparse.Namespace) -> float:
    """``--threshold``, or the change of ``--fail-on``, which must not be another one."""
    from ..analyse.compare.statistics import NOISE
    from ..errors import UsageError

    given = [
        parse_share(flag, text)
        for flag, text in (("--threshold", args.threshold), ("--fail-on", args.fail_on))
        if text is not None
    ]
    if len(set(given)) > 1:
        raise UsageError(
            f"--fail-on {args.fail_on} is the threshold, but --threshold is {args.threshold}",
            remedy="give one of them",
        )
    return given[0] if given else NOISE


class ShownTurns(Live):
    """What is told while the turns are taken: the time they take, and a line for each."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(quiet=quiet, lines=True)
        self._turn_s = 0.0

    def announce(self, a: SideAsked, b: SideAsked, max_turns: int) -> None:
        """Tell what will be measured, and how long it takes at least."""
        from ..analyse.compare.sequential import MIN_TURNS
        from ..runner.ab import are_same, shortest_s
        from .terminal import whole_seconds

        for name, side in (("A", a), ("B", b)):
            given = f", {', '.join(side.settings)}" if side.settings else ""
            self.note(f"{name}: {side.plan.workload.name} on {side.plan.data}{given}")
        if are_same(a.plan, b.plan):
            self.note("A and B are the same: a difference would be a false alarm")
        least = shortest_s(a.plan, b.plan)
        if least is None:
            self.note("how long it takes is known after the warm-up of both sides")
            return
        first = whole_seconds((1 + MIN_TURNS) * least)
        line = f"a warm-up, then {MIN_TURNS} turns of 2 repetitions: at least {first}"
        if max_turns > MIN_TURNS:
            most = whole_seconds((1 + max_turns) * least)
            line += f"; if they do not tell, up to {max_turns} turns: at least {most}"
        self.note(line)

    def planned(self, record: AbRecord, turn_s: float) -> None:
        from ..report.ab import planned_line

        self._turn_s = turn_s
        self._expect(record)
        self.note(planned_line(record, turn_s))

    def turned(self, record: AbRecord) -> None:
        from ..report.ab import turn_line

        self._expect(record)
        self.note(turn_line(record))

    def _expect(self, record: AbRecord) -> None:
        """The turns that an answer takes at least; after these, each may be the last."""
        from ..analyse.compare.sequential import MIN_TURNS

        self.expect(max(1, MIN_TURNS - len(record.turns)) * self._turn_s, more=True)


VERB = Verb(
    help="two configurations in turns, until it is clear",
    description=(
        "Measure two datasets, storages or settings in turns, until a sequential test with a "
        "controlled error rate tells whether they differ by more than a threshold, or the budget "
        "ends. Print the ratio with its interval."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)

"""``iobench compare``: what became better or worse, by how much, and how certain that is."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .earlier import add_history, earlier_runs
from .gate import add_gate
from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
    from ..analyse.compare.comparison import Comparison
    from ..analyse.compare.pairs import Pairs
    from ..schema.record import RunRecord

EXAMPLES = """examples:
  iobench compare results/<run> results/<run>
  iobench compare results/<run> results/<run> --fail-on 2% --if-inconclusive warn
  iobench compare results/<run> results/<run> --across dataset.shard_size,dataset.codec \
--format markdown
  iobench compare results --by loader.workers --metric samples_per_s
  iobench compare results --over-time resnet50-h100

Each run is one value, the median of its repetitions: repetitions of one run share its hour and its
cache. The answer for a metric is 'equal' if the 95 % interval of the ratio lies within the
threshold (5 %, or that of --fail-on), else better or WORSE if the interval excludes 1, else 'not
told'. With 4 or more runs on each side the interval is that of an exact permutation test; with
fewer it needs the drift between runs, from earlier runs on the same host and storage (--history).
Where that is not known, 'iobench ab' measures both in turns. Runs that ask something else of the
storage, or read other data, are not comparable; --across names keys that may differ. --fail-on
passes what is told to be better or equal, and where the interval excludes a loss of the threshold.

--over-time shows all runs of a workload, oldest first, and where their level changed. Runs on
another machine or storage, and runs with other settings, are shown separately. A change is told if
at least two runs show it and 8 runs or more are there.

exit status: 0 ok, 1 failed, 2 nothing could be compared, 4 --fail-on: a metric is worse, or (unless
--if-inconclusive says otherwise) it is inconclusive
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="run directories, or directories of runs, e.g. results/<run>",
    )
    parser.add_argument(
        "--by",
        metavar="KEY",
        help="group all runs by this key of run.json or setting; the first value is the baseline",
    )
    parser.add_argument(
        "--across",
        default="",
        metavar="KEYS",
        help="keys that may differ between the runs, e.g. dataset.shard_size,dataset.format",
    )
    parser.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help="compare only this metric; repeatable: the intervals are then corrected (Holm)",
    )
    parser.add_argument(
        "--over-time",
        metavar="WORKLOAD",
        help="show the runs of this workload (of checkpoint studies: of this model) in one "
        "directory over time: trend, when it changed, and what else changed then (of "
        "samples_per_s, or of checkpoints blocked_s, or of --metric)",
    )
    add_history(parser, "those that are compared")
    add_gate(parser, "of the primary metric, or of those named by --metric")
    parser.add_argument("--include-invalid", action="store_true", help="also use INVALID runs")


def run(args: argparse.Namespace) -> int:
    if args.over_time is not None:
        from .over_time import show_over_time

        return show_over_time(args)
    from ..analyse.compare.comparison import best_first
    from ..analyse.compare.gate import gate, line_of
    from ..errors import UnknownNameError, UsageError
    from ..report.compare import NOTHING, sections
    from ..schema.metrics import COMPARED
    from .gate import status_of
    from .printing import print_report
    from .terminal import warn

    metrics = tuple(dict.fromkeys(args.metric or ()))
    for name in metrics:
        if name not in COMPARED:
            raise UnknownNameError("metric", name, COMPARED)
    across = (
        *filter(None, (key.strip() for key in args.across.split(","))),
        *([args.by] if args.by else []),
    )
    found = _pairs(args, across)
    compared = best_first(_compared(args, found, across, metrics))
    if not compared:
        why = f": {found.left_out[0]}" if found.left_out else ""
        raise UsageError(
            f"there is nothing to compare{why}",
            remedy="name two runs of one workload, or a directory of runs and --by KEY",
        )
    gated = gate(compared, metrics) if args.fail_on is not None else []
    document = {"comparisons": compared, "left_out": found.left_out, "gate": gated}
    print_report(args.format, document, sections(compared, found.left_out, gated))
    if all(each.obstacles for each in compared):
        first = compared[0]
        warn(f"not comparable: {first.obstacles[0]}. If this key may differ, name it with --across")
        return 2
    if not any(each.rows for each in compared):
        warn(f"nothing was compared: {NOTHING}")
        return 2
    if args.fail_on is None:
        return 0
    return status_of(
        args,
        [line_of(each) for each in gated if each.outcome == "failed"],
        [*(line_of(each) for each in gated if each.outcome == "inconclusive"), *found.unseen],
    )


def _pairs(args: argparse.Namespace, across: tuple[str, ...]) -> Pairs:
    from ..analyse.compare.pairs import by_key, by_place, read_place
    from ..errors import UsageError

    if not args.by and len(args.results) < 2:
        raise UsageError(
            "compare needs two places, or one place and --by KEY",
            remedy="name a baseline and a candidate, e.g. two run directories",
        )
    seen: set[Path] | None = set() if args.by else None
    places = [
        read_place(path, include_invalid=args.include_invalid, seen=seen) for path in args.results
    ]
    return by_key(places, args.by, across) if args.by else by_place(places, across)


def _compared(
    args: argparse.Namespace, found: Pairs, across: tuple[str, ...], metrics: tuple[str, ...]
) -> list[Comparison]:
    from ..analyse.compare.comparison import compare
    from ..analyse.compare.drift import drifts_of, needs_drift
    from ..analyse.compare.statistics import NOISE
    from ..schema.metrics import COMPARED
    from .common import parse_share

    threshold = parse_share("--fail-on", args.fail_on) if args.fail_on is not None else NOISE
    earlier: list[RunRecord] | None = None
    compared = []
    for baseline, candidate in found.pairs:
        drifts = {}
        if needs_drift(baseline, candidate):
            if earlier is None:
                earlier = earlier_runs(args)
            drifts = drifts_of(baseline, candidate, earlier, metrics or tuple(COMPARED))
        compared.append(
            compare(
                baseline,
                candidate,
                across=across,
                metrics=metrics,
                threshold=threshold,
                drifts=drifts,
            )
        )
    return compared


VERB = Verb(
    help="what became better or worse, also over time",
    description=(
        "Compare recorded runs: the first place is the baseline, each other one a candidate, and "
        "several candidates are listed best first. The runs of a directory are compared "
        "separately for each workload, and for each kind of host, storage, version and settings. "
        "With --over-time: one workload over time."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)

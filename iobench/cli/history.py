"""``iobench history``: the results of one workload over time."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .common import add_results
from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
    from ..schema.record import RunRecord

EXAMPLES = """examples:
  iobench history resnet50-h100
  iobench history resnet50-h100 --results results --metric read_bytes_per_s --json
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workload", help="recorded name of the workload (for checkpoint studies: of the model)"
    )
    add_results(parser, "of the runs")
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="metric to show (default: samples_per_s; for checkpoint studies: blocked_s)",
    )


def run(args: argparse.Namespace) -> int:
    from ..analyse.compare.collect import collect
    from ..analyse.compare.history import history
    from ..analyse.compare.runs import (
        question,
        usable,
        workload_of,
    )
    from ..errors import UnknownNameError, UsageError
    from ..report.history import document, sections
    from ..schema.metrics import COMPARED
    from .printing import print_report

    if args.metric is not None and args.metric not in COMPARED:
        raise UnknownNameError("metric", args.metric, COMPARED)
    found = collect(args.results)
    left_out = list(found.left_out)
    names = {args.workload, f"checkpoint {args.workload}"}
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for directory, doc in found.runs.items():
        if workload_of(doc) not in names:
            continue
        why = usable(doc, str(directory), include_invalid=True)
        if why:
            left_out.append(why)
        else:
            groups.setdefault((doc.host.node or "?", *question(doc)), []).append(doc)
    shown, metrics = [], set()
    for asked, runs in groups.items():
        metric = args.metric or (
            "blocked_s" if asked[1].startswith("checkpoint ") else "samples_per_s"
        )
        metrics.add(metric)
        rivals = [other for other in groups if other[:2] == asked[:2]]
        # Long facts are left out, such as the quantiles of all sample sizes.
        telling = [fact for fact in asked[2:] if not fact.endswith("=null") and len(fact) <= 60]
        apart = [fact for fact in telling if any(fact not in other for other in rivals)]
        one = history(
            f"{asked[1]} on {asked[0]}{' with ' if apart else ''}{', '.join(apart)}", runs, metric
        )
        if one.entries:
            shown.append(one)
    if not shown:
        if groups:
            raise UsageError(
                f"no run of {args.workload} in {args.results} measured "
                f"{' or '.join(sorted(metrics))}",
                remedy="choose another one with --metric",
            )
        if any(workload_of(doc) in names for doc in found.runs.values()):
            raise UsageError(
                f"no run of {args.workload} in {args.results} can be used: {left_out[-1]}",
                remedy="record a run that completes",
            )
        known = sorted({workload_of(doc) for doc in found.runs.values()})
        raise UsageError(
            f"{args.results} holds no run of {args.workload}",
            remedy=f"there are runs of: {', '.join(known)}",
        )
    print_report(args.format, document(shown, left_out), sections(shown, left_out))
    return 0


VERB = Verb(
    help="one workload over time: trend, when it changed, and what else changed then",
    description=(
        "Show all runs of a workload on each machine, oldest first. Runs that demand something "
        "else of the storage are shown separately."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)

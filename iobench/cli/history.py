"""``iobench history``: the results of one workload over time."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .common import add_results
from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..schema.record import RunRecord

MAX_FACT = 60
"""Longest fact, in characters, that a title shows."""

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
    from ..analyse.compare.history import history
    from ..analyse.compare.identity import place, settings_of, workload_of
    from ..analyse.compare.runs import collect, question, usable
    from ..errors import UnknownNameError, UsageError
    from ..report.history import sections
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
            settings = (f"{key}={value}" for key, value in sorted(settings_of(doc).items()))
            facts = dict.fromkeys((*question(doc), *place(doc), *settings))
            groups.setdefault(tuple(facts), []).append(doc)
    shown, metrics = [], set()
    titles = _titles(groups)
    for asked, runs in groups.items():
        metric = args.metric or (
            "blocked_s" if asked[0].startswith("checkpoint ") else "samples_per_s"
        )
        metrics.add(metric)
        one = history(titles[asked], runs, metric)
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
    document = {"histories": shown, "left_out": left_out}
    print_report(args.format, document, sections(shown, left_out))
    return 0


def _titles(groups: Mapping[tuple[str, ...], Sequence[RunRecord]]) -> dict[tuple[str, ...], str]:
    """``WORKLOAD on NODE with KEY=VALUE ...``: what sets the groups of one node apart."""
    titles = {}
    for facts in groups:
        node = _node(facts)
        rivals = [other for other in groups if other[0] == facts[0] and _node(other) == node]
        apart = [
            fact
            for fact in facts[1:]
            # Long facts are left out, such as the quantiles of all sample sizes.
            if not fact.endswith("=null")
            and (len(fact) <= MAX_FACT or fact.startswith("storage."))
            and any(fact not in other for other in rivals)
        ]
        title = f"{facts[0]} on {node}"
        titles[facts] = f"{title} with {', '.join(apart)}" if apart else title
    return titles


def _node(facts: Sequence[str]) -> str:
    key = "host.node="
    return next((fact.removeprefix(key) for fact in facts if fact.startswith(key)), "?")


VERB = Verb(
    help="one workload over time: trend, when it changed, and what else changed then",
    description=(
        "Show all runs of a workload, oldest first, and where their level changed. The value of a "
        "run is the median of its repetitions. Runs on another machine or storage, and runs with "
        "other settings, are shown separately. A change is told if at least "
        "two runs show it and 8 runs or more are there."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)

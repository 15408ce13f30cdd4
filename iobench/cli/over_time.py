"""``iobench compare --over-time WORKLOAD``: the results of one workload over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ask.compare.history import history
from ..ask.compare.identity import place as place_of
from ..ask.compare.identity import settings_of, workload_of
from ..ask.compare.runs import collect, question, usable
from ..base.errors import UnknownNameError, UsageError
from ..record.metrics import COMPARED
from ..record.run import RunRecord
from ..report.history import sections
from .printing import print_report
from .requests.understand import CompareRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MAX_FACT = 60
"""Longest fact, in characters, that a title shows."""


def show_over_time(request: CompareRequest) -> int:
    """Print the histories of ``request.over_time``; return the exit code."""
    workload, asked_metrics = request.over_time, request.metric or ()
    if len(request.results) != 1 or len(asked_metrics) > 1:
        raise UsageError(
            "--over-time shows one metric of the runs in one directory",
            remedy="name one directory of runs, and --metric once at most",
        )
    (place,), wanted = request.results, next(iter(asked_metrics), None)
    if wanted is not None and wanted not in COMPARED:
        raise UnknownNameError("metric", wanted, COMPARED)
    found = collect(place)
    left_out = list(found.left_out)
    names = {workload, f"checkpoint {workload}"}
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for directory, doc in found.runs.items():
        if workload_of(doc) not in names:
            continue
        why = usable(doc, str(directory), include_invalid=True)
        if why:
            left_out.append(why)
        else:
            settings = (f"{key}={value}" for key, value in sorted(settings_of(doc).items()))
            facts = dict.fromkeys((*question(doc), *place_of(doc), *settings))
            groups.setdefault(tuple(facts), []).append(doc)
    shown, metrics = [], set()
    titles = _titles(groups)
    for asked, runs in groups.items():
        metric = wanted or ("blocked_s" if asked[0].startswith("checkpoint ") else "samples_per_s")
        metrics.add(metric)
        one = history(titles[asked], runs, metric)
        if one.entries:
            shown.append(one)
    if not shown:
        if groups:
            raise UsageError(
                f"no run of {workload} in {place} measured {' or '.join(sorted(metrics))}",
                remedy="choose another one with --metric",
            )
        if any(workload_of(doc) in names for doc in found.runs.values()):
            raise UsageError(
                f"no run of {workload} in {place} can be used: {left_out[-1]}",
                remedy="record a run that completes",
            )
        known = sorted({workload_of(doc) for doc in found.runs.values()})
        raise UsageError(
            f"{place} holds no run of {workload}",
            remedy=f"there are runs of: {', '.join(known)}",
        )
    document = {"histories": shown, "left_out": left_out}
    print_report(request.format, document, sections(shown, left_out))
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

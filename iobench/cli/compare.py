"""``iobench compare``: what became better or worse, by how much, and how certain that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..ask.compare.comparison import Comparison, best_first, compare
from ..ask.compare.drift import drifts_of, needs_drift
from ..ask.compare.gate import gate, line_of
from ..ask.compare.history import history
from ..ask.compare.identity import place as place_of
from ..ask.compare.identity import settings_of, workload_of
from ..ask.compare.pairs import Pairs, by_key, by_place, read_place
from ..ask.compare.runs import collect, earlier_runs, question, usable
from ..base.errors import UnknownNameError, UsageError
from ..judge.statistics import NOISE
from ..record.metrics import COMPARED
from ..record.run import RunRecord
from ..report.compare import NOTHING, sections
from ..report.history import sections as sections_over_time
from .printing import print_report, status_of
from .terminal import warn
from .verbs import CompareRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def run(request: CompareRequest) -> int:
    if request.over_time is not None:
        return show_over_time(request)

    metrics = tuple(dict.fromkeys(request.metric))
    for name in metrics:
        if name not in COMPARED:
            raise UnknownNameError("metric", name, COMPARED)
    across = (
        *filter(None, (key.strip() for key in request.across.split(","))),
        *([request.by] if request.by else []),
    )
    found = _pairs(request, across)
    compared = best_first(_compared(request, found, across, metrics))
    if not compared:
        why = f": {found.left_out[0]}" if found.left_out else ""
        raise UsageError(
            f"there is nothing to compare{why}",
            remedy="name two runs of one workload, or a directory of runs and --by KEY",
        )
    gated = gate(compared, metrics) if request.fail_on is not None else []
    document = {"comparisons": compared, "left_out": found.left_out, "gate": gated}
    print_report(request.format, document, sections(compared, found.left_out, gated))
    if all(each.obstacles for each in compared):
        first = compared[0]
        warn(f"not comparable: {first.obstacles[0]}. If this key may differ, name it with --across")
        return 2
    if not any(each.rows for each in compared):
        warn(f"nothing was compared: {NOTHING}")
        return 2
    if request.fail_on is None:
        return 0
    return status_of(
        request,
        [line_of(each) for each in gated if each.outcome == "failed"],
        [*(line_of(each) for each in gated if each.outcome == "inconclusive"), *found.unseen],
    )


def _pairs(request: CompareRequest, across: tuple[str, ...]) -> Pairs:
    if not request.by and len(request.results) < 2:
        raise UsageError(
            "compare needs two places, or one place and --by KEY",
            remedy="name a baseline and a candidate, e.g. two run directories",
        )
    seen: set[Path] | None = set() if request.by else None
    places = [
        read_place(path, include_invalid=request.include_invalid, seen=seen)
        for path in request.results
    ]
    return by_key(places, request.by, across) if request.by else by_place(places, across)


def _compared(
    request: CompareRequest, found: Pairs, across: tuple[str, ...], metrics: tuple[str, ...]
) -> list[Comparison]:

    threshold = NOISE if request.fail_on is None else request.fail_on
    earlier: list[RunRecord] | None = None
    compared = []
    for baseline, candidate in found.pairs:
        drifts = {}
        if needs_drift(baseline, candidate):
            if earlier is None:
                earlier = earlier_runs(request.history, request.results)
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
    print_report(request.format, document, sections_over_time(shown, left_out))
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

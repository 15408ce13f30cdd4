"""``iobench compare``: what became better or worse, by how much, and how certain that is."""

from __future__ import annotations

from pathlib import Path

from ..ask.compare.comparison import Comparison, best_first, compare
from ..ask.compare.drift import drifts_of, needs_drift
from ..ask.compare.gate import gate, line_of
from ..ask.compare.history import histories
from ..ask.compare.pairs import Pairs, by_key, by_place, read_place
from ..ask.compare.runs import earlier_runs
from ..base.errors import UnknownNameError, UsageError
from ..judge.statistics import NOISE
from ..record.metrics import COMPARED
from ..record.run import RunRecord
from ..report.compare import NOTHING, sections
from ..report.history import sections as sections_over_time
from .printing import print_report, status_of
from .terminal import warn
from .verbs import CompareRequest


def run(request: CompareRequest) -> int:
    if request.over_time is not None:
        return _show_over_time(request, request.over_time)

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
    print_report(
        request.format, document, sections(compared, found.left_out, gated), details=request.details
    )
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


def _show_over_time(request: CompareRequest, workload: str) -> int:
    if len(request.results) != 1 or len(request.metric) > 1:
        raise UsageError(
            "--over-time shows one metric of the runs in one directory",
            remedy="name one directory of runs, and --metric once at most",
        )
    shown, left_out = histories(request.results[0], workload, next(iter(request.metric), None))
    document = {"histories": shown, "left_out": left_out}
    print_report(
        request.format, document, sections_over_time(shown, left_out), details=request.details
    )
    return 0

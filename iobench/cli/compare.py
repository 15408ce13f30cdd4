"""``iobench compare``: what became better or worse, by how much, and how certain that is."""

from __future__ import annotations

from ..ask.compare.comparison import best_first, gate, line_of
from ..ask.compare.history import histories
from ..ask.compare.pairs import compared_pairs, pairs_of
from ..base.errors import UsageError
from ..judge.statistics import NOISE
from ..record.metrics import check_compared
from ..report.compare import NOTHING, sections
from ..report.history import sections as sections_over_time
from .printing import print_report, status_of
from .terminal import warn, warn_of_left_out
from .verbs import CompareRequest


def run(request: CompareRequest) -> int:
    if request.over_time is not None:
        return _show_over_time(request, request.over_time)
    metrics = tuple(dict.fromkeys(request.metric))
    check_compared(*metrics)
    across = (*request.across, *([request.by] if request.by else []))
    found = pairs_of(
        request.results, request.by, across=across, include_invalid=request.include_invalid
    )
    compared = best_first(
        compared_pairs(
            found,
            across=across,
            metrics=metrics,
            threshold=NOISE if request.fail_on is None else request.fail_on,
            history=request.history,
            results=request.results,
        )
    )
    gated = gate(compared, metrics) if request.fail_on is not None else []
    document = {"comparisons": compared, "left_out": found.left_out, "gate": gated}
    print_report(request, document, sections(compared, found.left_out, gated))
    warn_of_left_out(found.left_out)
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


def _show_over_time(request: CompareRequest, workload: str) -> int:
    if len(request.results) != 1 or len(request.metric) > 1:
        raise UsageError(
            "--over-time shows one metric of the runs in one directory",
            remedy="name one directory of runs, and --metric once at most",
        )
    shown, left_out = histories(request.results[0], workload, next(iter(request.metric), None))
    document = {"histories": shown, "left_out": left_out}
    print_report(request, document, sections_over_time(shown, left_out))
    warn_of_left_out(left_out)
    return 0

"""What the repetitions of a serving run say together: the limit, and the bottleneck."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import get_args

from ...base.units import format_count, format_duration, format_percent
from ...record.run import RequestsRecord, ServingRecord
from ...record.serving import RequestWindow, ServedBottleneck, ServingVerdict, TrialKind
from ...record.verdict import Estimate
from ..statistics import NOISE, mean_interval, ratio_estimate

MAX_LATE = 0.1
"""The share of the limit that late wake-ups of the client may add to the slow requests."""

MAX_LATE_WINDOWS = 3
"""A window that breaks the limit because the client was late tells nothing of the storage, and is
tried again. After so many of them in a row the search ends."""

MAX_CPU_SHARE = 0.8
"""Of one core: with more, requests wait for the interpreter, which runs one thread at a time."""


def serving_verdict(doc: ServingRecord) -> ServingVerdict | None:
    """The verdict; None before the first repetition."""
    tried = doc.job.repetitions
    if not tried:
        return None
    known = {each.holds for each in tried}
    holds = known.pop() if len(known) == 1 else None
    gains = gains_of(doc)
    found, why = ("client", bound) if (bound := client_bound(doc)) else leading(gains)
    stage: ServedBottleneck = next(each for each in get_args(ServedBottleneck) if each == found)
    return ServingVerdict(
        holds=holds,
        bottleneck=stage,
        gains=gains,
        log_adds_s=_added(_pairs(doc, "without-log")),
        why=why,
        sentence=_sentence(doc, holds),
    )


def _pairs(doc: ServingRecord, kind: TrialKind) -> list[tuple[float, float]]:
    """The latency at the quantile in each repetition, and in the window of ``kind`` beside it."""
    both = zip(doc.job.repetitions, doc.job.of(kind), strict=False)
    found = [(one.quantile_s, other.quantile_s) for one, other in both]
    return [(one, other) for one, other in found if one is not None and other is not None]


def _added(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    """How much longer the first of each pair is: 0 or more, as a log makes nothing faster."""
    more = [one - other for one, other in pairs]
    if not more:
        return None
    value = max(0.0, fmean(more))
    if len(more) == 1:
        return Estimate(value=value)
    low, high = (max(0.0, end) for end in mean_interval(more))
    return Estimate(value=value, low=low, high=high, n=len(more))


def gains_of(doc: ServingRecord) -> dict[str, Estimate]:
    """How many times as long the requests at the quantile take as without each stage."""
    steps = [(one.quantile_s, one.without_accelerator_s) for one in doc.job.repetitions]
    pairs = {
        "storage": _pairs(doc, "without-storage"),
        "accelerator": [(one, other) for one, other in steps if one and other],
        "log": _pairs(doc, "without-log"),
    }
    found = {stage: ratio_estimate(each) for stage, each in pairs.items()}
    return {stage: estimate for stage, estimate in found.items() if estimate is not None}


def client_bound(doc: RequestsRecord) -> str:
    """Why the client limits what was measured; empty if it does not.

    Where nothing was repeated, the last windows of the search tell why it found no rate.
    """
    last = doc.job.repetitions or doc.job.of("find-max")[-MAX_LATE_WINDOWS:]
    return window_client_bound(last, doc.job.limit_s)


def window_client_bound(trials: Sequence[RequestWindow], limit_s: float) -> str:
    """The same of some windows."""
    late = [one.late_p99_s for one in trials if one.late_p99_s is not None]
    if late and median(late) > MAX_LATE * limit_s:
        return (
            f"1 % of the requests were issued {format_duration(median(late))} late or more, by "
            f"readers that were free: more than {format_percent(MAX_LATE)} of the limit of "
            f"{format_duration(limit_s)}"
        )
    busy = [one.cpu_share for one in trials if one.cpu_share is not None]
    if busy and median(busy) > MAX_CPU_SHARE:
        return (
            f"the process that issues the requests takes {format_percent(median(busy))} of a core, "
            "and its threads run one at a time"
        )
    return ""


def leading(gains: dict[str, Estimate]) -> tuple[str, str]:
    """The stage whose absence helps most, or ``inconclusive`` and why."""
    significant = {
        stage: gain
        for stage, gain in gains.items()
        if gain.low is not None and gain.low > 1 + NOISE
    }
    ranked = sorted(significant, key=lambda stage: -significant[stage].value)
    if not ranked:
        return "inconclusive", "no stage that was left out made a significant difference"
    if len(ranked) > 1 and (gains[ranked[0]].low or 0.0) <= gains[ranked[1]].value:
        return "inconclusive", f"{' and '.join(ranked)} make about the same difference"
    return ranked[0], ""


def quantile_text(quantile: float) -> str:
    """``p99`` or ``p99.9``."""
    return f"p{100 * quantile:.4g}"


def _sentence(doc: ServingRecord, holds: bool | None) -> str:
    job = doc.job
    spec, tried = job.scenario, job.repetitions
    limit = f"{format_duration(spec.limit)} at {quantile_text(spec.quantile)}"
    rate = f"{format_count(job.rate or 0.0)} requests/s"
    if holds is None:
        held = sum(bool(one.holds) for one in tried)
        return (
            f"At {rate} it is inconclusive whether this storage holds {limit}: {held} of "
            f"{len(tried)} repetitions did."
        )
    if holds:
        return f"This storage holds {limit} at {rate}."
    over = median(one.over for one in tried if one.over is not None)
    return (
        f"This storage does not hold {limit} at {rate}: {format_percent(over)} of the requests "
        "took longer or failed."
    )

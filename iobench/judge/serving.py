"""Runs that serve requests: the limit, the bottleneck, and the rules.

A verdict is on what all repetitions say together. A rule returns None if it finds no violation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Literal, TypeVar, get_args

from ..base.units import counted, format_count, format_duration, format_percent
from ..record.run import RequestsRecord, ServingRecord, TrainingRecord
from ..record.serving import (
    KvCacheRun,
    RequestWindow,
    ServedBottleneck,
    ServingRun,
    ServingVerdict,
    TrialKind,
)
from ..record.training import RunLog
from ..record.verdict import Estimate
from .cache import MAX_RESIDENT
from .rules_data import RuleOutcome, unknown
from .statistics import NOISE, mean_interval, ratio_estimate

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
    tried_log, of = any(one.logged for one in tried), doc.job.of
    missing = ["storage"] * (not of("without-storage"))
    missing += ["log"] * (tried_log and not of("without-log"))
    bound = why_client_bound(doc, gains)
    found, why = ("client", bound) if bound else leading(gains, missing, few=few_requests(doc.job))
    stage: ServedBottleneck = next(each for each in get_args(ServedBottleneck) if each == found)
    return ServingVerdict(
        holds=holds,
        bottleneck=stage,
        gains=gains,
        log_adds_s=_added(_pairs(doc, "without-log")),
        why=why,
        sentence=_sentence(doc, holds),
    )


W = TypeVar("W", bound=RequestWindow)


def beside(repetitions: Sequence[W], others: Sequence[W]) -> Iterator[tuple[W, W]]:
    """Each repetition with the window beside it without a stage, which has the same requests."""
    of_seed = {each.seed: each for each in others}
    return ((one, of_seed[one.seed]) for one in repetitions if one.seed in of_seed)


def _pairs(doc: ServingRecord, kind: TrialKind) -> list[tuple[float, float]]:
    """The latency at the quantile in each repetition, and in the window of ``kind`` beside it."""
    both = beside(doc.job.repetitions, doc.job.of(kind))
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
    found = {stage: ratio_estimate(each, ample=AMPLE) for stage, each in pairs.items()}
    return {stage: estimate for stage, estimate in found.items() if estimate is not None}


def why_client_bound(doc: RequestsRecord, gains: Mapping[str, Estimate]) -> str:
    """Why the client limits what was measured; empty if it does not.

    Where nothing was repeated, the last windows of the search tell why it found no rate. Where one
    stage clearly takes most of a latency that is far above the limit, being late by a part of the
    limit changes nothing: a client that is too slow for the rate is so without the stage, too.
    ``gains``: how many times as long the requests at the quantile take as without each stage.
    """
    last = doc.job.repetitions or doc.job.of("find-max")[-MAX_LATE_WINDOWS:]
    why = window_client_bound(last, doc.job.limit_s)
    known = [one.quantile_s for one in doc.job.repetitions if one.quantile_s is not None]
    left_out = any(one.kind.startswith("without-") for one in doc.job.trials)
    told = any((gain.low or 0.0) > HALF for gain in gains.values()) or not left_out
    if why and told and known:
        return window_client_bound(last, max(doc.job.limit_s, median(known))) and why
    return why


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


HALF = 2.0
"""What makes requests so many times as fast takes half of their time: nothing else takes more."""

AMPLE = 10.0
"""A stage is the bottleneck if each repetition is so many times as fast without it. How much faster
than that does not matter: without the stage, a few requests may be slow by chance."""


def leading(
    gains: dict[str, Estimate], not_left_out: Sequence[str] = (), *, few: str = ""
) -> tuple[str, str]:
    """The stage whose absence helps most, or ``inconclusive`` and why.

    ``not_left_out``: stages of which nothing is known, since time was short. ``few``: why the
    requests are too few, where they are.
    """
    least = HALF if not_left_out else 1 + NOISE
    significant = {
        stage: gain for stage, gain in gains.items() if gain.low is not None and gain.low > least
    }
    ranked = sorted(significant, key=lambda stage: -significant[stage].value)
    if not ranked and not_left_out:
        return "inconclusive", f"there was no time to leave out {', '.join(not_left_out)}"
    if not ranked:
        why = f"no stage that was left out made a significant difference{few and f', and {few}'}"
        return "inconclusive", why
    if len(ranked) > 1 and (gains[ranked[0]].low or 0.0) <= gains[ranked[1]].value:
        return "inconclusive", f"{' and '.join(ranked)} make about the same difference"
    return ranked[0], ""


def quantile_text(quantile: float) -> str:
    """``p99`` or ``p99.9``."""
    return f"p{100 * quantile:.4g}"


def _sentence(doc: ServingRecord, holds: bool | None) -> str:
    job = doc.job
    spec, tried = job.scenario, job.repetitions
    limit = f"limit of {format_duration(spec.limit)} at {quantile_text(spec.quantile)}"
    rate = f"{format_count(job.rate or 0.0)} requests/s"
    if holds is None:
        held = sum(bool(one.holds) for one in tried)
        return (
            f"At {rate} it is inconclusive whether the {limit} is held: {held} of {len(tried)} "
            "repetitions did."
        )
    if holds:
        return f"The {limit} is held at {rate}."
    over = median(one.over for one in tried if one.over is not None)
    return (
        f"The {limit} is not held at {rate}: {format_percent(over)} of the requests took longer or "
        "failed."
    )


MIN_REPETITIONS = 3

MIN_BEYOND = 10
"""Requests of a repetition that are slower than the quantile: with fewer, it is chance."""

BINNED = 0.2
"""Share of arrivals at the very instant of another one, above which a trace's clock was coarse."""


def client_bound(doc: RequestsRecord) -> RuleOutcome | None:
    why = why_client_bound(doc, doc.job.verdict.gains if doc.job.verdict is not None else {})
    if not why:
        return None
    decodes = isinstance(doc, ServingRecord) and doc.job.scenario.reader.decode
    other = ", free cores, or reader.decode=false" if decodes else ", or free cores"
    return RuleOutcome(why, f"the latencies are those of this client: use a lower --rate{other}")


def unsteady(doc: RequestsRecord) -> RuleOutcome | None:
    """Check that the latency did not grow for as long as requests arrived."""
    tried = doc.job.repetitions
    grows = [one for one in tried if one.steady is False]
    if any(one.steady is None for one in tried) and not grows:
        return unknown(
            "a repetition has too few requests to tell whether the latency grows",
            "use a longer --duration, or a larger dataset",
        )
    if 2 * len(grows) <= len(tried):
        return None
    known = [one.growth for one in grows if one.growth is not None]
    left = sum(one.unserved for one in grows)
    told = []
    if known:
        times = f"{median(known):.1f} x"
        told.append(f"the last fifth of the requests took {times} as long as the first fifth")
    if left:
        told.append(f"{counted(left, 'request')} had no free reader until the end")
    more = ", more reads in flight (--set reader.concurrency)" if left else ""
    return RuleOutcome(
        f"{format_count(doc.job.rate or 0.0)} requests/s are no rate that lasts: "
        f"{' and '.join(told) or 'no request was answered'}",
        f"requests arrive faster than they are answered: use a lower --rate{more}, or --find-max",
    )


def cold_residency(doc: ServingRecord) -> RuleOutcome | None:
    if doc.job.scenario.cache != "cold":
        return None
    remedy = "make sure that no other process reads the dataset, or set cache=any"
    trials = [one for one in doc.job.trials if one.kind != "without-storage"]
    cached = max((one.residency_before or 0.0 for one in trials), default=0.0)
    if cached > MAX_RESIDENT:
        return RuleOutcome(
            f"the run claims cold reads, but {format_percent(cached)} of the dataset was in the "
            "page cache",
            remedy,
        )
    gap = next((one for one in trials if one.residency_before is None), None)
    if gap is not None and not doc.job.direct and doc.storage.page_cache is not False:
        how = f": {gap.residency_how}" if gap.residency_how else ""
        return unknown(f"page-cache residency was not measured{how}", remedy)
    return None


def failures(doc: RequestsRecord) -> RuleOutcome | None:
    failed = sum(one.failed for one in doc.job.repetitions)
    if not failed:
        return None
    first = next((one.error for one in doc.job.repetitions if one.error), "")
    number = sum(one.requests for one in doc.job.repetitions)
    return RuleOutcome(
        f"{format_count(failed)} of {counted(number, 'request')} failed"
        + (f"; the first: {first}" if first else ""),
        "failed requests have no latency, and count as slower than the limit: repair the storage",
    )


def incomplete(doc: RequestsRecord) -> RuleOutcome | None:
    if doc.status == "ok" and doc.job.repetitions:
        return None
    what = f"the run's status is {doc.status}" + (f" ({doc.error})" if doc.error else "")
    if doc.status == "ok":
        what = "no rate was found that holds the limit, so nothing was repeated"
    return RuleOutcome(what, "run it again and let it finish, or give a --rate")


RepeatedKind = Literal["repetition", "find-max"]
"""Windows with all stages, whose latencies are told."""


def _needed(job: ServingRun | KvCacheRun) -> int:
    """The requests of a repetition of which enough are beyond the quantile to know it."""
    return round(MIN_BEYOND / (1 - job.scenario.quantile))


def few_requests(job: ServingRun | KvCacheRun, kind: RepeatedKind = "repetition") -> str:
    """Why the requests of a window of this kind are too few to know the quantile, if they are."""
    short = min((one.requests for one in job.of(kind)), default=None)
    if short is None or short >= _needed(job):
        return ""
    name = quantile_text(job.scenario.quantile)
    what = kind if kind == "repetition" else "window"
    return f"{counted(short, 'request')} in a {what} are too few for {name}"


def requests(doc: RequestsRecord) -> RuleOutcome | None:
    few, job = few_requests(doc.job), doc.job
    if not few:
        return None
    once = isinstance(job, ServingRun) and (
        job.scenario.cache,
        job.scenario.engine,
        job.direct,
    ) == ("cold", None, False)
    cut = "" if not once else ", or a larger dataset, of which each sample is read once"
    return RuleOutcome(few, f"use {format_count(_needed(job))} or more: a longer --duration{cut}")


def repetitions(doc: RequestsRecord) -> RuleOutcome | None:
    number = len(doc.job.repetitions)
    if number >= MIN_REPETITIONS or not number:
        return None
    return RuleOutcome(
        f"from {counted(number, 'repetition')}, little is known of how much the figures vary",
        f"run with --repeat {MIN_REPETITIONS}",
    )


def logs_of(doc: ServingRecord | TrainingRecord, *, every: bool = False) -> list[RunLog]:
    """The logs of the repetitions that wrote one, or of every window."""
    if isinstance(doc, TrainingRecord):
        return [one.log for one in doc.job.repetitions if one.log is not None]
    return [
        RunLog(
            left=one.log_left,
            backlog_max=one.log_backlog_max or 0,
            keeps_up=one.log_keeps_up,
            at_risk=one.log_at_risk,
            volatile=one.log_volatile,
        )
        for one in (doc.job.trials if every else doc.job.repetitions)
        if one.logged
    ]


def log_behind(doc: ServingRecord | TrainingRecord) -> RuleOutcome | None:
    """Check that the log took as many records as were written to it."""
    logs = logs_of(doc)
    behind = [one for one in logs if one.keeps_up is False]
    if 2 * len(behind) <= len(logs):
        return None
    worst = max(one.backlog_max for one in behind)
    left = sum(one.left for one in behind)
    lost = f", and {counted(left, 'record')} were not committed in time" if left else ""
    at, lower = "", "log.wait=true"
    if isinstance(doc, ServingRecord):
        at, lower = f" at {format_count(doc.job.rate or 0.0)} requests/s", "a lower --rate"
    return RuleOutcome(
        f"the log falls behind{at}: up to {counted(worst, 'record')} waited{lost}",
        f"commit in groups (log.commit=group), use more log.writers, or {lower}",
    )


def log_volatile(doc: ServingRecord | TrainingRecord) -> RuleOutcome | None:
    """Check that what was committed was on the storage."""
    lost = max((one.volatile or 0 for one in logs_of(doc, every=True)), default=0)
    if not lost:
        return None
    return RuleOutcome(
        f"{counted(lost, 'record')} that had been committed were in dirty pages of the page cache",
        "a sync of this file system or of a preloaded library does not write: repair that first",
    )


def log_unproven(doc: ServingRecord | TrainingRecord) -> RuleOutcome | None:
    """Check that it was seen what a crash would lose."""
    if all(one.at_risk is not None for one in logs_of(doc)):
        return None
    return RuleOutcome(
        "how many records a crash would lose was not seen: the log is on a file system whose dirty "
        "pages this host does not count",
        "count those that were not committed (log_backlog_max), or write the log to a local file",
    )


def trace_binned(doc: RequestsRecord) -> RuleOutcome | None:
    """Check that the clock of a trace was fine enough to tell its requests apart."""
    share = doc.job.arrivals_together
    if share is None or share <= BINNED:
        return None
    return RuleOutcome(
        f"{format_percent(share)} of the requests of the trace arrive at the very instant of "
        "another one",
        "its clock was coarse, so these bursts may not have been there: use a finer trace, or "
        "arrivals.kind=gamma",
    )

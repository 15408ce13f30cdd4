"""Rules for runs that serve requests. Each returns None if it finds no violation."""

from __future__ import annotations

from statistics import median

from ...base.units import counted, format_count, format_percent
from ...record.run import RequestsRecord, ServingRecord, TrainingRecord
from ...record.serving import ServingRun
from ...record.training import RunLog
from ..cache import MAX_RESIDENT
from ..rules_data import RuleOutcome, unknown
from . import verdict

MIN_REPETITIONS = 3

MIN_BEYOND = 10
"""Requests of a repetition that are slower than the quantile: with fewer, it is chance."""

BINNED = 0.2
"""Share of arrivals at the very instant of another one, above which a trace's clock was coarse."""


def client_bound(doc: RequestsRecord) -> RuleOutcome | None:
    why = verdict.client_bound(doc)
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
    return RuleOutcome(
        f"{format_count(doc.job.rate or 0.0)} requests/s are no rate that lasts: "
        f"{' and '.join(told) or 'no request was answered'}",
        "requests arrive faster than they are answered: use a lower --rate, or --find-max",
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


def requests(doc: RequestsRecord) -> RuleOutcome | None:
    """Check that enough requests are beyond the quantile to know it."""
    numbers = [one.requests for one in doc.job.repetitions]
    needed = round(MIN_BEYOND / (1 - doc.job.scenario.quantile))
    if not numbers or min(numbers) >= needed:
        return None
    name = verdict.quantile_text(doc.job.scenario.quantile)
    short = min(numbers)
    job = doc.job
    once = isinstance(job, ServingRun) and (
        job.scenario.cache,
        job.scenario.engine,
        job.direct,
    ) == ("cold", None, False)
    cut = "" if not once else ", or a larger dataset, of which each sample is read once"
    return RuleOutcome(
        f"{counted(short, 'request')} in a repetition are too few for {name}",
        f"use {format_count(needed)} or more: a longer --duration{cut}",
    )


def repetitions(doc: RequestsRecord) -> RuleOutcome | None:
    number = len(doc.job.repetitions)
    if number >= MIN_REPETITIONS or not number:
        return None
    return RuleOutcome(
        f"{counted(number, 'repetition')} tell little of how much the figures vary",
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
        "how many records a crash would lose was not seen: the log is no file on a file system "
        "whose dirty pages this host counts",
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

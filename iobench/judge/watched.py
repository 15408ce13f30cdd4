"""A training that ``iobench.watch`` measured: findings, the bottleneck, and advice.

No stage was measured alone, so the bottleneck is inferred, and no gain is promised. While a batch
was waited for, its worker computed, or waited itself, or the batch was made and on its way; in
which of these the time went, the counts of the loader's processes tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..base.units import counted, format_bytes, format_duration, format_percent, format_share
from ..record.job import UserFacts
from ..record.run import Finding, TrainingRecord
from ..record.verdict import Advice
from .evidence import Case, Decision, Evidence, LoaderWaits
from .promise import WORTH, Effect, advised, bringing
from .user_loader import (
    BESIDE_TRAINING,
    EVEN_SHARES,
    IN_TURNS,
    LOOK_AT_GROWTH,
    MIN_HELD_BACK,
    MOST_OF_MAKING,
    cheaper_collate,
    cheaper_start,
    could_have_workers,
    slow_worker,
    slower_epochs,
    uneven,
    waits_grow,
)

UNTESTED = (
    "a training that is watched runs once, as it is; iobench run --loader measures each stage alone"
)
NOT_IN_RATE = "waits for other ranks are inside of your training's step, and are not seen"


def watch_findings(doc: TrainingRecord) -> list[Finding]:
    """Findings about what was watched; none for another run."""
    return [*_found(doc)] if doc.job.subject.watched else []


def _found(doc: TrainingRecord) -> Iterator[Finding]:
    facts = doc.job.watched
    assert facts is not None
    here = len(facts.ranks)
    if here < facts.world:
        yield Finding(
            rule="watch.ranks",
            level="info",
            evidence=f"the record has {counted(here, 'rank')} of {facts.world}: the others ran on "
            "other hosts, were not watched, or ended before they left their figures",
            remedy="put iobench.watch around the loader of each rank",
        )
    if facts.lost:
        yield Finding(
            rule="watch.lost",
            level="warning",
            evidence=f"the counters failed, so later batches are not in the record: {facts.lost}",
            remedy="report this as a defect",
        )
    gpus = [gpu for host in doc.hosts for gpu in (host.model_extra or {}).get("gpus") or ()]
    if gpus and not facts.synchronized:
        yield Finding(
            rule="watch.device",
            level="info",
            evidence="busy is the time between batches as the training process saw it: work that "
            "the device went on with while the process waited for a batch counts as waiting",
            remedy="watch(..., synchronize=True) awaits the device, which makes steps longer",
        )
    if facts.resident_after is not None:
        yield Finding(
            rule="watch.residency",
            level="info",
            evidence=f"at the end, {format_percent(facts.resident_after)} of the files were in the "
            f"page cache ({facts.resident_how})",
        )


CLEAR = 2.0
"""The workers waited clearly longer for one of fetch and prep than for the other."""

MOST = 0.5
"""What takes this share of the waits is what to look at first."""


def training_is_fed(case: Case) -> bool:
    return case.evidence.fed


def unknown_loader(case: Case) -> str:
    shares = case.evidence.shares
    if shares.fetch is not None and shares.prep is not None and shares.fetch + shares.prep:
        return ""
    return "what the loader did while batches were waited for is unknown"


def workers_are_idle(case: Case) -> str:
    """Workers that compute hand their batches over late, too, so only idle ones tell the cause."""
    wait, seen = case.evidence.shares.wait, _seen(case)
    if not wait or seen.working is None or seen.working >= MOST * wait:
        return ""
    made = ""
    if seen.handed_over is not None and seen.handed_over >= MOST:
        made = f", and in {format_percent(seen.handed_over)} of the waits the batch was made"
    return (
        f"while batches were waited for, the workers mostly had nothing to do{made}: the time goes "
        "into handing batches over"
    )


def one_worker_is_slow(case: Case) -> str:
    seen = _seen(case)
    if seen.uneven is None or (seen.held_back or 0.0) < MIN_HELD_BACK:
        return ""
    return (
        f"{slow_worker(seen.uneven)}, and in {format_percent(seen.held_back or 0.0)} of the waits "
        "a later batch was ready and held back"
    )


def workers_compute(case: Case) -> str:
    fetch, prep = _waited(case)
    return _divided(case) if prep >= CLEAR * fetch else ""


def collate_takes_most(case: Case) -> str:
    collate = _seen(case).collate
    return (
        f"{_divided(case)}, most of it in collate_fn" if (collate or 0.0) >= MOST_OF_MAKING else ""
    )


def files_were_cached(case: Case) -> str:
    return f"{_divided(case)}, but not for its files" if case.evidence.cached else ""


def workers_wait(case: Case) -> str:
    fetch, prep = _waited(case)
    return f"{_divided(case)}: for storage, a network or a lock" if fetch >= CLEAR * prep else ""


def workers_do_both(case: Case) -> Decision:
    return Decision(bottleneck="storage", also=("prep",), reason=_divided(case))


def _seen(case: Case) -> LoaderWaits:
    return case.evidence.watched or LoaderWaits()


def _waited(case: Case) -> tuple[float, float]:
    """The shares of the time in which batches were waited for: for (fetch, prep)."""
    return case.evidence.shares.fetch or 0.0, case.evidence.shares.prep or 0.0


def _divided(case: Case) -> str:
    fetch, prep = _waited(case)
    computing = prep / (fetch + prep)
    return (
        f"while batches were waited for, the loader computed for {format_share(computing)} of the "
        f"time and waited for {format_share(1 - computing)} of it"
    )


def starting_workers(evidence: Evidence) -> bool:
    """Whether the workers' start takes most of the time until the first batch of each epoch."""
    starting, fill = evidence.starting, evidence.shares.fill
    return bool(starting and fill and starting >= MOST * fill)


UNTIL_STARTED = "waiting until its workers have started takes"


def until_started(evidence: Evidence) -> float:
    """The share of the time that is gained if workers start in none: that of no batch."""
    return min(evidence.starting or 0.0, evidence.shares.fill or 0.0, 0.99)


def at_most_without(share: float, what: str) -> str:
    """The most that is gained where what takes this share of the time is gone."""
    most = f"at most {1 / (1 - share):.2f} x: " if share < 1 else ""
    return f"{most}{what} {format_percent(share)} of the time"


def why_filling(evidence: Evidence) -> str:
    """What a training that was watched waited for at the start of its epochs; else empty."""
    if evidence.watched is None or not evidence.shares.fill:
        return ""
    until = ", most of it until its workers have started" if starting_workers(evidence) else ""
    share = format_percent(evidence.shares.fill)
    return f"the first batches of epochs are waited for {share} of the time{until}"


CAUSES = ("storage", "prep", "loader", "fill")
"""Stages of the user's own loader."""

KEEP_WORKERS = "set persistent_workers=True in the DataLoader, so that its workers start only once"

TEST = (
    "test the cause: put the function that makes this loader under iobench run --loader "
    "MODULE:FUNCTION"
)


def watched_advice(evidence: Evidence, decision: Decision) -> list[Advice]:
    """The change that fits what was seen, and how to find out what it brings."""
    basis, seen = at_most_without(*_taken(evidence, decision)), evidence.watched or LoaderWaits()
    changes = _changes(evidence, decision, seen)
    found = [Advice(change=change, basis=bound or basis) for change, bound in changes]
    started = until_started(evidence)
    if decision.bottleneck != "fill" and (seen.starts or 0) > 1 and started >= 1 - 1 / WORTH:
        found.append(Advice(change=KEEP_WORKERS, basis=at_most_without(started, UNTIL_STARTED)))
    return [*found, Advice(change=TEST, basis="the bottleneck was inferred from one training")]


OF_BATCHES = "waiting for batches, apart from the start of epochs, takes"


def _taken(evidence: Evidence, decision: Decision) -> tuple[float, str]:
    """The share of the time that the cause takes, and what takes it."""
    shares = evidence.shares
    if decision.bottleneck != "fill":
        return shares.wait or 0.0, OF_BATCHES
    if starting_workers(evidence):
        return until_started(evidence), UNTIL_STARTED
    return shares.fill or 0.0, "waiting for the first batches of epochs takes"


@advised(
    "none",
    change="no change of the loader is needed: faster storage would not speed up this training",
    basis="the training did not wait for batches {busy} of the time: without any wait it is at "
    "most {most:.2f} x as fast",
)
def watched_nothing(evidence: Evidence) -> Effect | None:
    """No change of the loader is worth the work: the training waits for little."""
    busy = evidence.utilization or 1.0
    return bringing(1.0, busy=format_percent(busy), most=1 / busy)


HAND_OVER_S, HAND_OVER_PER_BYTE_S = 1e-3, 1e-9
"""CPU time with which a worker and its rank hand over a batch of torch, at least.

For a batch of one number, 1.8 to 2.8 ms were measured, 40 % of it in the rank, and 1.4 to 2 ns more
for each byte.
"""

OF_RANK = 1 / 3
"""The part of that which the training waits for, at least."""


def _beside(evidence: Evidence, seen: LoaderWaits) -> tuple[float, str]:
    """What workers bring at most, where a loader has none, and why.

    They hide the waits for batches, if the cores can do as much at once: what they did before, and
    the work of handing batches over. The time that other processes took is left out.
    """
    waits, ranks = evidence.shares.wait or 0.0, evidence.accelerators
    queued_s = (evidence.own.fetch_queued_s if evidence.own is not None else None) or 0.0
    last = [each for each in evidence.job.repetitions if each.complete][-1]
    wall_s = last.wall_s or math.inf
    each_s = HAND_OVER_S + HAND_OVER_PER_BYTE_S * (seen.batch_bytes or 0.0)
    handed_s = last.steps * each_s
    waits = max(0.0, waits - OF_RANK * handed_s / ranks / wall_s)
    hidden = 1 / max(1 - waits, 0.01)
    cores = evidence.cores or math.inf
    busy = cores * (wall_s - queued_s / ranks) / ((last.cpu_s or 0.0) + handed_s)
    if hidden <= busy:
        return hidden, f"{at_most_without(waits, OF_BATCHES)}, beside what handing them over takes"
    return busy, (
        f"at most {busy:.2f} x: then your training, its batches, and at least "
        f"{format_duration(each_s)} to hand each of them over keep {cores:g} cores busy"
    )


LARGER_CALLS = (
    "make larger batches, or each batch by one call (__getitems__ of a map-style dataset): workers "
    "would take about as long to hand a batch over as the training now waits for it"
)
WAITS_ONCE = "train for longer: most of these waits are in the first epoch, and come only once"


def _changes(evidence: Evidence, decision: Decision, seen: LoaderWaits) -> list[tuple[str, str]]:
    """What to change: workers where there are none, and then the one that fits what was seen.

    Of each, what bounds its gain; empty: the time that the cause takes.
    """
    if evidence.waits_once and decision.bottleneck in ("storage", "prep"):
        return [(WAITS_ONCE, "")]
    slower, own = slower_epochs(evidence.job.repetitions[-1]), evidence.own
    if slower is not None:
        return [(f"{LOOK_AT_GROWTH} ({waits_grow(slower)})", "")]
    collates = seen.collate is not None and seen.collate >= MOST_OF_MAKING
    changes = []
    if decision.bottleneck not in ("fill", "loader") and could_have_workers(
        evidence.workers, evidence.cores
    ):
        gain, bound = _beside(evidence, seen)
        if gain < WORTH:
            return [(LARGER_CALLS, "")]
        changes = [(BESIDE_TRAINING, bound)]
    if decision.bottleneck in ("storage", "prep") and own is not None and own.busiest is not None:
        return [*changes, (f"{EVEN_SHARES} ({uneven(own)})", _evenly(evidence, own))]
    if collates or not changes:
        changes.append((_change(evidence, decision, seen), ""))
    return changes


def _evenly(evidence: Evidence, own: UserFacts) -> str:
    """What bounds the gain of even shares: the workers take as long for their batches as now."""
    last = [each for each in evidence.job.repetitions if each.complete][-1]
    wall_s = last.wall_s or math.inf
    each_s = (own.fetch_wall_s or 0.0) / len(own.batches_by_worker)
    least_s = max(each_s, wall_s * (1 - (evidence.shares.wait or 0.0)))
    return (
        f"at most {max(1.0, wall_s / least_s):.2f} x: then each worker makes batches for "
        f"{format_duration(each_s)} of the {format_duration(wall_s)}"
    )


def _change(evidence: Evidence, decision: Decision, seen: LoaderWaits) -> str:
    each = evidence.workers // max(1, evidence.accelerators)
    now = f"now {counted(each, 'worker')} for each rank"
    if decision.bottleneck == "fill":
        return _fill(evidence, seen)
    if decision.bottleneck == "loader":
        return (
            "make the hand-over of batches cheaper: smaller types (uint8 instead of float32), "
            f"fewer and larger tensors, smaller samples ({_size(seen)})"
        )
    if seen.uneven is not None and (seen.held_back or 0.0) >= MIN_HELD_BACK:
        return (
            f"find out why {slow_worker(seen.uneven)}. Or set in_order=False in the DataLoader if "
            "the order of batches does not matter"
        )
    if seen.pace and evidence.later is None and seen.pace[0] < evidence.required * seen.pace[1]:
        made, taken = map(format_duration, seen.pace)
        return (
            "keep more batches ready, by a larger prefetch_factor in the DataLoader (now "
            f"{seen.prefetch}). On average the workers make a batch in {made}, and your training "
            f"takes one in {taken}. But some batches, or some steps, take far longer than others"
        )
    if seen.held_back is not None and seen.held_back >= MOST:
        return (
            "find out what makes some batches slow, or set in_order=False in the DataLoader if "
            "their order does not matter"
        )
    if seen.collate is not None and seen.collate >= MOST_OF_MAKING:
        return cheaper_collate(seen.collate, seen.batch_bytes)
    if decision.bottleneck == "storage":
        return (
            "find out what the loader waits for. Of a storage or a network, keep more reads in "
            f"flight, by more workers, threads or a longer prefetch ({now}). Where that brings "
            f"nothing, use a faster one. But {IN_TURNS}"
        )
    if (evidence.shares.prep or 0.0) < CLEAR * (evidence.shares.fetch or 0.0):
        return (
            f"find out what the loader waits for, or hide it behind more workers ({now}). But "
            f"{IN_TURNS}"
        )
    if evidence.cores and evidence.workers < evidence.cores:
        return f"use more workers while cores are free ({now}, {evidence.cores:g} cores)"
    return "prepare the data before the training, or make decoding and transforms cheaper"


def _size(seen: LoaderWaits) -> str:
    return f"now {format_bytes(round(seen.batch_bytes or 0))} in a batch"


def _fill(evidence: Evidence, seen: LoaderWaits) -> str:
    anew = bool(evidence.workers) and (seen.starts or 0) > 1
    if evidence.later is not None and not anew:
        return WAITS_ONCE
    if not starting_workers(evidence):
        keep = f"{KEEP_WORKERS} (they were started {seen.starts} times), and " if anew else ""
        return f"{keep}make each batch cheaper, so that the first ones of an epoch are there sooner"
    if evidence.job.workload.epochs > 1 and seen.starts == 1:
        return "train for longer: the workers start only once"
    less = cheaper_start(evidence.own.start_method if evidence.own is not None else None)
    return f"{KEEP_WORKERS}, and {less}"

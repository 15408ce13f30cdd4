"""Where the time of each rank went, the balance of the workers, and CPU seconds by stage."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from ..base.units import format_percent
from ..judge.figures.ranktime import own_s, slow_rank
from ..record.run import TrainingRecord
from ..record.training import Repetition, WorkerLoad
from ..record.verdict import RankTime, WorkerTime
from .figures import TableOf
from .sections import Chart, Section

MAX_ROWS = 8

_OF_USER = {"fetch_s": "loader waits", "prep_s": "loader computes"}
"""The parts of a batch that a loader of the user's own makes: its waits need not be reads."""

PARTS = {
    "startup_s": "start-up",
    "fill_s": "fill",
    "fetch_s": "fetch",
    "prep_s": "prep",
    "wait_s": "wait",
    "copy_s": "copy",
    "busy_s": "busy",
    "sync_s": "sync",
    "saves_s": "saves",
    "lost_s": "stood still",
    "rest_s": "rest",
}
"""The parts of a rank's time, in the order in which they follow each other in a step."""


def time_sections(doc: TrainingRecord) -> list[Section]:
    """A table with a row for each rank of the repetition with the median rate.

    Of more than MAX_ROWS ranks it has the slowest ones, the fastest and the median one.
    """
    chosen = middle_repetition(doc)
    if chosen is None:
        return []
    _, repetition, of = chosen
    slow, user = slow_rank(repetition), doc.job.subject.users
    times = [each for each in repetition.ranks if each.wall_s > 0]
    shown = _choose(times)
    parts = {
        key: (_OF_USER if user else {}).get(key, label)
        for key, label in PARTS.items()
        if key == "busy_s" or any(getattr(each, key) for each in times)
    }
    rows = TableOf(shown, more=len(times) - len(shown))
    rows.add("rank", "rank")
    labels = {key.removesuffix("_s"): label for key, label in parts.items()}
    rows.add_each(labels, "share", _share)
    rows.data("wall_s")
    slowest_first = sorted(range(len(shown)), key=lambda at: own_s(shown[at]), reverse=True)
    chart = Chart(
        kind="parts",
        label=("rank",),
        y=tuple(labels),
        rows=tuple(slowest_first),
        note=_of_all(len(shown), len(times)),
    )
    return [
        rows.made(
            "time",
            f"Where the time went: shares of the wall time of each rank{of}",
            mark=lambda each: "slow" if slow and slow.rank == each.rank else "",
            charts=[chart],
            notes=_notes(repetition.worker_time, user=user),
        )
    ]


class Middle(NamedTuple):
    """The repetition with the median rate, and how a title names it, if it is one of several."""

    number: int
    repetition: Repetition
    of: str


def middle_repetition(doc: TrainingRecord) -> Middle | None:
    """The repetition with the median rate; None if none is known."""
    known = [
        (number, each)
        for number, each in enumerate(doc.job.repetitions)
        if each.complete and any(rank.wall_s > 0 for rank in each.ranks)
    ]
    known.sort(key=lambda pair: pair[1].samples_per_s or 0.0)
    if not known:
        return None
    number, repetition = known[(len(known) - 1) // 2]
    of = f", repetition {number + 1}" if len(doc.job.repetitions) > 1 else ""
    return Middle(number, repetition, of)


def _choose(times: list[RankTime]) -> list[RankTime]:
    if len(times) <= MAX_ROWS:
        return times
    ordered = sorted(times, key=own_s)
    chosen = [ordered[0], ordered[len(ordered) // 2], *ordered[-(MAX_ROWS - 2) :]]
    wanted = {each.rank for each in chosen}
    return [each for each in times if each.rank in wanted]


def _of_all(shown: int, ranks: int) -> str:
    if ranks < 2:
        return ""
    order = "The slowest first: by the time without start-up, waits for other ranks, and saves."
    if shown == ranks:
        return order
    return f"{shown} of {ranks} ranks: the slowest ones, the median and the fastest one. {order}"


def _share(rank: RankTime, part: str) -> float | None:
    part_s: float | None = getattr(rank, f"{part}_s")
    return None if part_s is None else part_s / rank.wall_s


def _notes(workers: WorkerTime | None, *, user: bool) -> tuple[str, ...]:
    if workers is None:
        return ()
    if workers.read is None or workers.prep is None or workers.idle is None:
        return (f"workers: not measured: {workers.not_measured}",)
    # For what a loader of the user's own waits is not known: reads, a network, a lock.
    read, prep = ("waiting", "computing") if user else ("reading", "preparing")
    return (
        f"workers: {format_percent(workers.read)} {read}, {format_percent(workers.prep)} {prep}, "
        f"{format_percent(workers.idle)} idle",
    )


MAX_WORKER_BARS = 16
MAX_WORKERS = 64


def worker_sections(doc: TrainingRecord) -> list[Section]:
    """Bars of the busy time for a batch, and a table, of the repetition with the median rate."""
    chosen = middle_repetition(doc)
    if chosen is None or not chosen.repetition.workers:
        return []
    _, repetition, of = chosen
    found = sorted(repetition.workers, key=lambda each: -each.s_per_batch)
    several = len({each.rank for each in found}) > 1
    count = len(found) + repetition.workers_left_out
    rows = TableOf(found[:MAX_WORKERS], more=count - len(found[:MAX_WORKERS]))
    rows.add_each({"rank": "rank", "worker": "worker"})
    rows.add("busy_per_batch_s", "busy, a batch", "s", lambda each: each.s_per_batch)
    rows.add("batches", "batches", "count")
    rows.add_each({"bytes_read": "read", "sample_bytes": "samples"}, "bytes")
    rows.add_each({"read_s": "in reads", "prep_s": "in decode", "cpu_s": "CPU"}, "s")
    chart = Chart(
        kind="bars",
        y=("busy_per_batch_s",),
        label=("rank", "worker") if several else ("worker",),
        y_label="busy time for a batch",
        rows=tuple(range(min(MAX_WORKER_BARS, len(found)))),
    )
    return [
        rows.made(
            "workers",
            f"Balance of the workers: busy time for a batch, the slowest first{of}",
            charts=[chart],
            notes=_worker_notes(found, count),
            where="pages",
        )
    ]


def worker_reasons(doc: TrainingRecord) -> list[str]:
    """Why the balance is not shown."""
    chosen = middle_repetition(doc)
    if chosen is None or chosen.repetition.workers:
        return []
    subject = doc.job.subject
    why = f"what the workers of loader '{subject.kind}' do is not known"
    return [f"Balance of the workers: {why if subject.reads_itself else 'it was not recorded'}."]


def _worker_notes(found: list[WorkerLoad], count: int) -> tuple[str, ...]:
    notes = ["Busy: waiting for reads, and in decompress, decode, check and collate."]
    if count > MAX_WORKER_BARS:
        notes.append(
            f"Bars of the slowest {MAX_WORKER_BARS} workers, and {count - MAX_WORKER_BARS:,} more."
        )
    if all(each.cpu_s is None for each in found):
        notes.append("The workers are threads of one process, whose CPU time is not divided.")
    return tuple(notes)


def cpu_s_per_gb(doc: TrainingRecord) -> float | None:
    """CPU seconds of all ranks and workers for a GB of stored samples: the median repetition."""
    taken = [
        each.cpu_s / each.sample_bytes * 1e9
        for each in doc.job.repetitions
        if each.complete and each.cpu_s is not None and each.sample_bytes
    ]
    return median(taken) if taken else None

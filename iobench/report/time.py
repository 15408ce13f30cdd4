"""Where the time of each rank went, and that of the workers."""

from __future__ import annotations

from ..analyse.figures.ranktime import own_s, slow_rank
from ..schema.record import TrainingRecord
from ..schema.training import Repetition
from ..schema.verdict import RankTime, WorkerTime
from ..units import format_percent
from .figures import figure, raw
from .sections import Cell, Chart, Column, Row, Section, Table

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
    number, repetition = chosen
    slow, user = slow_rank(repetition), doc.job.subject.users
    times = [each for each in repetition.ranks if each.wall_s > 0]
    shown = _choose(times)
    columns = {
        key: (_OF_USER if user else {}).get(key, label)
        for key, label in PARTS.items()
        if key == "busy_s" or any(getattr(each, key) for each in times)
    }
    rows = tuple(
        Row(
            cells=(
                Cell(value=each.rank, text=str(each.rank)),
                *(_share(getattr(each, key), each.wall_s) for key in columns),
                raw(each.wall_s),
            ),
            mark="slow" if slow is not None and slow.rank == each.rank else "",
        )
        for each in shown
    )
    of = f", repetition {number + 1}" if len(doc.job.repetitions) > 1 else ""
    title = f"Where the time went: shares of the wall time of each rank{of}"
    return [
        Table(
            id="time",
            title=title,
            columns=(
                Column(name="rank", label="rank", align="right"),
                *(
                    Column(name=key.removesuffix("_s"), label=label, unit="share", align="right")
                    for key, label in columns.items()
                ),
                Column(name="wall_s", unit="s", where="data"),
            ),
            rows=rows,
            charts=(
                Chart(
                    kind="parts",
                    label=("rank",),
                    y=tuple(key.removesuffix("_s") for key in columns),
                ),
            ),
            notes=_notes(repetition.worker_time, user=user),
            more=len(times) - len(shown),
        ),
    ]


def middle_repetition(doc: TrainingRecord) -> tuple[int, Repetition] | None:
    """Number and figures of the repetition with the median rate; None if none is known."""
    known = [
        (number, each)
        for number, each in enumerate(doc.job.repetitions)
        if each.complete and any(rank.wall_s > 0 for rank in each.ranks)
    ]
    known.sort(key=lambda pair: pair[1].samples_per_s or 0.0)
    return known[(len(known) - 1) // 2] if known else None


def _choose(times: list[RankTime]) -> list[RankTime]:
    if len(times) <= MAX_ROWS:
        return times
    ordered = sorted(times, key=own_s)
    chosen = [ordered[0], ordered[len(ordered) // 2], *ordered[-(MAX_ROWS - 2) :]]
    wanted = {each.rank for each in chosen}
    return [each for each in times if each.rank in wanted]


def _of_all(shown: int, ranks: int) -> tuple[str, ...]:
    if ranks < 2:
        return ()
    order = "The slowest first: by the time without start-up, waits for other ranks, and saves."
    if shown == ranks:
        return (order,)
    some = f"{shown} of {ranks} ranks: the slowest ones, the median and the fastest one."
    return (f"{some} {order}",)


def _share(part_s: float | None, wall_s: float) -> Cell:
    return figure(None if part_s is None else part_s / wall_s, format_percent)


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

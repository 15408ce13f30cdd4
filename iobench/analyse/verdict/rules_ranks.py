"""Rules about the ranks of a run: whether one of them holds up the others."""

from __future__ import annotations

from ...schema.record import TrainingRecord
from ...schema.training import Repetition
from ...units import format_duration, format_percent
from .ranktime import INDEPENDENT, usual_slow_rank
from .rules_data import Outcome, complete
from .rules_hosts import host_name

MIN_STILL = 0.01
"""A rank that stood still for this share of a repetition, or for longer, is named."""


def stood_still(doc: TrainingRecord) -> Outcome | None:
    """Check that no rank stood still: in a wait, or for longer than emulated steps make up for.

    If all ranks of one of several hosts did, it was the host.
    """
    told = []
    for number, each in enumerate(doc.job.repetitions):
        for who, still_s in _still(doc, each):
            told.append(
                f"{who} stood still for more than {format_duration(still_s)} in repetition {number}"
            )
    if not told:
        return None
    more = f", and {len(told) - 3} more" if len(told) > 3 else ""
    return Outcome(
        "; ".join(told[:3]) + more + ": that time counts, and says nothing about the storage",
        "find out what stopped the processes there (a signal, swapping, a virtual machine or a "
        "container that was paused, a host with too much to do), and measure again",
    )


def _still(doc: TrainingRecord, repetition: Repetition) -> list[tuple[str, float]]:
    """Who stood still in a repetition, and for how many seconds."""
    still = {
        each.rank: each.lost_s
        for each in repetition.ranks
        if each.lost_s > MIN_STILL * each.wall_s > 0
    }
    found = []
    for number, host in enumerate(doc.job.hosts):
        ranks = range(host.first_rank, host.first_rank + host.ranks)
        if len(doc.job.hosts) > 1 and ranks and all(rank in still for rank in ranks):
            found.append((host_name(doc, number), max(still.pop(rank) for rank in ranks)))
    return found + [(f"rank {rank}", still_s) for rank, still_s in still.items()]


def uneven(doc: TrainingRecord) -> Outcome | None:
    """Check that no rank holds up the others by more than 5 % of the time.

    It must be the same rank in more than half of the repetitions: one that is slow once, or ranks
    that are slow in turn, are jitter. Records of older versions do not have the ranks' times.
    """
    slow = usual_slow_rank(
        [each for each in complete(doc) if each.ranks and each.sync != INDEPENDENT]
    )
    if slow is None:
        return None
    return Outcome(
        f"rank {slow.rank} waited {format_duration(slow.wait_s)} for its batches, and the others "
        f"{format_duration(slow.others_wait_s)} on average: they wait for it, which costs "
        f"{format_percent(slow.share)} of the time",
        "find out what this rank does differently: the shards that it reads, its path to the "
        "storage, or the cores and the memory that its workers use; with accelerator.sync=none no "
        "rank waits for another one",
    )

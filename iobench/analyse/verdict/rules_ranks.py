"""Rules about the ranks of a run: whether one of them holds up the others."""

from __future__ import annotations

from ...schema.record import TrainingRecord
from ...units import format_duration, format_percent
from .ranktime import INDEPENDENT, usual_slow_rank
from .rules_data import Outcome, complete


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

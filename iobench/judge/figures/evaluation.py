"""The passes of evaluation of a repetition, from their own events."""

from __future__ import annotations

import numpy as np

from ...record.training import EvaluationUse
from .events import Events, epoch_ends_ns, rank_epochs

EVALUATED = "evaluate"
"""The phase of these events."""


def evaluation_of(events: Events | None) -> EvaluationUse | None:
    """What the passes did, over all ranks; None without any."""
    if events is None or not len(events["step"]):
        return None
    parts = list(rank_epochs(events))
    ends, ranks = epoch_ends_ns(parts), len({part.rank for part in parts})
    busy_s, wait_s = (
        float(np.asarray(events[name], dtype=np.int64).sum()) / 1e9 / ranks
        for name in ("busy_ns", "wait_ns")
    )
    samples = int(np.asarray(events["samples"], dtype=np.int64).sum())
    wall_s = sum(ends.values()) / 1e9
    return EvaluationUse(
        passes=len(ends),
        samples=samples,
        wall_s=wall_s,
        busy_s=busy_s,
        wait_s=wait_s,
        samples_per_s=samples / wall_s if wall_s > 0 else None,
        accelerator_utilization=min(1.0, busy_s / wall_s) if busy_s and wall_s > 0 else None,
    )

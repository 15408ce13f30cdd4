"""How the times of the steps are spread: their quantiles, over all ranks of a repetition.

Pure functions of events. A quantile is given only as far as the steps tell it: one beyond which
less than one step lies is the longest step of a few, and not a quantile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .metrics import quantiles
from .rankepochs import Array, Events

LEVELS = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999)
KINDS = ("wait", "read", "prep", "step")
_STEP = ("wait_ns", "copy_ns", "busy_ns", "checkpoint_ns", "sync_ns", "lost_ns")


@dataclass(frozen=True, slots=True)
class Spread:
    """One kind of time. ``quantiles``: seconds by the LEVELS that so many steps tell."""

    steps: int
    quantiles: dict[float, float]
    longest_s: float
    merged: bool  # a row is the mean of several steps, which hides the ends


def spreads(events: Events) -> dict[str, Spread]:
    """By the names of KINDS: the wait for a batch, its reads and preparation, and the whole step.

    ``events`` are those of one repetition. A kind that nobody recorded is left out: its times are
    all 0, as those of a loader library.
    """
    if not len(events["step"]):
        return {}
    steps = np.maximum(events["steps"].astype(np.float64), 1.0)
    whole = sum(events[name].astype(np.float64) for name in _STEP if name in events)
    times: dict[str, Array] = {
        "wait": events["wait_ns"].astype(np.float64),
        "read": events["read_ns"].astype(np.float64),
        "prep": events["prep_ns"].astype(np.float64),
        "step": np.asarray(whole),
    }
    total = float(steps.sum())
    levels = [level for level in LEVELS if total * (1 - level) >= 1 - 1e-9]
    found = {}
    for kind, ns in times.items():
        each = np.maximum(ns, 0.0) / steps
        if not each.any():
            continue
        found[kind] = Spread(
            steps=int(total),
            quantiles=dict(zip(levels, quantiles([each], [steps], levels), strict=True)),
            longest_s=float(each.max()) / 1e9,
            merged=bool((steps > 1).any()),
        )
    return found

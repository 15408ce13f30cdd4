"""When a warm-up is over: from the times of its steps, by the point where they change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_WARM_UP_STEPS = 200

_AFTER = 5
"""Steps of about the same time that must follow the change."""

_SPREAD = 0.1
"""Relative deviation of these steps from their median that still counts as constant."""


def change_point(times: Sequence[float]) -> int:
    """Return where the level of ``times`` changes: the first index of the later level.

    It is the split with the least sum of squares of the logarithms around the means of the two
    parts (a single change in the mean; Hinkley, Biometrika 57, 1970). 0 for fewer than two times.
    """
    if len(times) < 2:
        return 0
    logs = np.log(np.maximum(np.asarray(times, dtype=np.float64), 1e-9))
    splits = range(1, len(logs))
    costs = [logs[:at].var() * at + logs[at:].var() * (len(logs) - at) for at in splits]
    best = int(np.argmin(costs))
    # A split must explain clearly more than none does; noise always allows a little.
    return splits[best] if costs[best] < 0.5 * logs.var() * len(logs) else 0


def settled(times: Sequence[float]) -> bool:
    """Whether enough steps of about the same time follow the last change of their level."""
    after = np.asarray(times[change_point(times) :], dtype=np.float64)[-_AFTER:]
    if len(after) < _AFTER:
        return False
    level = float(np.median(after))
    return bool((np.abs(after / level - 1) <= _SPREAD).all())

"""Steps per second where loading and computing overlap: a closed queue of two stations.

A job keeps ``tokens`` batches under way: one is being computed on, and the others are read, or wait
until they are taken. So two stations hand a fixed number of tokens to each other. The rate is below
that of the slower station, and most so where both are about as fast: the knee is round.

For exponential times the rate is exact (J. P. Buzen, "Computational Algorithms for Closed Queueing
Networks with Exponential Servers", CACM 16(9), 1973; two stations are the M/M/1 queue with room for
K): with q the time of the faster station over that of the slower one, the slower one works the
share (1 - q^K) / (1 - q^(K + 1)) of the time. Times that vary less have the knee of more tokens:
1 + (K - 1) / v, where v is the squared coefficient of variation. That is exact for one token, for
v = 1, and for v = 0, where the rate is that of the slower station. Between, a simulation with gamma
distributed times agrees within 1 % for five tokens and more; with two, the rule is up to 7 % too
fast.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MIN_VARIATION = 1e-3
"""Less than this counts as this: the rate is then within 1e-3 of that of the slower station."""


def cycle_s(
    supply_s: Floats | float,
    step_s: Floats | float,
    *,
    tokens: float,
    variation: Floats | float = 1.0,
) -> Floats:
    """Seconds from one step to the next, on average.

    ``supply_s``: seconds in which the storage delivers what a step takes, if nobody else is served;
    ``step_s``: seconds of a step whose batch is there. ``tokens``: at least 1. ``variation``: the
    squared coefficient of variation of both times, 0 to 1. Arrays are taken element by element.

    Raises ValueError for fewer than one token, or a time that is negative or not finite.
    """
    supply, step = np.asarray(supply_s, dtype=np.float64), np.asarray(step_s, dtype=np.float64)
    fine = np.isfinite(supply).all() and np.isfinite(step).all()
    if tokens < 1 or not fine or (supply < 0).any() or (step < 0).any():
        raise ValueError("a queue needs at least one token, and finite times of 0 or more")
    slow, fast = np.maximum(supply, step), np.minimum(supply, step)
    spread = np.clip(np.asarray(variation, dtype=np.float64), MIN_VARIATION, 1.0)
    places = 1 + (tokens - 1) / spread
    ratio = np.divide(fast, slow, out=np.zeros(np.broadcast(fast, slow).shape), where=slow > 0)
    found: Floats = slow / _busy(ratio, places)
    return found


def _busy(ratio: Floats, places: Floats) -> Floats:
    """(1 - q^K) / (1 - q^(K + 1)), which is K / (K + 1) for q = 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log(np.minimum(ratio, 1 - 1e-9))
        found: Floats = np.expm1(places * log) / np.expm1((places + 1) * log)
    return np.where(ratio > 0, found, 1.0)

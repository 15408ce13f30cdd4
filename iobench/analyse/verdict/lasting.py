"""The rate that lasts, where each repetition of a run falls to a lower one and stays there.

A training goes on for longer than a burst. So the verdict, its promises and the accelerators that
the storage feeds rest on the rate after the fall, and what was measured before it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median

from ...schema.training import Rates, Repetition
from .rates import Fall, lasting_fall


@dataclass(frozen=True, kw_only=True, slots=True)
class Lasting:
    """Medians over the repetitions: when the rate falls, and the rates of both sides, samples/s.

    ``low`` and ``high``: the rates after the fall of the slowest and the fastest repetition.
    ``share``: the rate after the fall over the mean of the whole repetition.
    """

    at_s: float
    before: float
    after: float
    low: float
    high: float
    share: float


def lasting(repetitions: Sequence[Repetition]) -> Lasting | None:
    """What lasts, if all complete repetitions fall; None if one of them does not."""
    done = [each for each in repetitions if each.complete]
    found: list[tuple[Fall, float]] = []
    for each in done:
        fall = None if each.rates is None else _fall(each.rates)
        if each.rates is None or fall is None:
            return None
        found.append((fall, fmean(each.rates.samples_per_s)))
    if not found:
        return None
    after = [fall.after for fall, _ in found]
    return Lasting(
        at_s=median(fall.at_s for fall, _ in found),
        before=median(fall.before for fall, _ in found),
        after=median(after),
        low=min(after),
        high=max(after),
        share=median(fall.after / mean for fall, mean in found),
    )


def _fall(rates: Rates) -> Fall | None:
    return _found(rates.bin_s, tuple(rates.samples_per_s), tuple(rates.stored_bytes_per_s))


@lru_cache(maxsize=256)
def _found(bin_s: float, samples: tuple[float, ...], stored: tuple[float, ...]) -> Fall | None:
    """Many rules ask for the same repetition, and a permutation test takes a while."""
    return lasting_fall(
        Rates(bin_s=bin_s, samples_per_s=list(samples), stored_bytes_per_s=list(stored))
    )

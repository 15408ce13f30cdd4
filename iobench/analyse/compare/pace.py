"""How fast one host is, from runs of the same identity, and how far their storage can grow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from ...schema.claim import Drift
from ...schema.record import TrainingRecord
from ...schema.verdict import Estimate
from ..verdict.fed import delivered
from ..verdict.judged import gather
from .claims import MIN_DEGREES
from .losses import without_saves
from .student import quantile

METRIC = "samples_per_s"

Basis = Literal["runs", "drift", "repetitions"]
"""What an interval rests on: the runs of the group, the runs and the drift that is known of their
place, or the repetitions of the runs, which tell nothing about another day."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Samples/s of one host, without the time of saves.

    ``values`` has the median of each run. ``low`` and ``high`` are the 95 % interval of the rate of
    such runs; with the basis ``repetitions`` they are the slowest and the fastest repetition.
    """

    runs: tuple[TrainingRecord, ...]
    values: tuple[float, ...]
    middle: float
    low: float
    high: float
    basis: Basis
    utilization: float | None  # sustained
    # What the storage delivers to all hosts together, in samples/s; None: not measured
    storage: Estimate | None
    preparation_s: float | None  # to write the loader's own layout once, for one sample
    drift: Drift | None = None

    @property
    def hosts(self) -> int:
        """The number of hosts that each run had."""
        return max(1, len(self.runs[0].hosts))

    @property
    def type(self) -> str:
        """The type of instance that the runs recorded; empty if they did not."""
        return self.runs[0].host.instance_type or ""


def pace_of(runs: Sequence[TrainingRecord], drift: Drift | None = None) -> Pace | None:
    """The pace of runs of the same identity; None if they measured no rate.

    ``drift``: how much such runs differ from one another, as earlier runs tell.
    """
    hosts = max(1, len(runs[0].hosts)) if runs else 1
    rates = {id(doc): [rate / hosts for rate in _rates(doc)] for doc in runs}
    counted = tuple(doc for doc in runs if rates[id(doc)])
    if not counted:
        return None
    values = tuple(median(rates[id(doc)]) for doc in counted)
    every = [rate for doc in counted for rate in rates[id(doc)]]
    interval = _between(values, drift)
    low, high = interval or (min(every), max(every))
    used = [
        used
        for doc in counted
        for repetition in doc.job.repetitions
        if repetition.complete
        and (used := repetition.accelerator_utilization_sustained) is not None
    ]
    return Pace(
        runs=counted,
        values=values,
        middle=median(values),
        low=min(low, median(values)),
        high=max(high, median(values)),
        basis="repetitions" if interval is None else "drift" if drift else "runs",
        utilization=median(used) if used else None,
        storage=_storage(counted),
        preparation_s=_preparation(counted),
        drift=drift,
    )


def _rates(doc: TrainingRecord) -> list[float]:
    done = [without_saves(each) for each in doc.job.repetitions if each.complete]
    return [rate for rate in done if rate]


def _between(values: Sequence[float], drift: Drift | None) -> tuple[float, float] | None:
    """Student's t interval of the geometric mean of runs; None with too few degrees of freedom."""
    logs = [math.log(value) for value in values]
    middle = fmean(logs)
    degrees = len(logs) - 1 + (drift.degrees if drift else 0)
    if degrees < MIN_DEGREES:
        return None
    squares = sum((log - middle) ** 2 for log in logs)
    squares += drift.sd**2 * drift.degrees if drift else 0.0
    half = quantile(degrees, 0.05) * math.sqrt(squares / degrees / len(logs))
    half = min(half, 60.0)  # a record of somebody else may hold any rates
    return math.exp(middle - half), math.exp(middle + half)


def _storage(runs: Sequence[TrainingRecord]) -> Estimate | None:
    """What the storage delivers: the median of the runs, with the widest of their intervals."""
    found = [
        supply for doc in runs if not gather(doc).cached and (supply := delivered(doc)) is not None
    ]
    if not found:
        return None
    lows, highs = [each.low for each in found], [each.high for each in found]
    known = None not in lows and None not in highs
    return Estimate(
        value=median(each.value for each in found),
        low=min(low for low in lows if low is not None) if known else None,
        high=max(high for high in highs if high is not None) if known else None,
        n=len(found),
    )


def _preparation(runs: Sequence[TrainingRecord]) -> float | None:
    """Seconds to convert one sample on one host; None if the loader has no layout of its own."""
    known = [
        layout.seconds / samples
        for doc in runs
        if (layout := doc.job.loader.layout) and (samples := doc.job.dataset.samples)
    ]
    return median(known) if known else None

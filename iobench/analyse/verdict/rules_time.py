"""Rules that check that the rate does not depend on when it was measured.

One looks within repetitions, the other compares the first repetition with the later ones. Each
rule returns None if it finds no violation, or if the run is too short to say anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, stdev
from typing import NamedTuple

from ...schema.record import TrainingRecord
from ...schema.training import Rates
from ...units import counted, format_count, format_duration, format_percent
from ..compare.statistics import NOISE
from ..compare.student import quantile
from .rates import MIN_BIN_S, MIN_BINS, Fall, lasting_fall
from .rules_cache import is_cold, uncached
from .rules_data import Outcome, unknown

MIN_OTHERS = 3
"""Repetitions after the first one that are needed to know how much they differ."""


class Found(NamedTuple):
    """The fall in one repetition, by its number."""

    repetition: int
    fall: Fall


def measured_rates(doc: TrainingRecord) -> Iterator[tuple[int, Rates]]:
    """(number, rates) of each complete repetition for which they are recorded."""
    for number, repetition in enumerate(doc.job.repetitions):
        if repetition.complete and repetition.rates is not None:
            yield number, repetition.rates


def falls(doc: TrainingRecord) -> list[Found]:
    """The lasting falls of the rate within repetitions, in the order of the repetitions."""
    found = ((number, lasting_fall(rates)) for number, rates in measured_rates(doc))
    return [Found(number, fall) for number, fall in found if fall is not None]


def rate_falls(doc: TrainingRecord) -> Outcome | None:
    """Check that no repetition becomes slower, and stays slow until its end."""
    long = [
        one
        for one in doc.job.repetitions
        if one.complete and (one.wall_s or 0) >= MIN_BINS * MIN_BIN_S
    ]
    if any(one.rates is None for one in long):
        return unknown(
            "how the rate changes within a repetition was not recorded",
            "compute it from the events, with iobench report and the run's directory",
        )
    found = falls(doc)
    if not found:
        return None
    number, fall = max(found, key=lambda each: 1 - each.fall.share)
    others = len(found) - 1
    more = f", and a fall in {counted(others, 'other repetition')}" if others else ""
    return Outcome(
        f"the rate of repetition {number} falls after {format_duration(fall.at_s)} of loading, "
        f"from {format_count(fall.before)} to {format_count(fall.after)} samples/s "
        f"({format_percent(1 - fall.share)} less), and stays there{more}",
        "burst credits that are spent, a drive that slows down because of heat, or a cache that is "
        "full does this: measure for longer, since a training gets the rate after the fall",
    )


class FirstTouch(NamedTuple):
    """Rates of the first repetition, and of the later ones, in samples/s."""

    first: float
    others: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.others)

    @property
    def differs(self) -> bool:
        """Whether the first rate is outside the 99 % prediction interval of the others.

        It must also differ from their mean by more than the noise threshold. Source: G. J. Hahn and
        W. Q. Meeker, "Statistical intervals", 1991 (one future value of a normal distribution).
        """
        count = len(self.others)
        reach = quantile(count - 1, 0.01) * stdev(self.others) * math.sqrt(1 + 1 / count)
        return abs(self.first - self.mean) > max(reach, NOISE * self.mean)


def first_touch(doc: TrainingRecord) -> Outcome | None:
    """Check that the first repetition is as fast as the later ones, which read the same bytes.

    A cache that is below this host's page cache serves what was read before, and neither residency
    nor the bytes that the host fetched show it.
    """
    done = doc.job.repetitions
    if doc.job.workload.cache == "warm" or not done or not done[0].complete:
        return None
    rates = [one.samples_per_s for one in done if one.complete]
    if len(rates) < 1 + MIN_OTHERS:
        return None
    known = tuple(rate for rate in rates if rate is not None)
    if len(known) < len(rates):
        return unknown("the rate of each repetition was not measured")
    touch = FirstTouch(known[0], known[1:])
    if not touch.differs:
        return None
    slower = touch.first < touch.mean
    others = counted(len(touch.others), "later repetition")
    evidence = (
        f"the first repetition reached {format_count(touch.first)} samples/s, and the {others} "
        f"{format_count(touch.mean)} on average, [{format_count(min(touch.others))}, "
        f"{format_count(max(touch.others))}]"
    )
    if not slower:
        return Outcome(
            f"{evidence}: the storage became slower",
            "burst credits, heat, a cache that is full, or other users do this: measure for "
            "longer, and report the rate of the later repetitions",
        )
    if is_cold(doc) or uncached(doc):
        return Outcome(
            f"{evidence}: a cache that this host cannot see may have served what was read before",
            "use a dataset larger than the caches of the server, the controller and the drive; "
            "until then, report the first repetition as the cold rate (with --calibration 0, "
            "which reads nothing before it)",
        )
    return Outcome(
        f"{evidence}: a cache may have served what was read before",
        "set cache: cold, which empties this host's page cache before each epoch; if that changes "
        "nothing, the cache is the server's, and the dataset must be larger than it",
    )

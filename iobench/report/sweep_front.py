"""What the points of a sweep cost, and which of them no other one beats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import NamedTuple

from ..analyse.tuning.knee import front
from ..analyse.tuning.points import number
from ..schema.sweep import Sweep, SweepPoint, describe, setting_text
from ..units import format_bytes, format_count
from .figures import Format
from .sections import Axis, Scatter, Section, Spot


class Cost(NamedTuple):
    what: str
    axis: Axis
    of: Callable[[SweepPoint], float | None]  # None: not measured
    show: Format
    unit: str = ""  # behind the shown figure


COSTS: dict[str, Cost] = {
    "stored_bytes": Cost(
        "stored bytes",
        Axis(label="bytes stored", unit="bytes"),
        lambda point: point.stored_bytes,
        format_bytes,
        "stored",
    ),
    "read_bytes_per_sample": Cost(
        "bytes read",
        Axis(label="bytes read for each sample", unit="bytes"),
        lambda point: middle_of(point.read_bytes_per_sample),
        format_bytes,
        "read for each sample",
    ),
    "cpu_s_per_gb": Cost(
        "CPU time",
        Axis(label="CPU seconds for each GB of samples", unit="count"),
        lambda point: middle_of(point.cpu_s_per_gb),
        lambda cost: f"{cost:.3g}",
        "CPU s/GB",
    ),
}
"""What a point costs, by the names of the table's columns."""

ALIKE = 1.02
"""Costs within this factor of each other are not worth a chart."""


def front_sections(sweep: Sweep) -> list[Section]:
    """A scatter chart for each cost that differs between the points, with its Pareto front."""
    found: list[Section] = []
    for name, cost in COSTS.items():
        known = [
            (point, rate, each)
            for point in sweep.points
            if (rate := rate_of(point)) is not None and (each := cost.of(point)) is not None
        ]
        costs = [each for *_, each in known]
        if len(known) < 2 or max(costs) <= ALIKE * min(costs):
            continue
        # Places of dots are no lengths: an axis need not begin at 0.
        start = 0.95 * min(costs) if min(costs) > max(costs) / 2 else 0.0
        kept = front([(-rate, each) for _, rate, each in known])
        spots = tuple(
            Spot(
                label=describe(point.settings),
                text=f"{format_count(rate)} samples/s, {cost.show(each)} {cost.unit}",
                x=each,
                y=rate,
                low=min(rates_of(point)),
                high=max(rates_of(point)),
                front=on,
            )
            for (point, rate, each), on in zip(known, kept, strict=True)
        )
        found.append(
            Scatter(
                id=f"front-{name.partition('_')[0]}",
                title=f"Pareto front of samples/s and {cost.what}",
                x=replace(cost.axis, start=start),
                y=Axis(label="samples/s", unit="samples/s"),
                spots=spots,
                table="points",
            )
        )
    return found


def usd_per_million(sweep: Sweep, point: SweepPoint) -> float | None:
    """The price of a million samples of a point; None without a price, or without a rate."""
    rate = rate_of(point)
    return (
        None if sweep.usd_per_hour is None or not rate else sweep.usd_per_hour / rate / 3600 * 1e6
    )


def price_sections(sweep: Sweep) -> list[Section]:
    """The price of samples over the bytes that are stored, with its Pareto front.

    All points have run on one host, so the fastest is the cheapest: what a price adds is what a
    point with fewer stored bytes costs more in hours of the host.
    """
    known = [
        (point, usd, point.stored_bytes)
        for point in sweep.points
        if (usd := usd_per_million(sweep, point)) is not None and point.stored_bytes is not None
    ]
    sizes = [size for *_, size in known]
    if len(known) < 2 or max(sizes) <= ALIKE * min(sizes):
        return []
    kept = front([(usd, size) for _, usd, size in known])
    spots = tuple(
        Spot(
            label=describe(point.settings),
            text=f"{usd:.4g} USD for a million samples, {format_bytes(size)} stored",
            x=size,
            y=usd,
            front=on,
        )
        for (point, usd, size), on in zip(known, kept, strict=True)
    )
    start = 0.95 * min(sizes) if min(sizes) > max(sizes) / 2 else 0.0
    return [
        Scatter(
            id="front-usd",
            title="Pareto front of the price of samples and stored bytes",
            x=replace(COSTS["stored_bytes"].axis, start=start),
            y=Axis(label="USD for a million samples", unit="count"),
            spots=spots,
            table="points",
            better="less",
        )
    ]


def on_front(sweep: Sweep) -> list[bool]:
    """For each point whether no other one is as fast with as little of every cost."""
    costs = [
        (
            None if (rate := rate_of(point)) is None else -rate,
            *(cost.of(point) for cost in COSTS.values()),
        )
        for point in sweep.points
    ]
    return [on and costs[at][0] is not None for at, on in enumerate(front(costs))]


Texts = tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """The points of a sweep by the texts of their settings, in the order of ``keys``."""

    keys: Texts
    points: Mapping[Texts, SweepPoint]
    default: Texts | None

    @cached_property
    def values(self) -> dict[str, list[str]]:
        """The values of each setting: numbers by their size, others as they were given."""
        found = {}
        for at, key in enumerate(self.keys):
            texts = list(dict.fromkeys(where[at] for where in self.points))
            known = {text: number(text) for text in texts}
            if None not in known.values():
                texts.sort(key=lambda text: known[text] or 0.0)
            found[key] = texts
        return found

    @cached_property
    def fastest(self) -> Texts:
        return max(self.points, key=lambda where: rate_of(self.points[where]) or 0.0)

    @cached_property
    def base(self) -> Texts:
        """The point through which slices go: the fastest, or today's settings if they have more."""
        choices = [self.fastest]
        if self.default is not None and self.default in self.points:
            choices.append(self.default)
        return max(choices, key=lambda where: sum(len(self.along(key, where)) for key in self.keys))

    def at(self, where: Texts, changes: Mapping[str, str]) -> SweepPoint | None:
        """The point whose settings are those of ``where``, but for the changes."""
        texts = (changes.get(key, text) for key, text in zip(self.keys, where, strict=True))
        return self.points.get(tuple(texts))

    def along(self, key: str, where: Texts) -> list[tuple[str, SweepPoint]]:
        """The measured points that differ from ``where`` in ``key`` alone, and itself."""
        found = ((text, self.at(where, {key: text})) for text in self.values[key])
        return [(text, point) for text, point in found if point and rate_of(point) is not None]

    def effect(self, key: str) -> float:
        """The logarithm of the highest over the lowest samples/s of points that differ in ``key``.

        They are alike in all else; the mean over all such groups.
        """
        logs: dict[Texts, list[float]] = {}
        at = self.keys.index(key)
        for where, point in self.points.items():
            if (rate := rate_of(point)) is not None:
                logs.setdefault((*where[:at], *where[at + 1 :]), []).append(math.log(rate))
        spans = [max(each) - min(each) for each in logs.values() if len(each) > 1]
        return fmean(spans) if spans else 0.0


def rates_of(point: SweepPoint) -> list[float]:
    """Samples/s of the visits that measured some."""
    return [rate for rate in point.samples_per_s if math.isfinite(rate) and rate > 0]


def rate_of(point: SweepPoint) -> float | None:
    rates = rates_of(point)
    return median(rates) if rates else None


def middle_of(values: Sequence[float | None]) -> float | None:
    """The median of those that were measured."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return median(known) if known else None


def grid_of(sweep: Sweep) -> Grid:
    """The points by their settings; a combination that means the same is the same point."""
    keys = tuple(dict.fromkeys(key for point in sweep.points for key in point.settings))
    points: dict[Texts, SweepPoint] = {}
    for point in sweep.points:
        for settings in (point.settings, *point.also):
            points[tuple(setting_text(settings.get(key)) for key in keys)] = point
    default = sweep.default
    now = None if default is None else tuple(setting_text(default.get(key)) for key in keys)
    return Grid(keys, points, now)

"""What the points of a sweep cost, and which of them no other one beats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ..analyse.tuning.front import front
from ..schema.sweep import Sweep, SweepPoint, describe
from ..units import format_bytes, format_count
from .figures import Format
from .sections import Axis, Scatter, Section, Spot
from .sweep_grid import middle_of, rate_of, rates_of


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

"""What the points of a sweep cost, and which of them no other one beats."""

from __future__ import annotations

from collections.abc import Callable

from ..analyse.tuning.front import front
from ..schema.sweep import Sweep, SweepPoint, describe
from .sections import Axis, Scatter, Section, Spot
from .sweep_grid import middle_of, rate_of, rates_of

COSTS: dict[str, tuple[str, Axis, Callable[[SweepPoint], float | None]]] = {
    "stored": (
        "stored bytes",
        Axis(label="bytes stored", unit="bytes"),
        lambda point: point.stored_bytes,
    ),
    "read": (
        "bytes read",
        Axis(label="bytes read for each sample", unit="bytes"),
        lambda point: middle_of(point.read_bytes_per_sample),
    ),
    "cpu": (
        "CPU time",
        Axis(label="CPU seconds for each GB of samples", unit="count"),
        lambda point: middle_of(point.cpu_s_per_gb),
    ),
}
"""What a point costs: in words, as an axis, and the figure. None: not measured."""

ALIKE = 1.02
"""Costs within this factor of each other are not worth a chart."""


def front_sections(sweep: Sweep) -> list[Section]:
    """A scatter chart for each cost that differs between the points, with its Pareto front."""
    found: list[Section] = []
    for name, (what, axis, cost) in COSTS.items():
        known = [
            (point, rate, each)
            for point in sweep.points
            if (rate := rate_of(point)) is not None and (each := cost(point)) is not None
        ]
        costs = [each for *_, each in known]
        if len(known) < 2 or max(costs) <= ALIKE * min(costs):
            continue
        kept = front([(-rate, each) for _, rate, each in known])
        spots = tuple(
            Spot(
                label=describe(point.settings),
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
                id=f"front-{name}",
                title=f"Pareto front of samples/s and {what}: no other point is faster with less",
                x=axis,
                y=Axis(label="samples/s", unit="samples/s"),
                spots=spots,
                table="points",
            )
        )
    return found


def on_front(sweep: Sweep) -> list[bool]:
    """For each point whether no other one is as fast with as little of every cost."""
    costs = [
        (
            None if (rate := rate_of(point)) is None else -rate,
            *(cost(point) for *_, cost in COSTS.values()),
        )
        for point in sweep.points
    ]
    return [on and costs[at][0] is not None for at, on in enumerate(front(costs))]

"""Choose among the measured points: the smallest settings as good as the best, and a Pareto front.

A point is as good if it is within 5 % of the best and its interval overlaps with that of the best.
Source: ecosystem notes on worker knees; 5 % is MLPerf Storage's bound for replicated runs. The
interval of a point is the [min, max] of its repetitions. It covers the median with 96.9 % for
6 repetitions (93.8 % for 5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .points import SweptPoint, number, same

NEAR = 0.95
"""A point that reaches this share of the best is as good, if their intervals overlap."""

NO_HELP = 1.02
"""Treat gains up to this factor as noise, even if the intervals do not overlap.

A few repetitions may vary little, while those of two points are minutes apart.
"""

ALIKE = 0.10
"""Relative difference below which CPU times count as equal."""

MAX_ALIKE_BYTES = 0.02

FIRST = ("loader.workers", "reader.concurrency", "loader.prefetch_factor")
"""Numeric settings to minimise first, in this order: they take cores and memory from training."""


def near_best(points: Sequence[SweptPoint]) -> list[SweptPoint]:
    """Points that cannot be distinguished from the best one, including the best one."""
    best = max(points, key=lambda point: point.median)
    alike = [
        point
        for point in points
        if max(point.rates) >= min(best.rates) or point.median * NO_HELP >= best.median
    ]
    return [point for point in alike if point.median >= NEAR * best.median]


def smallest_near_best(
    points: Sequence[SweptPoint],
    *,
    default: SweptPoint | None = None,
    dataset_bytes: float | None = None,
) -> SweptPoint:
    """One of the points that are as good as the best.

    Points with enough shards come first (of ``dataset_bytes``, if the data will be larger than that
    of the sweep). Then the smallest settings, the least CPU time, the fewest stored bytes and the
    fewest changes from ``default`` decide, in this order.
    """
    left = near_best(points)
    left = _least(left, lambda point: float(not enough_shards(point, dataset_bytes)), 0)
    for key in ordered_axes(points):
        left = _least(
            left,
            lambda point, key=key: number(point.settings.get(key, "")),  # type: ignore[misc]
            0,
        )
    left = _least(left, lambda point: point.cpu_s_per_gb, ALIKE)
    left = _least(left, lambda point: point.stored_bytes, MAX_ALIKE_BYTES)
    if default is not None:
        left = _least(left, lambda point: float(len(changed(point, default))), 0)
    return max(left, key=lambda point: point.median)


def _least(
    points: list[SweptPoint], cost: Callable[[SweptPoint], float | None], tolerance: float
) -> list[SweptPoint]:
    """Points whose cost is within ``tolerance`` of the lowest; all points if a cost is unknown."""
    known = [value for point in points if (value := cost(point)) is not None]
    if len(known) < len(points):
        return points
    limit = min(known) + abs(min(known)) * tolerance
    return [point for point in points if (cost(point) or 0) <= limit]


def enough_shards(point: SweptPoint, stored_bytes: float | None = None) -> bool:
    """True if there are at least 4 shards for each worker of each rank.

    A worker then idles for at most a quarter of the time. Unknown counts as enough.
    """
    if point.shards is None or point.shard_bytes is None:
        return True
    shards = point.shards if stored_bytes is None else stored_bytes / point.shard_bytes
    return shards >= 4 * point.processes


def ordered_axes(points: Sequence[SweptPoint]) -> list[str]:
    """Settings with numeric values: workers, reads in flight, prefetching, others, dataset last."""
    keys = [
        key
        for key in points[0].settings
        if all(number(point.settings.get(key, "")) is not None for point in points)
    ]
    rank = {key: position for position, key in enumerate(FIRST)}
    return sorted(
        keys, key=lambda key: (key.startswith("dataset."), rank.get(key, len(FIRST)), key)
    )


def changed(point: SweptPoint, default: SweptPoint) -> list[str]:
    return [
        key
        for key, value in point.settings.items()
        if not same(value, default.settings.get(key, "null"))
    ]


def along(points: Sequence[SweptPoint], chosen: SweptPoint, key: str) -> list[SweptPoint]:
    """The points that differ from ``chosen`` only in ``key``, and itself, sorted by value."""
    line = [
        point
        for point in points
        if all(
            k == key or same(v, chosen.settings.get(k, "null")) for k, v in point.settings.items()
        )
    ]
    return sorted(line, key=lambda point: (number(point.settings[key]) or 0.0, point.settings[key]))


def pareto(points: Sequence[SweptPoint]) -> list[SweptPoint]:
    """Points that no other point beats in samples/s, CPU seconds per GB and stored bytes at once.

    The fastest comes first. How unknown costs count: see ``front``.
    """
    kept = front([(-point.median, point.cpu_s_per_gb, point.stored_bytes) for point in points])
    return sorted(
        (point for point, on in zip(points, kept, strict=True) if on), key=lambda p: -p.median
    )


Costs = Sequence[float | None]
"""What a point costs in each respect: less is better. None: not known."""


def front(costs: Sequence[Costs]) -> list[bool]:
    """For each point whether it is on the front: no other is nowhere worse and somewhere better.

    A cost that is unknown for both of two points is left out between them. Where it is unknown for
    one of them only, neither beats the other.
    """
    return [not any(_beats(other, mine) for other in costs) for mine in costs]


def _beats(one: Costs, other: Costs) -> bool:
    better = False
    for mine, theirs in zip(one, other, strict=True):
        if mine is None and theirs is None:
            continue
        if mine is None or theirs is None or mine > theirs:
            return False
        better = better or mine < theirs
    return better

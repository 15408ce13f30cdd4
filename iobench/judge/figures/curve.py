"""What a storage curve says: its plateau, its knee, and what limits each of its points.

A closed loop of n readers follows Little's law: rate = n / (mean time from one read to the next).
Below the knee that time is the storage's latency and does not depend on n; above it the time grows
in proportion to n and the rate stays what it is (the asymptotic bounds of Denning and Buzen, "The
Operational Analysis of Queueing Network Models", ACM Computing Surveys 1978). Between two points
that time is interpolated, which is exact on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from ...record.curve import Bound, CurvePoint, Rate, Spent, StorageCurve
from ..statistics import mean_interval

NEAR = 0.05
"""Rates that differ by less are the same plateau, and two doublings that bring less end a curve."""

FLATTENED = "two doublings brought less than 5 %"
"""Why a curve ends that has reached its plateau."""

MIN_WINDOWS = 3
"""Windows of a rate that may decide a plateau."""

LUCKY = 1.2
"""A point of few windows that is above the next one by this factor was a lucky one."""

ALIKE = 0.8
"""Rates that reach this share of another one count as the same limit, see ``spent``."""

INCONCLUSIVE = 1.5
"""A rate without an interval is taken as known to within this factor, where two are compared."""

EQUAL = 1e-9
"""Windows whose rates differ by less are those of one figure: they say nothing of its spread."""


def interval_around(
    value: float, parts: Sequence[float]
) -> tuple[float, float] | tuple[None, None]:
    """The 95 % interval of the mean of the parts (Student's t), in which ``value`` lies.

    Fewer than two parts have no interval, nor have parts that are exactly equal: they say nothing
    about their spread.
    """
    if len(parts) < 2 or max(parts) - min(parts) <= EQUAL * max(parts):
        return None, None
    low, high = mean_interval(parts)
    return max(0.0, min(value, low)), max(value, high)


def rate_of(value: float, windows: Sequence[float]) -> Rate:
    """A rate with its interval over windows.

    ``value`` is the rate over the whole time. It lies in the interval, since it is the mean of the
    windows weighted by their lengths.
    """
    low, high = interval_around(value, windows)
    return Rate(value=value, low=low, high=high, windows=len(windows))


def is_known(rate: Rate) -> bool:
    """Whether a rate has an interval: both of its ends, and room between them."""
    return rate.low is not None and rate.high is not None and rate.low < rate.high


def _told(points: Sequence[CurvePoint]) -> Sequence[CurvePoint]:
    """The points that decide the plateau: those with MIN_WINDOWS, where these are enough.

    Slow reads leave few windows for the first points. One of two windows may be far too high, and
    would then be the best of all, and the knee.
    """
    sure = [point for point in points if _is_sure(point)]
    return sure if len(sure) > 2 else _confirmed(points)


def _is_sure(point: CurvePoint) -> bool:
    return point.reads_per_s.windows >= MIN_WINDOWS


def _confirmed(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """The points without those of few windows that the next point does not confirm.

    More reads in flight get at least as much, so a window in which fewer got more was a lucky one:
    no slow read fell into it, or a cache served it.
    """
    kept: list[CurvePoint] = []
    for point in sorted(points, key=lambda each: -each.in_flight):
        reached = kept[-1].reads_per_s.value if kept else math.inf
        if _is_sure(point) or point.reads_per_s.value <= LUCKY * reached:
            kept.append(point)
    return kept[::-1]


def highest(points: Sequence[CurvePoint]) -> CurvePoint | None:
    """The point with the most bytes/s of those that decide; None if no read was completed.

    One lucky window is not the best that a storage can do.
    """
    best = max(_told(points), key=lambda point: point.bytes_per_s.value, default=None)
    return best if best is not None and best.bytes_per_s.value > 0 else None


def has_flattened(points: Sequence[CurvePoint]) -> bool:
    """Whether the last two doublings together brought less than ``NEAR``."""
    rates = [point.reads_per_s.value for point in _told(points)]
    return len(rates) > 2 and max(rates[-2:]) < (1 + NEAR) * max(rates[:-2])


def plateau(points: Sequence[CurvePoint]) -> tuple[Rate, Rate, int] | None:
    """(reads/s, bytes/s, knee) of a curve that has flattened; None if it has not.

    The plateau is the mean of all points within ``NEAR`` of the highest one. Its interval covers
    theirs, and is unknown where that of one of them is. The knee is the fewest reads in flight
    among them.
    """
    best = max((point.reads_per_s.value for point in _told(points)), default=0.0)
    if not has_flattened(points) or best <= 0:
        return None
    near = [point for point in _told(points) if is_near(point, points)]
    reads = _together([point.reads_per_s for point in near])
    there = _together([point.bytes_per_s for point in near])
    return reads, there, min(point.in_flight for point in near)


def is_near(point: CurvePoint, points: Sequence[CurvePoint]) -> bool:
    """Whether a point's rate is within ``NEAR`` of the highest of all."""
    best = max(each.reads_per_s.value for each in _told(points))
    return point.reads_per_s.value >= (1 - NEAR) * best


def _together(rates: Sequence[Rate]) -> Rate:
    value, windows = fmean(rate.value for rate in rates), sum(rate.windows for rate in rates)
    if not all(is_known(rate) for rate in rates):
        return Rate(value=value, windows=windows)
    return Rate(
        value=value,
        low=min(value, *(_low(rate) for rate in rates)),
        high=max(value, *(_high(rate) for rate in rates)),
        windows=windows,
    )


def expected_rate(points: Sequence[CurvePoint], in_flight: float) -> Rate | None:
    """Reads/s to expect with this number of reads in flight; None if no point tells.

    Fewer reads in flight than were measured: Little's law with the first point's time. More: the
    last point's rate, without an upper bound unless the curve has flattened.
    """
    known = [point for point in _confirmed(points) if point.reads_per_s.value > 0]
    if not known or not in_flight > 0:
        return None
    last = known[-1]
    if in_flight >= last.in_flight:
        flat = in_flight == last.in_flight or has_flattened(points)
        rate = last.reads_per_s
        if not is_known(rate):
            return Rate(value=rate.value, windows=rate.windows)
        return rate if flat else rate.model_copy(update={"high": None})
    above = next(point for point in known if point.in_flight > in_flight)
    below = max(
        (p for p in known if p.in_flight <= in_flight), key=lambda p: p.in_flight, default=above
    )
    span = above.in_flight - below.in_flight
    share = (in_flight - below.in_flight) / span if span else 0.0

    def at(a: float, b: float) -> float:
        """The rate, from the rates of both points: the time between reads is interpolated."""
        if a <= 0 or b <= 0:
            return 0.0
        first, second = below.in_flight / a, above.in_flight / b
        between = (1 - share) * first + share * second if share else first
        return in_flight / between if math.isfinite(between) else 0.0

    a, b = below.reads_per_s, above.reads_per_s
    value, windows = at(a.value, b.value), min(a.windows, b.windows)
    if not (is_known(a) and is_known(b)):
        return Rate(value=value, windows=windows)
    return Rate(value=value, low=at(_low(a), _low(b)), high=at(_high(a), _high(b)), windows=windows)


def bound_at(
    curve: StorageCurve,
    in_flight: float,
    large: StorageCurve | None,
    opens: StorageCurve | None = None,
) -> Bound | None:
    """What limits the rate at this number of reads in flight; None if the curve does not tell.

    Below the knee it is latency. On a curve that has not flattened it is latency where more reads
    in flight brought more, and unknown at its end. From the knee on ``large``, the curve of
    requests of another size, tells operations from bytes, see ``spent``, and ``opens`` whether the
    operations are the opens of the files.
    """
    if not curve.points or not in_flight > 0:
        return None
    nearest = min(curve.points, key=lambda point: abs(math.log(point.in_flight / in_flight)))
    if nearest.client:
        return "client"
    if curve.knee_in_flight is None:
        more = (1 + NEAR) * nearest.reads_per_s.value
        later = (p for p in _told(curve.points) if p.in_flight > max(in_flight, nearest.in_flight))
        return "latency" if any(p.reads_per_s.value >= more > 0 for p in later) else "unknown"
    if in_flight < curve.knee_in_flight:
        return "latency"
    found = spent(curve, large, opens)
    return "operations or bandwidth" if found == "unknown" else found


def spent(
    curve: StorageCurve, other: StorageCurve | None, opens: StorageCurve | None = None
) -> Spent:
    """Whether this curve's plateau is one of operations/s, of them of metadata, or of bytes/s.

    ``opens`` is the curve of opening the files of this curve's requests, each of which opens one.
    It is metadata where opening alone is hardly faster: the plateau reaches ``ALIKE`` of it. Then
    reading adds nothing to it, whatever requests of another size reach in files that stay open.
    """
    found = _spent(curve, other)
    if opens is None or _client_at_plateau(curve):
        return found
    alone = highest(opens.points)
    mine = curve.plateau_reads_per_s
    if alone is None or alone.client or mine is None:
        return found
    return "metadata" if _low(mine) >= ALIKE * alone.reads_per_s.value else found


def _spent(curve: StorageCurve, other: StorageCurve | None) -> Spent:
    """Whether this curve's plateau is one of operations/s or of bytes/s.

    ``other`` is the same storage's curve of requests of another size: large sequential ones, or,
    where the objects are too small for these, smaller ones than this curve's. Of the two sizes the
    smaller one has spent the bandwidth if it reaches ``ALIKE`` of the bytes/s of the larger one,
    and the larger one has spent the operations if it reaches ``ALIKE`` of the reads/s of the
    smaller one. Unknown where the intervals do not tell, one of the two has no plateau, or a
    client's CPU was spent at it.

    Wide intervals tell, too, where the sizes are far apart. If the two plateaus are alike in one
    unit, they differ in the other one by the ratio of the sizes, so an interval that lies on the
    near side of the geometric middle of both is enough. A rate without an interval counts as a
    wide one.
    """
    if other is None or _client_at_plateau(curve):
        return "unknown"
    low, high = sorted((curve.request_bytes, other.request_bytes))
    unit, far, near = _IN_READS if other.request_bytes < curve.request_bytes else _IN_BYTES
    mine, theirs = (getattr(each, f"plateau_{unit}") for each in (curve, other))
    rates: list[Rate] = [getattr(point, unit) for point in other.points]
    reached = theirs or max(rates, key=lambda rate: rate.value, default=None)
    if mine is None or reached is None:
        return "unknown"
    if _high(mine) < ALIKE * _low(reached):
        return far  # also where the other requests could get even more
    if theirs is None or _client_at_plateau(other):
        return "unknown"
    if _low(mine) >= ALIKE * theirs.value:
        return near
    apart = low / high
    parted = apart > ALIKE or _low(mine) >= math.sqrt(apart) * _high(theirs)
    return near if mine.value >= ALIKE * theirs.value and parted else "unknown"


_IN_READS: tuple[str, Spent, Spent] = ("reads_per_s", "bandwidth", "operations")
_IN_BYTES: tuple[str, Spent, Spent] = ("bytes_per_s", "operations", "bandwidth")
"""The rate by which two sizes of requests are compared, and what this curve has spent where it does
not reach the other's, and where it does."""


def _client_at_plateau(curve: StorageCurve) -> bool:
    knee = curve.knee_in_flight
    return knee is not None and any(
        point.client for point in curve.points if point.in_flight >= knee
    )


def conclude_curve(
    curve: StorageCurve, large: StorageCurve | None = None, opens: StorageCurve | None = None
) -> StorageCurve:
    """The curve with its plateau, its knee and what limits each point, from its points alone."""
    found = plateau(curve.points)
    reads, there, knee = found or (None, None, None)
    why = curve.not_measured
    if found is None and not why:
        why = curve.stopped or "the rate still grew with the last reads in flight that were tried"
        if not any(point.reads_per_s.value > 0 for point in curve.points):
            why = "no read was completed"
    concluded = curve.model_copy(
        update={
            "plateau_reads_per_s": reads,
            "plateau_bytes_per_s": there,
            "knee_in_flight": knee,
            "not_measured": "" if found else why,
        }
    )
    bounds = [bound_at(concluded, point.in_flight, large, opens) for point in curve.points]
    return concluded.model_copy(update={"bound": [each for each in bounds if each is not None]})


def _low(rate: Rate) -> float:
    """The low end of a rate; one without an interval is known to within ``INCONCLUSIVE``."""
    return rate.low if rate.low is not None and is_known(rate) else rate.value / INCONCLUSIVE


def _high(rate: Rate) -> float:
    """The high end of a rate; one without an interval is known to within ``INCONCLUSIVE``."""
    return rate.high if rate.high is not None and is_known(rate) else rate.value * INCONCLUSIVE

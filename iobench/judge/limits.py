"""What limits the storage at the run's reads in flight, and what more or larger reads bring.

Stragglers are few reads that take many times as long as the others, and hold up batches. A batch
waits for its slowest read, so 2 % of slow reads can take most of the time although the
storage has bandwidth and operations to spare. More batches in flight hide them: while one waits,
the others go on (J. Dean and L. A. Barroso, "The Tail at Scale", CACM 2013).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..base.units import format_duration
from ..record.curve import Bound, Rate, StorageCurve
from ..record.verdict import Estimate
from .evidence import AT_LIMIT, Evidence
from .figures.curve import bound_at, expected_rate


def storage_bound(evidence: Evidence) -> Bound | None:
    """What limits the storage; None if it was not measured, or a cache served the reads.

    Records without a curve have the rate of raw storage instead. It is a limit only if it was
    measured with more reads in flight than the run had.
    """
    if evidence.cached:
        return None
    if evidence.curve is not None:
        known = evidence.curve
        return bound_at(known.curve, evidence.in_flight, known.large, known.opens)
    if evidence.client_bound:
        return "client"
    if evidence.raw is None or evidence.fetch is None:
        return None
    if evidence.fetch < AT_LIMIT * evidence.raw:
        return "latency"
    return "operations or bandwidth" if evidence.raw_by == "reader" else "unknown"


def enough_in_flight(evidence: Evidence) -> float | None:
    """The reads in flight from which on the storage delivers no more; None without a curve.

    On a curve that has no knee, the most that were tried.
    """
    if evidence.curve is None:
        return None
    curve = evidence.curve.curve
    return float(curve.knee_in_flight or max(point.in_flight for point in curve.points))


def gain_of_more_reads(evidence: Evidence, target: float | None) -> Estimate | None:
    """Factor on the rate of the storage with ``target`` reads in flight; None if nothing tells."""
    if target is None or evidence.curve is None:
        if not evidence.raw or not evidence.fetch:
            return None
        return Estimate(value=evidence.raw / evidence.fetch)
    points = evidence.curve.curve.points
    return ratio(expected_rate(points, target), expected_rate(points, evidence.in_flight))


def reads_for(evidence: Evidence, factor: float) -> float | None:
    """The reads in flight with which the storage delivers ``factor`` times as much as today.

    At most those from which on it delivers no more; None without a curve.
    """
    enough = enough_in_flight(evidence)
    if enough is None:
        return None
    reads = evidence.in_flight
    while reads < enough:
        reads = min(2 * reads, enough)
        found = gain_of_more_reads(evidence, reads)
        if found is not None and found.value >= factor:
            break
    return max(reads, evidence.in_flight)


def gain_of_large_reads(evidence: Evidence) -> Estimate | None:
    """Bytes/s of large sequential requests over those of the run's own; None without such a curve.

    Where the objects are too small for large requests, the second curve is one of small ones. It
    tells that operations are spent, and not how many more bytes/s there are.
    """
    if evidence.curve is None or evidence.curve.large is None:
        return None
    mine, other = evidence.curve.curve, evidence.curve.large
    if other.request_bytes <= mine.request_bytes:
        return None
    return ratio(_most_bytes(other), _most_bytes(mine))


def _most_bytes(curve: StorageCurve) -> Rate | None:
    if curve.plateau_bytes_per_s is not None:
        return curve.plateau_bytes_per_s
    rates = [point.bytes_per_s for point in curve.points]
    return max(rates, key=lambda rate: rate.value, default=None)


def ratio(one: Rate | None, other: Rate | None) -> Estimate | None:
    """The factor between two rates, with the interval that their intervals allow."""
    if one is None or other is None or other.value <= 0:
        return None
    value = one.value / other.value
    if one.low is None or one.high is None or not other.low or other.high is None:
        return Estimate(value=value)
    return Estimate(
        value=value,
        low=min(value, one.low / other.high),
        high=max(value, one.high / other.low),
        n=max(1, min(one.windows, other.windows)),
    )


SLOW = 10.0
"""The slowest hundredth of reads are stragglers if they take this many times the median."""

_HUNDREDTH = 0.01

HOLDS_UP = 0.5
"""They are the limit if they add this part of the time that a batch takes without them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stragglers:
    """The times of reads at the run's reads in flight: the median, and the slowest hundredth."""

    usual_s: float
    slow_s: float


def stragglers(evidence: Evidence, bound: Bound | None) -> Stragglers | None:
    """The stragglers that hold up the batches of a storage that is the bottleneck; None if none do.

    ``bound``: what the curve says of the storage. A plateau of operations or of bandwidth is the
    limit, unless the run is far from it.
    """
    if evidence.curve is None or bound in (None, "client") or not evidence.in_flight > 0:
        return None
    if bound != "latency" and not _far_from(evidence.raw, evidence.measured):
        return None
    known = [
        (abs(math.log(point.in_flight / evidence.in_flight)), usual, slow)
        for point in evidence.curve.curve.points
        if (usual := point.latency_p50_s) and (slow := point.latency_p99_s)
    ]
    if not known:
        return None
    _, usual, slow = min(known)
    if slow < SLOW * usual:
        return None
    requests = max(1.0, evidence.requests_per_batch or float(evidence.batch_size or 1))
    each = max(1.0, evidence.in_flight / max(1, evidence.streams))
    without = math.ceil(requests / each - 1e-9) * usual
    held_up = (1 - (1 - _HUNDREDTH) ** requests) * slow
    return Stragglers(usual_s=usual, slow_s=slow) if held_up >= HOLDS_UP * without else None


def _far_from(raw: float | None, measured: float | None) -> bool:
    return raw is not None and measured is not None and measured < AT_LIMIT * raw


def told(found: Stragglers) -> str:
    """``a read usually takes 2.00 ms (p50), and one in a hundred takes 202 ms or longer (p99)``."""
    return (
        f"a read usually takes {format_duration(found.usual_s)} (p50), and one in a hundred takes "
        f"{format_duration(found.slow_s)} or longer (p99)"
    )

"""Stragglers: few reads that take many times as long as the others, and the batches they hold up.

A batch waits for its slowest read, so 2 % of slow reads can take most of the time although the
storage has bandwidth and operations to spare. More batches in flight hide them: while one waits,
the others go on (J. Dean and L. A. Barroso, "The Tail at Scale", CACM 2013).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...schema.curve import Bound
from ...schema.verdict import Advice
from ...units import format_duration
from .evidence import AT_LIMIT, Evidence
from .model import WORTH

SLOW = 10.0
"""The slowest hundredth of reads are stragglers if they take this many times the median."""

_HUNDREDTH = 0.01

HOLDS_UP = 0.5
"""They are the limit if they add this part of the time that a batch takes without them."""

ROOM = 1.5
"""Batches in flight are advised for this times the rate that can be used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stragglers:
    """The times of reads at the run's reads in flight: the median, and the slowest hundredth."""

    usual_s: float
    slow_s: float


def stragglers(evidence: Evidence, bound: Bound | None) -> Stragglers | None:
    """The stragglers that hold up the batches of a storage that binds; None if none do.

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


def more_batches(evidence: Evidence) -> Advice | None:
    """More workers, each of which has a batch in flight, up to what the storage can deliver."""
    found = stragglers(evidence, "latency")
    if found is None or not evidence.measured:
        return None
    tested = evidence.gains.get("storage")
    most = [evidence.raw, evidence.accelerator, evidence.prep, evidence.harness]
    gains = [rate / evidence.measured for rate in most if rate]
    gains += [tested.value] if tested is not None else []
    useful = max(1.0, min(gains, default=1.0))
    today = evidence.workers // evidence.accelerators
    workers = max(today + 1, math.ceil(ROOM * useful * max(1, today) - 1e-9))
    gain = min(useful, workers / max(1, today))
    if gain < WORTH:
        return None
    return Advice(
        id="workers",
        change="keep more batches in flight, so that fewer wait for one with a slow read: "
        f"{workers} workers for each accelerator instead of {today}",
        settings=[f"loader.workers={workers}"],
        predicted_gain=gain,
        low=1.0,  # how many of them that hides was not measured
        high=gain,
        basis=f"{told(found)}: a batch waits for its slowest read, and the storage has more to "
        "give",
    )

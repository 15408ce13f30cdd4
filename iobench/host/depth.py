"""What was measured with one number of reads in flight, whichever program did the reads.

A rate has windows, from which its interval comes: the time is cut into a few parts of equal length.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

WINDOWS = 5

WINDOW_READS = 8
"""Reads that make a window long enough, whatever time each of them takes."""

MIN_P99, MIN_P999 = 100, 1000
"""Reads without which a 99th or a 99.9th percentile would be the slowest read of all."""

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Depth:
    """Reads with ``in_flight`` in flight. Rates per second, times in seconds.

    ``used``: how many of the places that were given, from the first on, may have been read.
    ``client_cpu_share``: CPU time over what the measuring program can use.
    """

    in_flight: int
    reads: int
    bytes: int
    seconds: float
    reads_per_s: float
    bytes_per_s: float
    window_reads_per_s: Sequence[float]
    window_bytes_per_s: Sequence[float]
    latency_mean_s: float | None
    latency_p50_s: float | None
    latency_p99_s: float | None
    latency_p999_s: float | None
    client_cpu_share: float | None
    used: int
    throttled: int = 0
    latency_max_s: float | None = None


def of_cycles(
    ended: Times, cycles: Times, lengths: Times, begin: float, end: float
) -> tuple[float, float, list[float], list[float]]:
    """(reads/s, bytes/s, and both in each window) between the moments ``begin`` and ``end``.

    ``ended``: when each read ended; ``cycles``: the time since the same reader's previous read
    ended, in seconds; ``lengths`` in bytes. Every reader has to be busy for all of the time between
    the two moments. A read counts with the part of its cycle that lies between them, which makes
    the expected rate exact for any stationary storage, whether it serves the readers evenly or not.
    The number of reads that end in between would be wrong by that of the readers, where all
    latencies are equal. A window has at least the length of the mean cycle, or that of
    ``WINDOW_READS`` reads: shorter ones would share too many of theirs.
    """
    began, lasted = ended - cycles, np.maximum(cycles, 1e-9)

    def rates(low: float, high: float) -> tuple[float, float]:
        inside = np.maximum(np.minimum(ended, high) - np.maximum(began, low), 0.0) / lasted
        return float(inside.sum()) / (high - low), float((inside * lengths).sum()) / (high - low)

    reads, there = rates(begin, end)
    shortest = min(float(lasted.mean()), WINDOW_READS / max(reads, 1e-9))
    count = int(min(WINDOWS, max(1.0, (end - begin) / shortest + 1e-6)))
    edges = np.linspace(begin, end, count + 1).tolist()
    found = [rates(low, high) for low, high in itertools.pairwise(edges)]
    return reads, there, [each[0] for each in found], [each[1] for each in found]


def percentile(took: Times, share: float, least: int = 1) -> float | None:
    """A percentile (0 to 1) of the reads' times; None for fewer than ``least`` reads."""
    return float(np.quantile(took, share)) if len(took) >= least else None

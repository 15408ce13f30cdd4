"""What was measured with one number of reads in flight, whichever program did the reads.

A rate has windows, from which its interval comes: the time is cut into a few parts of equal length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

WINDOWS = 5

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


def of_cycles(
    ended: Times, cycles: Times, lengths: Times, readers: int
) -> tuple[float, float, list[float], list[float]]:
    """(reads/s, bytes/s, and both in each window) of ``readers`` that read one after the other.

    ``ended``: when each read ended; ``cycles``: the time since the same reader's previous read
    ended, in seconds; ``lengths`` in bytes. The rate of a closed loop is readers over mean cycle
    (Little's law). It does not depend on how many reads happen to end inside a window, which with
    equal latencies is a multiple of the number of readers. Windows without a read are left out: the
    time is in the cycle that ends in a later one.
    """

    def rates(chosen: npt.NDArray[np.bool_]) -> tuple[float, float]:
        mean = max(float(cycles[chosen].mean()), 1e-9)
        return readers / mean, readers / mean * float(lengths[chosen].mean())

    everything = np.ones(len(ended), dtype=bool)
    reads, there = rates(everything)
    begin, end = float((ended - cycles).min()), float(ended.max())
    count = min(WINDOWS, max(1, len(ended) // 2))
    window = np.minimum((ended - begin) / max(end - begin, 1e-9) * count, count - 1).astype(int)
    found = [rates(window == number) for number in range(count) if (window == number).any()]
    return reads, there, [each[0] for each in found], [each[1] for each in found]


def percentile(took: Times, share: float, least: int = 1) -> float | None:
    """A percentile (0 to 1) of the reads' times; None for fewer than ``least`` reads."""
    return float(np.quantile(took, share)) if len(took) >= least else None

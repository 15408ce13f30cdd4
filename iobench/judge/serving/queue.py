"""Servers of known speed, in virtual time: accelerators that take requests in batches.

Requests arrive whether or not those before them were answered, so an accelerator has no influence
on when samples are ready for it. That is why an emulated one need not run: what it would have done
with the samples of a window follows from when they were ready, exactly.
"""

from __future__ import annotations

from heapq import heapreplace
from typing import Any

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[Any]


def served(
    ready: Times, *, servers: int, batch_size: int, batch_delay: float, step: float
) -> tuple[Times, Times]:
    """When the step of each request begins and ends, in the order of the requests.

    The requests are taken in the order in which they are ``ready``. A server that is free begins a
    batch when ``batch_size`` of them are there, or ``batch_delay`` after the first of them was
    ready, with those that are there. All times have one unit.
    """
    order = np.argsort(ready, kind="stable")
    at = ready[order].astype(np.float64)
    begins = np.empty(len(at))
    waiting, free, first = at.tolist(), [0.0] * min(servers, max(1, len(at))), 0
    while first < len(waiting):
        last = first + batch_size - 1
        full = waiting[last] if last < len(waiting) else np.inf
        begin = max(free[0], min(full, waiting[first] + batch_delay))
        stop = first + 1
        if batch_size > 1:
            stop = min(int(np.searchsorted(at, begin, side="right")), first + batch_size)
        begins[first:stop] = begin
        heapreplace(free, begin + step)
        first = stop
    placed = np.empty(len(at))
    placed[order] = begins
    return placed, placed + step

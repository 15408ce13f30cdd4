"""Servers of known speed, in virtual time: accelerators that take requests in batches.

Requests arrive whether or not those before them were answered, so an accelerator has no influence
on when samples are ready for it. That is why an emulated one need not run: what it would have done
with the samples of a window follows from when they were ready, exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from heapq import heapreplace
from typing import Any

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[Any]


class Accelerators:
    """Servers that take requests in batches; all times have one unit.

    A server that is free begins a batch when ``batch_size`` requests are there, or ``batch_delay``
    after the first of them was ready, with those that are there. A batch takes ``step``.
    """

    def __init__(self, *, servers: int, batch_size: int, batch_delay: float, step: float) -> None:
        self.batch_size, self.batch_delay, self.step = batch_size, batch_delay, step
        self._free = [0.0] * servers

    def next_begin(self, ready: Sequence[float], first: int = 0) -> float:
        """When the batch of request ``first`` begins, if no others than ``ready`` come."""
        last = first + self.batch_size - 1
        full = ready[last] if last < len(ready) else math.inf
        return max(self._free[0], min(full, ready[first] + self.batch_delay))

    def begin(self, ready: Sequence[float], first: int = 0) -> tuple[float, int]:
        """Begin the batch of request ``first``: when, and the place of the next request."""
        begin, most = self.next_begin(ready, first), first + self.batch_size
        heapreplace(self._free, begin + self.step)
        return begin, bisect_right(ready, begin, first + 1, min(most, len(ready)))


def served(
    ready: Times, *, servers: int, batch_size: int, batch_delay: float, step: float
) -> tuple[Times, Times]:
    """When the step of each request begins and ends, in the order of the requests.

    The requests are taken in the order in which they are ``ready``.
    """
    order = np.argsort(ready, kind="stable")
    waiting = ready[order].astype(np.float64).tolist()
    begins, first = np.empty(len(waiting)), 0
    accelerators = Accelerators(
        servers=min(servers, max(1, len(waiting))),
        batch_size=batch_size,
        batch_delay=batch_delay,
        step=step,
    )
    while first < len(waiting):
        begin, stop = accelerators.begin(waiting, first)
        begins[first:stop] = begin
        first = stop
    placed = np.empty(len(waiting))
    placed[order] = begins
    return placed, placed + step

"""What the ranks of a phase have done so far: counters in memory that they share with the parent.

A rank adds to its own counters at the end of each step, without a lock and without a system call,
and whoever shows the progress reads them whenever it likes. They are for watching a run alone: all
figures of the record come from the events.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

STEPS, BYTES, BUSY_NS, WALL_NS, SYNC_NS, RETRIES = range(6)
"""Columns of ``Counters.read``.

Steps done; stored bytes of their batches; time in which the accelerator was busy; time from the
request for a batch to the next request; time at the barrier for other ranks; requests that were
repeated.
"""

_WIDTH = 8
"""Places for each rank: 64 bytes, so that no two ranks write to one cache line."""


class Counters:
    """Made before the ranks are forked, which share its memory."""

    def __init__(self, ranks: int) -> None:
        fork = multiprocessing.get_context("fork")
        self.ranks = ranks
        self._state = memoryview(fork.RawArray("q", ranks * _WIDTH)).cast("B").cast("q")

    def add(
        self, rank: int, *, read: int, busy_ns: int, wall_ns: int, sync_ns: int, retries: int
    ) -> None:
        """A rank has ended a step; ``read`` are the stored bytes of its batch."""
        state, own = self._state, rank * _WIDTH
        state[own + BYTES] += read
        state[own + BUSY_NS] += busy_ns
        state[own + WALL_NS] += wall_ns
        state[own + SYNC_NS] += sync_ns
        state[own + RETRIES] += retries
        state[own + STEPS] += 1

    def put(self, rank: int, row: npt.NDArray[np.int64]) -> None:
        """What a rank of another host has done so far: a row of what ``read`` returned there."""
        own = rank * _WIDTH
        for place, value in enumerate(row.tolist()[:_WIDTH]):
            self._state[own + place] = value

    def read(self) -> npt.NDArray[np.int64]:
        """A copy of all counters: a row for each rank, and the columns that are named above."""
        return np.array(self._state, dtype=np.int64).reshape(self.ranks, _WIDTH)

    def steps(self) -> int:
        """Number of steps of all ranks so far."""
        return sum(self._each(STEPS))

    def _each(self, column: int) -> Iterator[int]:
        return (self._state[place] for place in range(column, len(self._state), _WIDTH))

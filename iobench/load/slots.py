"""A ring of slots: memory that the training process allocates once and its workers fill.

The training process owns the list of free slots. It hands a slot out with the request for a batch, and gets it back when the last tensor
that looks into it is gone, so no lock crosses a process border and a slot in use can't be overwritten. When all slots are in use (a
consumer that keeps its batches), a batch travels in fresh memory of its own instead: slower, counted, never wrong and never stuck.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import buffers

NO_SLOT = -1


class SlotRing:
    """``count`` slots of ``slot_bytes`` each. ``shared``: visible to worker processes (by fork, or by passing the object to spawn)."""

    def __init__(self, count: int, slot_bytes: int, *, shared: bool) -> None:
        self.count = count
        # Slots start on a huge page of their own, so that direct IO into a slot never straddles two owners.
        self.slot_bytes = -(-slot_bytes // buffers.HUGE) * buffers.HUGE
        total = count * self.slot_bytes
        self.region = buffers.shared(total) if shared else buffers.private(total)
        self.pages = self.region.how
        self.misses = 0
        self._array = self.region.array
        if shared:  # an open descriptor would keep the memory after the last view of it is gone
            weakref.finalize(self, os.close, self.region.fd).atexit = False
        self._free: deque[int] = deque(range(count))
        self._lease_type: Any = type("Lease", (ctypes.c_uint8 * self.slot_bytes,), {})

    # In the training process

    def acquire(self) -> int:
        """A free slot's number, or NO_SLOT."""
        try:
            return self._free.popleft()
        except IndexError:
            self.misses += 1
            return NO_SLOT

    def release(self, slot: int) -> None:
        if slot != NO_SLOT:
            self._free.append(slot)

    @property
    def free(self) -> int:
        return len(self._free)

    def lease(self, slot: int) -> npt.NDArray[np.uint8]:
        """The slot's memory; the slot becomes free when this array and every view and tensor made from it are gone."""
        # numpy collapses chains of views onto the owner of the memory; a ctypes object in between is an owner that it can't see through.
        owner = self._lease_type.from_buffer(self._array, slot * self.slot_bytes)
        weakref.finalize(owner, self.release, slot).atexit = False
        return np.frombuffer(owner, dtype=np.uint8)

    # In any process

    def view(self, slot: int) -> memoryview:
        return self._array[slot * self.slot_bytes : (slot + 1) * self.slot_bytes].data

    @property
    def address(self) -> int:
        return int(self._array.ctypes.data)

    @property
    def nbytes(self) -> int:
        return int(self._array.nbytes)

    def __getstate__(self) -> dict[str, Any]:
        from multiprocessing.reduction import DupFd  # only while a process is being spawned

        return {"count": self.count, "slot_bytes": self.slot_bytes, "fd": DupFd(self.region.fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        self.slot_bytes = state["slot_bytes"]
        fd = state["fd"].detach()
        try:
            self._array = buffers.attach(fd, self.count * self.slot_bytes)
        finally:
            os.close(fd)
        self._free = deque()
        self.misses = 0
        self.pages = ""

"""A ring of slots: memory that the training process allocates once and its workers fill.

The training process owns the list of free slots. It assigns a slot with the request for a batch,
and gets it back when the last tensor that shares its memory is freed. So the processes share no
lock, and a slot in use cannot be overwritten. If all slots are in use, because a consumer keeps its
batches, a batch is sent in new memory of its own. That is slower and is counted (``misses``), but
the data stays correct and nothing blocks.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base import buffers

NO_SLOT = -1


class SlotRing:
    """``count`` slots of at least ``slot_bytes`` each.

    ``shared``: the memory is visible to worker processes, by fork or by passing the object to a
    spawned process.
    """

    def __init__(self, count: int, slot_bytes: int, *, shared: bool) -> None:
        self.count = count
        # Each slot starts on its own huge page, so that direct I/O into a slot never touches a page
        # of two owners.
        self.slot_bytes = -(-slot_bytes // buffers.HUGE) * buffers.HUGE
        total = count * self.slot_bytes
        self.region = buffers.shared(total) if shared else buffers.private(total)
        self.pages = self.region.how
        self.misses = 0
        self._array = self.region.array
        if shared:  # an open descriptor would keep the memory after its last view is freed
            weakref.finalize(self, os.close, self.region.fd).atexit = False
        # The last in is the first out: its memory is the likeliest to be in the processor's caches.
        self._free = list(reversed(range(count)))
        self._lease_type: Any = type("Lease", (ctypes.c_uint8 * self.slot_bytes,), {})

    # In the training process

    def acquire(self) -> int:
        """Return a free slot's number, or NO_SLOT if there is none."""
        try:
            return self._free.pop()
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
        """Return the slot's memory as an array.

        The slot becomes free when this array and every view and tensor made from it are freed.
        """
        # A view of a numpy view refers to the first owner of the memory, not to the view between
        # them. numpy cannot look through a ctypes object, so that all views refer to this one.
        owner = self._lease_type.from_buffer(self._array, slot * self.slot_bytes)
        weakref.finalize(owner, self.release, slot).atexit = False
        return np.frombuffer(owner, dtype=np.uint8)

    # In any process

    def view(self, slot: int) -> memoryview:
        return self._array[slot * self.slot_bytes : (slot + 1) * self.slot_bytes].data

    @property
    def memory(self) -> memoryview:
        """All slots, one after the other."""
        return self._array.data

    @property
    def address(self) -> int:
        return int(self._array.ctypes.data)

    @property
    def nbytes(self) -> int:
        return int(self._array.nbytes)

    def __getstate__(self) -> dict[str, Any]:
        from multiprocessing.reduction import DupFd  # it works only while a process is spawned

        return {"count": self.count, "slot_bytes": self.slot_bytes, "fd": DupFd(self.region.fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        self.slot_bytes = state["slot_bytes"]
        fd = state["fd"].detach()
        try:
            self._array = buffers.attach(fd, self.count * self.slot_bytes)
        finally:
            os.close(fd)
        self._free = []
        self.misses = 0
        self.pages = ""

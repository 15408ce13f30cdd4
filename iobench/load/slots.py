"""A ring of slots: memory that the training process allocates once and its workers fill.

The training process owns the list of free slots. It assigns a slot with the request for a batch,
and gets it back when the last tensor that shares its memory is freed. So the processes share no
lock, and a slot in use cannot be overwritten. If all slots are in use, because a consumer keeps its
batches, a batch is sent in new memory of its own. That is slower and is counted (``misses``), but
the data stays correct and nothing blocks.

How batches come to the accelerator: one of them ahead, and copied to its memory.

With CUDA the ring's memory is registered as pinned memory once, so that each copy is one DMA
transfer on its own stream. Without CUDA (``device: cpu``) the same steps copy to ordinary memory,
so that they can be tested on any host.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ..accelerate.base import Samples
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


T = TypeVar("T")


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class DeviceFeed:
    """Copies batches to ``device``.

    The memory on the device is kept, and grows to the size of the largest batch. There is memory
    for ``batches`` of them, which take turns.
    """

    def __init__(self, device: torch.device, *, batches: int = 1) -> None:
        self.device = device
        self._stream: Any = _stream(self.device) if self.device.type == "cuda" else None
        empty = torch.empty(0, dtype=torch.uint8, device=self.device)
        self._targets = deque([empty] * batches)
        self._registered: tuple[int, int] | None = None
        self.pinned = False

    def attach(self, ring: SlotRing | None) -> None:
        """Pin a loader's ring with cudaHostRegister.

        If that fails, copies go through the driver's own staging memory.
        """
        if self._stream is None or ring is None:
            return
        status = _runtime().cudaHostRegister(ring.address, ring.nbytes, 0)
        self.pinned = int(status) == 0
        if self.pinned:
            self._registered = (ring.address, ring.nbytes)

    def copy(self, batch: Samples) -> tuple[Samples, int]:
        """Copy the batch to the device.

        Returns its samples there, which are valid until their memory's next turn, and the
        nanoseconds that the copy took.
        """
        if batch.data is None:
            return batch, 0
        started = time.monotonic_ns()
        end = int((batch.offsets + batch.lengths).max()) if len(batch) else 0
        source = batch.data[:end]
        memory = self._targets.popleft()
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            if len(memory) < end:
                # For this stream: what a step gives back may be in use until the step is over.
                memory = torch.empty(end + end // 4, dtype=torch.uint8, device=self.device)
            self._targets.append(memory)
            target = memory[:end]
            target.copy_(source, non_blocking=True)
        if self._stream is not None:
            # The slot may be reused, and the step may begin, only after the copy has finished.
            self._stream.synchronize()
        return Samples(target, batch.offsets, batch.lengths), time.monotonic_ns() - started

    def close(self) -> None:
        """Unpin the ring. The loader's memory must not be freed before."""
        if self._registered is not None:
            _runtime().cudaHostUnregister(self._registered[0])
            self._registered = None


class Staged(Generic[T]):
    """Hands over what ``fetch`` returns, one after the other, until it returns None.

    When a batch is taken, the next one is fetched by a thread, and waits until it is taken. So at
    most one batch is accepted before the accelerator is free. The first batch is fetched by the
    caller's own thread, which then is the parent of the processes that a loader starts for it.
    """

    def __init__(self, fetch: Callable[[], T | None]) -> None:
        self._fetch = fetch
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="iobench-stage")
        self._next: Future[T | None] | None = None

    def take(self) -> T | None:
        """Wait for the next batch, and have the one after it fetched. Raises as ``fetch`` does."""
        taken = self._fetch() if self._next is None else self._next.result()
        self._next = self._thread.submit(self._fetch) if taken is not None else None
        return taken

    def close(self) -> None:
        """Wait for a fetch that has begun, and give its batch up."""
        self._thread.shutdown(wait=True)
        self._next = None

"""How batches come to the accelerator: one of them ahead, and copied to its memory.

With CUDA the ring's memory is registered as pinned memory once, so that each copy is one DMA
transfer on its own stream. Without CUDA (``device: cpu``) the same steps copy to ordinary memory,
so that they can be tested on any host.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import torch

from ..accelerate.base import Samples
from ..base.errors import UsageError
from .slots import SlotRing

T = TypeVar("T")


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class DeviceFeed:
    """Copies batches to ``device`` (``cuda``, ``cuda:1``, ``cpu``).

    The memory on the device is kept, and grows to the size of the largest batch. There is memory
    for ``batches`` of them, which take turns. Raises UsageError for a device that is unknown or not
    available.
    """

    def __init__(self, device: str, *, batches: int = 1) -> None:
        try:
            self.device = torch.device(device)
        except RuntimeError as error:
            raise UsageError(
                f"unknown device '{device}'", remedy="use cuda, cuda:N or cpu"
            ) from error
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise UsageError(
                f"device '{device}' is not available on this host",
                remedy="use --set accelerator.device=null",
            )
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
        if len(memory) < end:
            memory = torch.empty(end + end // 4, dtype=torch.uint8, device=self.device)
        self._targets.append(memory)
        target = memory[:end]
        if self._stream is None:
            target.copy_(source)
        else:
            with torch.cuda.stream(self._stream):
                target.copy_(source, non_blocking=True)
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

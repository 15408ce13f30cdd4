"""The read engine: it reads byte ranges of objects into given memory, several at the same time.

One engine serves every format and storage. Threads hide latency: a read releases the GIL, so a few
threads in one process keep as many requests in flight as fio's jobs do, at 0.01 to 0.2 CPU s/GB.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import buffers
from ..buffers import Buffer
from ..errors import StorageError
from ..interrupts import defer_interrupts
from ..storage.base import Storage

Then = Callable[[int], None]


class Extent(NamedTuple):
    """``length`` bytes of object ``key`` from ``offset``, to be read to ``landing`` in memory.

    The object must have at least ``needed`` of these bytes. ``whole`` is False for a block of a
    longer extent.
    """

    key: str
    offset: int
    length: int
    landing: int
    needed: int
    whole: bool = True


class Columns(NamedTuple):
    """The same extents as arrays.

    ``keys``: the objects. ``key``: for each extent, the number of its object among them. ``whole``:
    which of them are no blocks of longer extents; None: all.
    """

    keys: list[str]
    key: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    landing: npt.NDArray[np.int64]
    needed: npt.NDArray[np.int64]
    whole: npt.NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, extents: Sequence[Extent]) -> Columns:
        keys: dict[str, int] = {}
        key = [keys.setdefault(extent.key, len(keys)) for extent in extents]
        numbers = np.array([extent[1:5] for extent in extents], np.int64).reshape(-1, 4)
        return cls(list(keys), np.array(key, np.int64), *numbers.T)

    def extents(self) -> list[Extent]:
        keys = map(self.keys.__getitem__, self.key.tolist())
        numbers = (self.offset, self.length, self.landing, self.needed)
        whole = repeat(True) if self.whole is None else self.whole.tolist()
        return list(map(Extent, keys, *(column.tolist() for column in numbers), whole))

    def blocks(self, size: int) -> Columns:
        """Return the extents in pieces of at most ``size`` bytes: one for each request."""
        if not len(self.length) or int(self.length.max()) <= size:
            return self
        pieces = np.maximum(1, -(-self.length // size))
        extent = np.repeat(np.arange(len(pieces)), pieces)
        start = (np.arange(len(extent)) - (np.cumsum(pieces) - pieces)[extent]) * size
        length = np.minimum(size, self.length[extent] - start)
        return Columns(
            self.keys,
            self.key[extent],
            self.offset[extent] + start,
            length,
            self.landing[extent] + start,
            np.clip(self.needed[extent] - start, 0, length),
            (pieces == 1)[extent],
        )


def ends_early(key: str, end: int, expected: int) -> StorageError:
    return StorageError(
        f"{key} ends at byte {end}, but {expected} bytes were expected",
        remedy="check the dataset: iobench verify",
    )


class ReadEngine:
    """Reads extents with up to ``concurrency`` requests of at most ``block_size`` bytes in flight.

    Use one engine per process. ``once`` means that each object is read by one extent only (one
    sample per file), so that it is not worth keeping it open.
    """

    def __init__(
        self, storage: Storage, *, concurrency: int, block_size: int, once: bool = False
    ) -> None:
        self.storage = storage
        self.once = once
        self.concurrency = concurrency
        # A multiple of the alignment, so that every block of a long extent starts aligned.
        self.block_size = max(block_size // storage.alignment, 1) * storage.alignment
        self._pool: ThreadPoolExecutor | None = None
        self._pid = -1
        self._blocks_free: deque[Buffer] = deque()

    def reserve(self) -> None:
        """Allocate and touch one block for each request in flight, for reads without ``memory``."""
        while len(self._blocks_free) < self.concurrency:
            self._blocks_free.append(buffers.private(self.block_size).array.data)

    def register(self, memory: Buffer) -> None:
        """Be told of memory that many reads will land in, so that an engine may prepare it.

        It must stay in place until the engine is closed, which keeps it alive.
        """

    def read(
        self, extents: Sequence[Extent] | Columns, memory: Buffer | None, then: Then | None = None
    ) -> int:
        """Read the extents into ``memory`` and return the number of bytes that were read.

        If ``memory`` is None, the bytes are only counted: they are read into a few blocks that are
        reused, as fio does. ``then`` is called with the ``landing`` of each extent that was read in
        one piece, by the thread that read it, while the bytes are in the CPU's cache. An exception
        in it ends the read. Raises StorageError if a read fails or an object is too short.
        """
        tasks = deque(self.blocks(extents))
        workers = min(self.concurrency, len(tasks))
        if workers <= 1:
            return self._drain(tasks, memory, None, then)
        stop = threading.Event()
        futures: list[Future[int]] = []
        try:
            with defer_interrupts():  # every thread that has begun to read is known here
                threads = self._threads()
                for _ in range(workers - 1):
                    futures.append(threads.submit(self._drain, tasks, memory, stop, then))
            total = self._drain(tasks, memory, stop, then)
            return total + sum(future.result() for future in futures)
        except BaseException:
            stop.set()
            wait(futures)  # none may write to the memory after the return
            raise

    def read_block(self, block: Extent, memory: Buffer | None, then: Then | None = None) -> int:
        """Read one of ``blocks`` in the calling thread; otherwise as ``read``. Thread-safe."""
        return self._drain(deque((block,)), memory, None, then)

    def blocks(self, extents: Sequence[Extent] | Columns) -> list[Extent]:
        """Return the extents in pieces of at most ``block_size`` bytes: one for each request."""
        if isinstance(extents, Columns):
            extents = extents.extents()
        blocks: list[Extent] = []
        size = self.block_size
        for extent in extents:
            if extent.length <= size:
                blocks.append(extent)
                continue
            for start in range(0, extent.length, size):
                length = min(size, extent.length - start)
                needed = min(length, max(0, extent.needed - start))
                blocks.append(
                    Extent(
                        extent.key,
                        extent.offset + start,
                        length,
                        extent.landing + start,
                        needed,
                        whole=False,
                    )
                )
        return blocks

    def _drain(
        self,
        tasks: deque[Extent],
        memory: Buffer | None,
        stop: threading.Event | None,
        then: Then | None,
    ) -> int:
        if memory is not None:
            return self._work(tasks, memory, stop, then, scratch=False)
        try:
            block = self._blocks_free.popleft()
        except IndexError:
            block = buffers.private(self.block_size).array.data
        try:
            return self._work(tasks, block, stop, None, scratch=True)
        finally:
            self._blocks_free.append(block)

    def _work(
        self,
        tasks: deque[Extent],
        memory: Buffer,
        stop: threading.Event | None,
        then: Then | None,
        *,
        scratch: bool,
    ) -> int:
        total = 0
        read_into, block_size, once = self.storage.read_into, self.block_size, self.once
        try:
            while stop is None or not stop.is_set():
                try:
                    key, offset, length, landing, needed, whole = tasks.popleft()
                except IndexError:
                    break
                if scratch:
                    landing = 0
                count = read_into(
                    key,
                    offset,
                    memory[landing : landing + length],
                    once=once and length < block_size,
                )
                if count < needed:
                    raise ends_early(key, offset + count, offset + needed)
                total += count
                if then is not None and whole:
                    then(landing)
        except BaseException:
            if stop is not None:
                stop.set()
            raise
        return total

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pid != os.getpid():  # threads do not survive a fork
            self._pid = os.getpid()
            self._pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="iobench-read")
        return self._pool

    def close(self) -> None:
        if self._pool is not None and self._pid == os.getpid():
            self._pool.shutdown(wait=True)
        self._pool = None

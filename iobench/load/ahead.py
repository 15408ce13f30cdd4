"""Reads that are issued before their batch is due, so that a worker keeps its requests in flight.

A batch may have fewer requests than ``reader.concurrency`` allows: one, if it is one sample in a
small file. A worker that reads one batch after the other then has one read in flight. With
read-ahead the training process announces to each worker its next batches, and their requests are
issued in this order by the worker's threads, while it waits for the current batch or prepares it.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .. import buffers
from ..buffers import Buffer
from ..errors import StorageError
from ..interrupts import defer_interrupts
from .engine import Columns, Extent, ReadEngine, Then

Memory = npt.NDArray[np.uint8]


def batches_ahead(requests_per_batch: float, concurrency: int) -> int:
    """How many batches to read ahead so that ``concurrency`` requests wait behind the current one.

    At least 1.
    """
    return max(1, math.ceil(concurrency / max(1.0, requests_per_batch) - 1e-9))


class Reading:
    """The requests of one batch, which were issued together.

    Each thread that takes part reads one request after the other until none is left, and the
    caller is woken once: to hand over every request, or its result, costs more than a small read.
    """

    __slots__ = (
        *("__weakref__", "blocks", "ended", "failure", "lock", "memory", "readers", "stopped"),
        *("then", "total"),
    )

    def __init__(
        self, blocks: Sequence[Extent], memory: Buffer | None, then: Then | None, readers: int
    ) -> None:
        self.blocks = deque(blocks)
        self.memory = memory
        self.then = then
        self.readers = readers  # threads that have not ended their part
        self.total = 0
        self.failure: BaseException | None = None
        self.lock = threading.Lock()
        self.ended: SimpleQueue[None] = SimpleQueue()
        self.stopped = False  # its requests that no thread has begun are left out

    def take_part(self, read: Callable[[Extent, Buffer | None, Then | None], int]) -> None:
        total, failure = 0, None
        while self.blocks and not self.stopped:
            try:
                block = self.blocks.popleft()
            except IndexError:  # another thread was faster
                break
            try:
                total += read(block, self.memory, self.then)
            except BaseException as error:
                self.stopped = True  # the batch has failed: its other requests are useless
                failure = error
        with self.lock:
            self.total += total
            self.failure = self.failure or failure
            self.readers -= 1
            if not self.readers:
                self.ended.put(None)


class Ahead(Protocol):
    """What issues the requests of several batches: threads, or a ring."""

    def begin(
        self, extents: Sequence[Extent] | Columns, memory: Buffer | None, then: Then | None = None
    ) -> Any: ...
    def wait(self, reading: Any) -> int: ...
    def settle(self) -> None: ...


class ReadAhead:
    """Issues requests of several batches, at most ``engine.concurrency`` at the same time.

    Requests are read in the order in which they were begun. For one thread per reader.
    """

    def __init__(self, engine: ReadEngine) -> None:
        self._engine = engine
        self._pid = -1
        self._tasks: SimpleQueue[Reading | None] | None = None
        self._threads: list[threading.Thread] = []
        self._live: set[Reading] = set()

    def begin(
        self, extents: Sequence[Extent] | Columns, memory: Buffer | None, then: Then | None = None
    ) -> Reading:
        """Issue the requests for these extents, with the arguments of ``ReadEngine.read``.

        The memory must not be used before ``wait`` or ``settle`` has returned.
        """
        blocks = self._engine.blocks(extents)
        readers = min(len(blocks), self._engine.concurrency)
        reading = Reading(blocks, memory, then, readers)
        tasks = self._started(readers)
        self._live.add(reading)
        for _ in range(readers):
            tasks.put(reading)
        return reading

    def wait(self, reading: Reading) -> int:
        """Wait for a reading, and return the number of bytes that were read.

        Raises its first error when none of its requests is in flight any more. An interrupt gives
        up all readings, as ``settle`` does.
        """
        try:
            if reading.readers:
                reading.ended.get()
        except BaseException:
            self.settle()
            raise
        self._live.discard(reading)
        if reading.failure is not None:
            raise reading.failure
        if reading.stopped:
            raise StorageError("the read was given up")
        return reading.total

    def settle(self) -> None:
        """Leave out all requests that were not begun, and wait for those in flight.

        After an interrupt it can be called again, and waits for what is left.
        """
        for reading in self._live:
            reading.stopped = True
        if self._tasks is not None and self._pid == os.getpid():  # threads do not survive a fork
            _end(self._tasks, self._threads)
            for thread in self._threads:
                thread.join()
        self._live.clear()
        self._tasks, self._threads = None, []

    def _started(self, more: int) -> SimpleQueue[Reading | None]:
        """The queue of the threads; starts up to ``more`` of them if there are too few."""
        if self._tasks is None or self._pid != os.getpid():
            self._pid, self._tasks, self._threads = os.getpid(), SimpleQueue(), []
            self._live = set()
            weakref.finalize(self, _end, self._tasks, self._threads).atexit = False
        for _ in range(min(more, self._engine.concurrency - len(self._threads))):
            # A daemon: a worker process must end although a read of a later batch hangs.
            thread = threading.Thread(
                target=_serve,
                args=(self._tasks, self._engine.read_block),
                name="iobench-ahead",
                daemon=True,
            )
            with defer_interrupts():  # every thread that was started is known here
                thread.start()
                self._threads.append(thread)
        return self._tasks


def _end(tasks: SimpleQueue[Reading | None], threads: Sequence[threading.Thread]) -> None:
    for _ in threads:
        tasks.put(None)


def _serve(
    tasks: SimpleQueue[Reading | None],
    read: Callable[[Extent, Buffer | None, Then | None], int],
) -> None:
    while (reading := tasks.get()) is not None:
        reading.take_part(read)
        del reading  # keep no memory while waiting


class Pool:
    """Scratch memory of which several pieces are in use at the same time.

    It is kept and only grows, since page faults of new memory cost more than the read into it.
    """

    def __init__(self) -> None:
        self._free: list[Memory] = []

    def take(self, nbytes: int) -> Memory:
        """Return at least ``nbytes``, which are the caller's until ``give``.

        Raises NoMemoryError.
        """
        for position, memory in enumerate(self._free):
            if len(memory) >= nbytes:
                return self._free.pop(position)
        if self._free:
            self._free.pop()  # it is too small: the new piece replaces it
        return buffers.private(max(nbytes + nbytes // 4, 1 << 20)).array

    def give(self, memory: Memory) -> None:
        self._free.append(memory)

    def reserve(self, pieces: int, nbytes: int) -> list[Memory]:
        """Allocate and touch memory before the first use; return what was allocated."""
        made = [
            buffers.private(max(nbytes, 1 << 20)).array for _ in range(pieces - len(self._free))
        ]
        self._free += made
        return made

"""The read engine of threads, for any storage.

Threads hide latency: a read releases the GIL, so a few threads in one process keep as many requests
in flight as fio's jobs do, at 0.01 to 0.2 CPU s/GB.

Reads may be issued before their batch is due. A batch may have fewer requests than
``reader.concurrency`` allows: one, if it is one sample in a small file. A worker that reads one
batch after the other then has one read in flight. With read-ahead the training process announces to
each worker its next batches, and their requests are issued in this order by the worker's threads,
while it waits for the current batch or prepares it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue

from ...base import buffers
from ...base.buffers import Buffer
from ...base.errors import StorageError
from ...base.interrupts import defer_interrupts
from ...storage.base import Storage
from .base import Extent, Extents, ReadEngine, Reading, Then, ends_early

ReadBlock = Callable[[Extent, Buffer | None, Then | None], int]


class ThreadReading(Reading):
    """Requests of which each thread that takes part reads one after the other until none is left.

    The caller is woken once: to hand over every request, or its result, costs more than a small
    read.
    """

    def __init__(
        self, blocks: Sequence[Extent], memory: Buffer | None, then: Then | None, readers: int
    ) -> None:
        super().__init__(memory, then)
        self.blocks = deque(blocks)
        self.readers = readers  # threads that have not ended their part
        self.lock = threading.Lock()
        self.ended: SimpleQueue[None] = SimpleQueue()
        self.stopped = False  # its requests that no thread has begun are left out

    def take_part(self, read: ReadBlock) -> None:
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


class ThreadEngine(ReadEngine):
    """Reads with threads, of which each has one request in flight."""

    def __init__(
        self, storage: Storage, *, concurrency: int, block_size: int, once: bool = False
    ) -> None:
        super().__init__(storage, concurrency=concurrency, block_size=block_size, once=once)
        self._pool: ThreadPoolExecutor | None = None
        self._pid = -1  # of the process that has the pool
        self._tasks: SimpleQueue[ThreadReading | None] | None = None
        self._readers: list[threading.Thread] = []
        self._reading_pid = -1  # of the process that has the readers
        self._live: set[ThreadReading] = set()

    def read(self, extents: Extents, memory: Buffer | None, then: Then | None = None) -> int:
        """As ``ReadEngine.read``; the calling thread takes part. Any thread may call it."""
        tasks = deque(self.blocks(extents))
        self.count(len(tasks))
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

    # Readings that were begun

    def begin(
        self, extents: Extents, memory: Buffer | None, then: Then | None = None
    ) -> ThreadReading:
        """As ``ReadEngine.begin``: requests are read in the order in which they were begun."""
        blocks = self.blocks(extents)
        self.count(len(blocks))
        readers = min(len(blocks), self.concurrency)
        reading = ThreadReading(blocks, memory, then, readers)
        tasks = self._started(readers)
        self._live.add(reading)
        for _ in range(readers):
            tasks.put(reading)
        return reading

    def wait(self, reading: ThreadReading) -> int:
        """As ``ReadEngine.wait``."""
        try:
            if reading.readers:
                reading.ended.get()
        except BaseException:
            self.settle()
            raise
        self._live.discard(reading)
        if reading.stopped and reading.failure is None:
            raise StorageError("the read was given up")
        return reading.result()

    def settle(self) -> None:
        """As ``ReadEngine.settle``."""
        for reading in self._live:
            reading.stopped = True
        # Threads do not survive a fork.
        if self._tasks is not None and self._reading_pid == os.getpid():
            _end(self._tasks, self._readers)
            for thread in self._readers:
                thread.join()
        self._live.clear()
        self._tasks, self._readers = None, []

    def _started(self, more: int) -> SimpleQueue[ThreadReading | None]:
        """The queue of the threads; starts up to ``more`` of them if there are too few."""
        if self._tasks is None or self._reading_pid != os.getpid():
            self._reading_pid, self._tasks, self._readers = os.getpid(), SimpleQueue(), []
            self._live = set()
            weakref.finalize(self, _end, self._tasks, self._readers).atexit = False
        for _ in range(min(more, self.concurrency - len(self._readers))):
            # A daemon: a worker process must end although a read of a later batch hangs.
            thread = threading.Thread(
                target=_serve,
                args=(self._tasks, weakref.WeakMethod(self.read_block)),
                name="iobench-ahead",
                daemon=True,
            )
            with defer_interrupts():  # every thread that was started is known here
                thread.start()
                self._readers.append(thread)
        return self._tasks

    def close(self) -> None:
        if self._pool is not None and self._pid == os.getpid():
            self._pool.shutdown(wait=True)
        self._pool = None


def _end(tasks: SimpleQueue[ThreadReading | None], threads: Sequence[threading.Thread]) -> None:
    for _ in threads:
        tasks.put(None)


def _serve(tasks: SimpleQueue[ThreadReading | None], method: weakref.WeakMethod[ReadBlock]) -> None:
    """Read until told to end. A thread that waits keeps neither the engine nor memory alive."""
    while (reading := tasks.get()) is not None:
        if (read := method()) is None:
            return
        reading.take_part(read)
        del reading, read

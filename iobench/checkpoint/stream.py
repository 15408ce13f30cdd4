"""``stream``: the fastest way, parallel large blocks between the tensors' memory and the storage.

Local files are written and read with O_DIRECT, S3 objects as parts of a multipart upload and as
ranges; other storages receive blocks in order, and serve ranges in parallel. Besides the state it
takes one block of memory for each thread, whatever the state's size.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import torch

from ..base.buffers import private
from ..base.errors import CheckpointError, UsageError
from ..base.units import parse_size
from ..storage.base import Buffer, Parallel, Storage
from .base import Job, State
from .catalog import CheckpointTarget
from .container import PAGE, ContainerLayout, lay_out, layout_from_header, read_header
from .leaves import Bytes, leaves, set_values
from .saving import Behind, FileWriter, SaveClock

FILE_BLOCK = 1 << 20
"""Bytes per block of a local file. Larger blocks were not faster on any disk that was measured,
with ``CONCURRENCY`` blocks in flight."""

OBJECT_BLOCK = 8 << 20
"""Bytes per block of any other storage, where each block is one request."""

CONCURRENCY = 8
"""Threads of a save, and of a restore until more of them were faster."""

_MAX_MEMORY = 256 << 20

_MOST = 64
"""Threads that a restore tries."""

_GAIN = 1.1
"""What twice as many threads must bring, or the restore is at the plateau of the storage."""

_WINDOW_S, _WINDOW_BLOCKS = 0.1, 8
"""A rate is measured for so long, and for so many blocks of each thread."""


class Stream(FileWriter):
    """A writer with ``block_size`` bytes per request and ``concurrency`` requests in flight.

    ``block_size`` 0: a size that fits the storage. ``concurrency`` 0: CONCURRENCY threads save, and
    as many restore as the plateau of the storage needs (see ``_Climb``).
    """

    name = "stream"
    suffix = ".tensors"

    def __init__(self, job: Job, *, block_size: int | str = 0, concurrency: int | str = 0) -> None:
        super().__init__(job)
        self.block_size = parse_size(block_size)
        self.concurrency = int(concurrency) or CONCURRENCY
        self._climb = _Climb(self.concurrency, settled=int(concurrency) != 0)
        held = (self.block_size or OBJECT_BLOCK) * self.concurrency
        if (
            self.block_size % PAGE
            or self.block_size < 0
            or self.concurrency < 1
            or held > _MAX_MEMORY
        ):
            raise UsageError(
                f"writer 'stream' cannot use block_size {self.block_size} with concurrency "
                f"{self.concurrency}",
                remedy="block_size must be a multiple of 4096 bytes, concurrency at least 1, and "
                "all blocks together at most 256 MiB",
            )
        self._free: deque[Bytes] = deque()

    def check(self, state: State, target: CheckpointTarget) -> None:
        super().check(state, target)
        device_leaf = next(
            (
                n
                for n, leaf in leaves(state).items()
                if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu"
            ),
            None,
        )
        if device_leaf is not None:
            raise CheckpointError(
                f"'{device_leaf}' is not in host memory, and stream does not copy from a device",
                remedy="use dcp",
            )
        size = self._block(target)
        if self._free and len(self._free[0]) != size:
            self._free.clear()
        while len(self._free) < self.concurrency:
            self._free.append(private(size).array)  # faulted in before the clock starts

    def _block(self, target: CheckpointTarget) -> int:
        return self.block_size or (FILE_BLOCK if target.path() is not None else OBJECT_BLOCK)

    def write(
        self, state: State, target: CheckpointTarget, *, fsync: bool, clock: SaveClock
    ) -> float:
        layout, block = lay_out(state), self._block(target)
        storage, key = target.storage, target.key(self.file())
        if isinstance(storage, Parallel):
            with storage.create_parallel(
                key, size=layout.size, block_size=block, durable=fsync
            ) as sink:
                size, alignment = sink.block_size, sink.alignment

                def put(offset: int) -> None:
                    with self._bounce(size) as bounce:
                        sink.write_at(offset, gather(layout, offset, size, alignment, bounce))

                self._each(range(0, layout.size, size), put)
                return clock.wall()
        with (
            storage.create(key, size_hint=layout.size, durable=fsync) as plain,
            self._bounce(block) as bounce,
        ):
            for offset in range(0, layout.size, block):
                plain.write(gather(layout, offset, block, 1, bounce))
            return clock.wall()

    def read(self, state: State, target: CheckpointTarget) -> None:
        storage, key, block = (
            target.direct(self.file()),
            target.key(self.file()),
            self._block(target),
        )
        try:
            header = read_header(storage, key, list(leaves(state)))
            layout, copies = layout_from_header(state, header)

            def get(offset: int) -> None:
                with self._bounce(block) as bounce:
                    scatter(storage, key, layout, offset, block, bounce)

            self._climb.limit(_MAX_MEMORY // block)
            self._each(needed(layout, block), get, self._climb)
            self.readers = self._climb.threads
        finally:
            if storage is not target.storage:
                storage.close()
        for tensor, memory in copies:
            tensor.copy_(torch.from_numpy(memory).view(tensor.dtype).reshape(tensor.shape))
        set_values(state, header["values"])

    def _each(
        self, offsets: Iterable[int], work: Callable[[int], None], climb: _Climb | None = None
    ) -> None:
        """Call ``work`` for each offset, in about this order, in ``concurrency`` threads.

        Or in as many as ``climb`` finds. All threads have ended when this returns or raises.
        """
        waiting = deque(offsets)
        stop = threading.Event()
        climb = climb or _Climb(self.concurrency, settled=True)
        done = array("q", bytes(8 * climb.most))  # blocks, by thread

        def drain(number: int) -> None:
            try:
                while number < climb.threads and not stop.is_set():
                    try:
                        offset = waiting.popleft()
                    except IndexError:
                        return
                    work(offset)
                    done[number] += 1
            except BaseException:
                stop.set()
                raise

        futures: list[Future[None]] = []
        with ThreadPoolExecutor(climb.most, thread_name_prefix="iobench-stream") as threads:
            try:
                while True:
                    more = min(climb.threads - len(futures), len(waiting))
                    futures += [threads.submit(drain, len(futures) + n) for n in range(more)]
                    if climb.settled or not waiting or stop.is_set():
                        break
                    wait(futures, timeout=_WINDOW_S / 4)
                    climb.look(sum(done), time.monotonic())
            except BaseException:
                stop.set()
                raise
        climb.pause()
        for future in futures:
            future.result()

    def _bounce(self, size: int) -> _PooledBuffer:
        return _PooledBuffer(self._free, size)

    def close(self) -> None:
        self._free.clear()


class _Climb:
    """How many threads a restore needs: twice as many, as long as they read faster.

    It goes on in the next restore, if the first one ends before it is settled. ``threads``: how
    many may read now. ``most``: how many there may be.
    """

    def __init__(self, threads: int, *, settled: bool) -> None:
        self.threads, self.settled = threads, settled
        self.most = threads if settled else max(threads, _MOST)
        self._before: float | None = None  # blocks/s of half as many threads
        self._since: tuple[int, float] | None = None  # blocks, and the time, when a window began
        self._settling: int | None = None  # blocks with which the next window begins

    def limit(self, most: int) -> None:
        """Have at most so many threads, or as many as there are."""
        self.most = max(self.threads, min(self.most, most))

    def look(self, done: int, now: float) -> None:
        """Be told how many blocks have been read; take more threads, or give the last ones up."""
        if self._settling is None:  # each thread's first block may have been read by fewer
            self._settling = done + 2 * self.threads
        if self._since is None:
            if done >= self._settling:
                self._since = done, now
            return
        blocks, seconds = done - self._since[0], now - self._since[1]
        if seconds < _WINDOW_S or blocks < _WINDOW_BLOCKS * self.threads:
            return
        rate, before = blocks / seconds, self._before
        self.pause()
        if before is not None and rate < _GAIN * before:
            self.threads //= 2
            self.settled = True
        elif 2 * self.threads > self.most:
            self.settled = True
        else:
            self.threads, self._before = 2 * self.threads, rate

    def pause(self) -> None:
        """The next window begins anew."""
        self._since = self._settling = None


class StreamBehind(Behind, Stream):
    """Saves a copy of the state, in a thread, while the training goes on."""

    name = "stream-async"


class _PooledBuffer:
    """Takes a buffer from the pool, and returns it at the end of the ``with`` block."""

    def __init__(self, pool: deque[Bytes], size: int) -> None:
        self._pool = pool
        self._size = size

    def __enter__(self) -> Bytes:
        try:
            self._buffer = self._pool.popleft()
        except IndexError:
            self._buffer = private(self._size).array
        if len(self._buffer) < self._size:
            self._buffer = private(self._size).array
        return self._buffer

    def __exit__(self, *_: object) -> None:
        self._pool.append(self._buffer)


def _pieces(layout: ContainerLayout, start: int, end: int) -> Iterator[tuple[int, Bytes]]:
    """The parts of segments in bytes [start, end) of the file: (distance from start, memory)."""
    first = max(0, bisect_right(layout.segments, start, key=lambda s: s.offset) - 1)
    for segment in layout.segments[first:]:
        if segment.offset >= end:
            return
        low, high = max(start, segment.offset), min(end, segment.offset + len(segment.memory))
        if low < high:
            yield low - start, segment.memory[low - segment.offset : high - segment.offset]


def gather(
    layout: ContainerLayout, offset: int, size: int, alignment: int, bounce: Bytes
) -> Buffer:
    """The memory of one block of the file.

    It is the tensor's own memory if possible, else a copy in ``bounce``. The last block is padded
    to ``alignment`` bytes.
    """
    end = min(offset + size, layout.size)
    length = end - offset
    padded = length + -length % alignment
    filled = 0
    for distance, memory in _pieces(layout, offset, end):
        if len(memory) == padded and memory.ctypes.data % alignment == 0:
            return memory.data
        bounce[filled:distance] = 0
        np.copyto(bounce[distance : distance + len(memory)], memory)
        filled = distance + len(memory)
    bounce[filled:padded] = 0
    return bounce[:padded].data


def scatter(
    storage: Storage, key: str, layout: ContainerLayout, offset: int, size: int, bounce: Bytes
) -> None:
    """Read one block of the file into the tensor's own memory, or by way of ``bounce``.

    Raises ValueError if the file is too short; StorageError.
    """
    end = min(offset + size, layout.size)
    pieces = list(_pieces(layout, offset, end))
    if (
        len(pieces) == 1
        and len(pieces[0][1]) == size
        and pieces[0][1].ctypes.data % storage.alignment == 0
    ):
        if storage.read_into(key, offset, pieces[0][1].data) < size:
            raise ValueError(f"the file ends before byte {end}")
        return
    length = end - offset
    if storage.read_into(key, offset, bounce[: length + -length % storage.alignment].data) < length:
        raise ValueError(f"the file ends before byte {end}")
    for distance, memory in pieces:
        np.copyto(memory, bounce[distance : distance + len(memory)])


def needed(layout: ContainerLayout, size: int) -> list[int]:
    """Offsets of the blocks that contain a tensor's bytes."""
    blocks: set[int] = set()
    for segment in layout.segments:
        blocks.update(
            range(segment.offset // size, (segment.offset + len(segment.memory) - 1) // size + 1)
        )
    return [block * size for block in sorted(blocks)]

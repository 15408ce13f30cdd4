"""``stream``: the fastest way, parallel large blocks between the tensors' memory and the storage.

Local files are written and read with O_DIRECT, S3 objects as parts of a multipart upload and as
ranges; other storages receive blocks in order, and serve ranges in parallel. Besides the state it
takes one block of memory for each thread, whatever the state's size.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from ..buffers import private
from ..errors import CheckpointError, UsageError
from ..storage.base import Buffer, Parallel, Storage
from ..units import parse_size
from .base import Job, State
from .behind import Behind
from .catalog import CheckpointTarget
from .container import PAGE, Layout, Segment, lay_out, layout_from_header, read_header
from .leaves import Bytes, leaves, set_values
from .saving import Clock, FileWriter

FILE_BLOCK = 1 << 20
"""Bytes per block of a local file. Larger blocks were not faster on any disk that was measured,
with ``CONCURRENCY`` blocks in flight."""

OBJECT_BLOCK = 8 << 20
"""Bytes per block of any other storage, where each block is one request."""

CONCURRENCY = 8
_MAX_MEMORY = 256 << 20


class Stream(FileWriter):
    """A writer with ``block_size`` bytes per request and ``concurrency`` requests in flight.

    ``block_size`` 0: a size that fits the storage.
    """

    name = "stream"
    suffix = ".tensors"

    def __init__(
        self, job: Job, *, block_size: int | str = 0, concurrency: int | str = CONCURRENCY
    ) -> None:
        super().__init__(job)
        self.block_size = parse_size(block_size)
        self.concurrency = int(concurrency)
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

    def write(self, state: State, target: CheckpointTarget, *, fsync: bool, clock: Clock) -> float:
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

            self._each(needed(layout, block), get)
        finally:
            if storage is not target.storage:
                storage.close()
        for tensor, memory in copies:
            tensor.copy_(torch.from_numpy(memory).view(tensor.dtype).reshape(tensor.shape))
        set_values(state, header["values"])

    def _each(self, offsets: Any, work: Callable[[int], None]) -> None:
        """Call ``work`` for each offset, in about this order, in ``concurrency`` threads.

        All threads have ended when this returns or raises.
        """
        waiting = deque(offsets)
        stop = threading.Event()

        def drain() -> None:
            try:
                while not stop.is_set():
                    try:
                        offset = waiting.popleft()
                    except IndexError:
                        return
                    work(offset)
            except BaseException:
                stop.set()
                raise

        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="iobench-stream") as threads:
            futures = [threads.submit(drain) for _ in range(min(self.concurrency, len(waiting)))]
        for future in futures:
            future.result()

    def _bounce(self, size: int) -> _PooledBuffer:
        return _PooledBuffer(self._free, size)

    def close(self) -> None:
        self._free.clear()


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


def _pieces(layout: Layout, start: int, end: int) -> Iterator[tuple[int, Bytes]]:
    """The parts of segments in bytes [start, end) of the file: (distance from start, memory)."""
    first = max(0, bisect_right(layout.segments, start, key=lambda s: s.offset) - 1)
    for segment in layout.segments[first:]:
        if segment.offset >= end:
            return
        low, high = max(start, segment.offset), min(end, segment.offset + len(segment.memory))
        if low < high:
            yield low - start, segment.memory[low - segment.offset : high - segment.offset]


def gather(layout: Layout, offset: int, size: int, alignment: int, bounce: Bytes) -> Buffer:
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
    storage: Storage, key: str, layout: Layout, offset: int, size: int, bounce: Bytes
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


def needed(layout: Layout, size: int) -> list[int]:
    """Offsets of the blocks that contain a tensor's bytes."""
    blocks: set[int] = set()
    for segment in layout.segments:
        blocks.update(
            range(segment.offset // size, (segment.offset + len(segment.memory) - 1) // size + 1)
        )
    return [block * size for block in sorted(blocks)]


__all__ = ["Layout", "Segment", "Stream"]

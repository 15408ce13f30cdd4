"""``direct``: parallel reads into memory that is kept, and tensors that are views of it.

Local files are read with O_DIRECT where the storage was opened so, all others by ranges in
parallel. Tensors of a group of blocks are assembled while later ones are read.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, ClassVar, NamedTuple

import torch

from ...base import buffers
from ...load.engines.base import Extent, ReadEngine
from ...load.reader import make_engine
from ...storage.base import Files, Storage
from ..weights import bytes_of, ranges_to_read
from .base import Exchange, Loaded, Stage
from .common import (
    LoadClock,
    OwnTensor,
    Placed,
    Prepared,
    PreparedLoader,
    block_size_option,
    concurrency_option,
    lay_out,
    memory_for,
    view,
)

FILE_BLOCK = 4 << 20
OBJECT_BLOCK = 8 << 20
"""Bytes per request of local files, and of any other storage."""

CONCURRENCY = 8

_GROUP = 64 << 20
"""Bytes after which tensors are assembled while the next ones are read."""


class _Ready(NamedTuple):
    """A tensor, and where in memory the bytes begin that were read of it.

    ``cut_at``: where in the other memory its columns go; None: it is a view.
    """

    own: OwnTensor
    at: int
    cut_at: int | None


class _ReadGroup(NamedTuple):
    """Requests that are waited for together, and the tensors that are complete after them."""

    extents: list[Extent]
    tensors: list[_Ready]


class DirectLoader(PreparedLoader):
    """``block_size`` bytes per request, ``concurrency`` requests in flight.

    ``block_size`` 0: what fits the storage.
    """

    name = "direct"
    sharing: ClassVar = frozenset({"all", "sliced", "exchange"})
    can_leave_out: ClassVar = frozenset({"storage", "assembly", "device"})
    buffered = False

    def __init__(self, *, block_size: int | str = 0, concurrency: int | str = CONCURRENCY) -> None:
        self._block_size = block_size_option(block_size) if block_size else 0
        self.concurrency = concurrency_option(concurrency)
        self._forget()

    def _forget(self) -> None:
        self._engine: ReadEngine | None = None
        self._memory: buffers.Buffer = memoryview(b"")
        self._cut: buffers.Buffer = memoryview(b"")  # where columns are cut out to
        self._groups: list[_ReadGroup] = []
        self._pinned: list[buffers.Memory] = []

    def take_memory(self, prepared: Prepared) -> None:
        storage, exchange = prepared.storage, prepared.exchange
        ranges = ranges_to_read(prepared.weights, prepared.share, alignment=storage.alignment)
        if exchange is None:
            placed, total = lay_out(ranges)
            self._memory = self._take(total, "what this rank reads of the weights")
        else:
            placed = [Placed(each, exchange.at(each)) for each in ranges]
            self._memory = exchange.memory
        cut = sum(own.room for own in prepared.tensors if own.is_cut)
        self._cut = self._take(cut, "what this rank cuts out of the weights")
        self._groups = _groups(prepared.tensors, placed, storage.alignment, exchange)
        self._engine = engine_for(storage, self.concurrency, self.block_on(storage))

    def block_on(self, storage: Storage) -> int:
        """Bytes of a read of this storage."""
        return self._block_size or (FILE_BLOCK if isinstance(storage, Files) else OBJECT_BLOCK)

    def _take(self, nbytes: int, what: str) -> buffers.Buffer:
        """Memory that the device, if there is one, can read by itself."""
        assert self.prepared is not None
        array = memory_for(nbytes, what)
        if self.prepared.on_device:
            code = _cudart().cudaHostRegister(array.ctypes.data, array.nbytes, 0)
            if int(code) == 0:  # else the device copies by way of memory of its own
                self._pinned.append(array)
        return array.data

    def run(self, prepared: Prepared, clock: LoadClock, leave_out: Stage | None) -> Loaded:
        engine, exchange, reads = self._engine, prepared.exchange, leave_out != "storage"
        assert engine is not None
        fetch_s, total = 0.0, 0
        try:
            readings = deque(
                engine.begin(group.extents, self._memory)
                for group in self._groups
                if group.extents and reads
            )
            for group in self._groups:
                if group.extents and reads:
                    total += engine.wait(readings.popleft())
                    fetch_s = clock.seconds()
                if exchange is not None and reads and group is self._groups[-1]:
                    exchange.wait()
                    fetch_s = clock.seconds()
                if leave_out != "assembly":
                    self._assemble(group.tensors, clock)
        except BaseException:
            engine.settle()  # no thread writes to the memory after this
            if exchange is not None:
                exchange.abort()
            raise
        return clock.ended(fetch_s=fetch_s, bytes_read=total)

    def _assemble(self, tensors: list[_Ready], clock: LoadClock) -> None:
        for own, at, cut_at in tensors:
            began = time.perf_counter_ns()
            stored, part = own.stored, own.part
            if cut_at is None or part is None:
                tensor = view(self._memory, at, stored.dtype, own.shape)
            else:
                whole = view(self._memory, at, stored.dtype, stored.shape)
                tensor = view(self._cut, cut_at, stored.dtype, own.shape)
                tensor.copy_(whole.narrow(part.axis, part.start, part.stop - part.start))
            clock.add(stored.name, own.nbytes, tensor, began)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        for array in self._pinned:
            _cudart().cudaHostUnregister(array.ctypes.data)
        self._forget()
        super().close()


def engine_for(storage: Storage, concurrency: int, block_size: int) -> ReadEngine:
    """What reads ranges of this storage in parallel with the least CPU time."""
    return make_engine("event_loop", storage, concurrency=concurrency, block_size=block_size)


def _cudart() -> Any:
    cudart: Any = torch.cuda.cudart
    return cudart()


def _groups(
    tensors: list[OwnTensor], placed: list[Placed], alignment: int, exchange: Exchange | None
) -> list[_ReadGroup]:
    """Group the requests of all ranges; tensors and ranges are in the same order.

    Ranks that exchange have all tensors at the end.
    """
    groups, filled, cut = [_ReadGroup([], [])], 0, 0
    waiting = deque(tensors if exchange is None else ())
    for (shard, start, end), at in placed:
        for begin in range(start, end, _GROUP):
            stop, landing = min(begin + _GROUP, end), at + begin - start
            length = stop - begin + -(stop - begin) % alignment
            groups[-1].extents.append(Extent(shard, begin, length, landing, stop - begin))
            while waiting:
                own = waiting[0]
                held = bytes_of(own.stored, own.part)
                if held.nbytes and not (held.shard == shard and held.end <= stop):
                    break
                cut_at = cut if own.is_cut else None
                groups[-1].tensors.append(_Ready(own, at + held.start - start, cut_at))
                cut += own.room if own.is_cut else 0
                waiting.popleft()
            filled += length
            if filled >= _GROUP:
                groups.append(_ReadGroup([], []))
                filled = 0
    if exchange is not None:
        places = (exchange.at(bytes_of(own.stored, None)) for own in tensors)
        ready = [_Ready(own, at, None) for own, at in zip(tensors, places, strict=True)]
        groups.append(_ReadGroup([], ready))
    groups[-1].tensors.extend(_Ready(own, 0, None) for own in waiting)  # those without bytes
    return groups

"""Where the nodes of an index come from: reads that are begun here and end in any order.

Each read goes to a *slot*, a piece of memory for one node. Local files are read by one ring of
io_uring, all other storage by threads, and a copy in memory by copying.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..base import buffers
from ..base.errors import IobenchError, StorageError
from ..base.interrupts import defer_interrupts
from ..load.engines.base import ends_early
from ..record.manifest import Manifest
from ..storage.base import Storage
from ..storage.local import uring
from ..storage.local.storage import LocalStorage
from ..storage.simulated.memory import MemoryStorage

Numbers = npt.NDArray[np.int64]

MAX_THREADS = 256
"""Threads that read nodes from storage that io_uring can't read."""


class Slots:
    """Memory for nodes, one slot each, and where in the shards each node is.

    A node is at ``head[slot]`` bytes behind the begin of its slot: direct reads begin at a multiple
    of the alignment.
    """

    def __init__(self, manifest: Manifest, alignment: int, count: int) -> None:
        columns = manifest.samples
        self.size = int(columns["stored"].max())
        self.room = -(-self.size // alignment) * alignment + alignment
        self.memory = buffers.private(count * self.room).array
        self.node, self.head = (np.zeros(count, np.int64) for _ in range(2))
        self.key = manifest.key
        self._shard, self._offset, self._alignment = columns["shard"], columns["offset"], alignment

    def place(self, slots: Numbers, nodes: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Say which node each slot is for: the shard, offset and bytes of its read."""
        start = self._offset[nodes].astype(np.int64)
        head = start % self._alignment
        self.node[slots], self.head[slots] = nodes, head
        length = -(-(head + self.size) // self._alignment) * self._alignment
        return self._shard[nodes].astype(np.int64), start - head, length

    def key_of(self, slot: int) -> str:
        """The shard of the node that was read to a slot."""
        return self.key(int(self._shard[self.node[slot]]))

    def check(self, slot: int, count: int) -> None:
        """Check that a read of ``count`` bytes has the whole node. Raises StorageError."""
        needed = int(self.head[slot]) + self.size
        if count < needed:
            end = int(self._offset[self.node[slot]]) + self.size
            raise ends_early(self.key_of(slot), end - needed + count, end)


class EndedReads(NamedTuple):
    """The slots whose reads have ended, and why those of some of them failed."""

    slots: Numbers
    failures: dict[int, IobenchError]

    @classmethod
    def of(cls, reads: Sequence[tuple[int, IobenchError | None]]) -> EndedReads:
        failures = {slot: why for slot, why in reads if why is not None}
        return cls(np.array([slot for slot, _ in reads], np.int64), failures)


class NodeSource(Protocol):
    """Reads nodes into slots. For one thread."""

    def begin(self, slots: Numbers, nodes: Numbers) -> None:
        """Begin to read these nodes into these slots."""

    def wait(self, until_ns: int | None) -> EndedReads:
        """Wait until a read has ended, or until an instant of the monotonic clock.

        No instant is before that of an earlier call. None: only for a read, of which one is begun.
        """

    def close(self) -> None:
        """Wait for all reads, and give back what is held, but not the storage."""


def node_source(storage: Storage, slots: Slots) -> NodeSource:
    """The fastest source for this storage."""
    if isinstance(storage, MemoryStorage):
        return _Copies(storage, slots)
    if isinstance(storage, LocalStorage) and not uring.refused():
        return _Ring(storage, slots)
    return _Threads(storage, slots)


class _Copies:
    """Nodes in memory."""

    def __init__(self, storage: Storage, slots: Slots) -> None:
        self._storage, self._slots = storage, slots
        self._ended: list[tuple[int, IobenchError | None]] = []

    def begin(self, slots: Numbers, nodes: Numbers) -> None:
        wanted = self._slots.place(slots, nodes)
        for slot, shard, offset, length in zip(
            slots.tolist(), *(each.tolist() for each in wanted), strict=True
        ):
            self._ended.append(_read(self._storage, self._slots, slot, shard, offset, length))

    def wait(self, until_ns: int | None) -> EndedReads:
        if not self._ended and until_ns is not None:
            time.sleep(max(0, until_ns - time.monotonic_ns()) / 1e9)
        ended, self._ended = self._ended, []
        return EndedReads.of(ended)

    def close(self) -> None:
        return


def _read(
    storage: Storage, slots: Slots, slot: int, shard: int, offset: int, length: int
) -> tuple[int, IobenchError | None]:
    memory = slots.memory.data[slot * slots.room :][:length]
    try:
        slots.check(slot, storage.read_into(slots.key(shard), offset, memory))
    except IobenchError as error:
        return slot, error
    return slot, None


class _Threads:
    """Nodes of any storage, by as many threads as slots, up to ``MAX_THREADS``."""

    def __init__(self, storage: Storage, slots: Slots) -> None:
        self._storage, self._slots = storage, slots
        self._pool = ThreadPoolExecutor(
            min(MAX_THREADS, len(slots.node)), thread_name_prefix="iobench-node"
        )
        self._done: SimpleQueue[Future[tuple[int, IobenchError | None]]] = SimpleQueue()

    def begin(self, slots: Numbers, nodes: Numbers) -> None:
        wanted = self._slots.place(slots, nodes)
        for each in zip(slots.tolist(), *(column.tolist() for column in wanted), strict=True):
            read = self._pool.submit(_read, self._storage, self._slots, *each)
            read.add_done_callback(self._done.put)

    def wait(self, until_ns: int | None) -> EndedReads:
        ended = []
        left = None if until_ns is None else max(0, until_ns - time.monotonic_ns()) / 1e9
        with suppress(Empty):
            ended.append(self._done.get(timeout=left))
            while True:
                ended.append(self._done.get_nowait())
        return EndedReads.of([read.result() for read in ended])

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


_TIMER, _ABSOLUTE = -2, 1  # ``user`` of the timer; IORING_TIMEOUT_ABS


class _Ring:
    """Nodes of local files, by io_uring: registered files and memory, no thread for a read."""

    def __init__(self, storage: LocalStorage, slots: Slots) -> None:
        self._storage, self._slots = storage, slots
        self._ring = uring.Ring(min(32_768, 2 * len(slots.node) + 2))
        self._fds: dict[int, int] = {}
        address, nbytes = slots.memory.ctypes.data, slots.memory.nbytes
        fixed = nbytes <= uring.LARGEST_BUFFER and self._ring.keep_buffers(1)
        fixed = fixed and self._ring.set_buffer(0, address, nbytes)
        self._reads = np.zeros(len(slots.node), uring.REQUEST)
        self._reads["opcode"] = uring.READ_FIXED if fixed else uring.READ
        self._reads["user"] = np.arange(len(slots.node))
        self._reads["address"] = address + np.arange(len(slots.node)) * slots.room
        self._moment = (ctypes.c_int64 * 2)()
        self._timer = np.zeros(1, uring.REQUEST)
        self._timer["opcode"], self._timer["fd"], self._timer["user"] = uring.TIMEOUT, -1, _TIMER
        self._timer["address"] = ctypes.addressof(self._moment)
        self._timer["length"], self._timer["options"] = 1, _ABSOLUTE
        self._armed = False

    def begin(self, slots: Numbers, nodes: Numbers) -> None:
        shard, offset, length = self._slots.place(slots, nodes)
        requests = self._reads[slots]
        requests["fd"] = [self._file(each) for each in shard.tolist()]
        requests["offset"], requests["length"] = offset, length
        self._ring.put(requests)

    def _file(self, shard: int) -> int:
        fd = self._fds.get(shard)
        if fd is None:
            with defer_interrupts():
                fd = self._fds[shard] = self._storage.open_file(self._slots.key(shard))
        return fd

    def wait(self, until_ns: int | None) -> EndedReads:
        if until_ns is not None and not self._armed:
            self._armed = True
            self._moment[0], self._moment[1] = divmod(until_ns, 1_000_000_000)
            self._ring.put(self._timer)
        self._ring.enter(1)
        slots, results = self._ring.completions()
        self._ring.drop()
        if self._armed and (timer := slots == _TIMER).any():
            self._armed = False
            slots, results = slots[~timer], results[~timer]
        short = results < self._slots.head[slots] + self._slots.size
        failed = zip(slots[short].tolist(), results[short].tolist(), strict=True)
        return EndedReads(slots, {slot: self._failure(slot, result) for slot, result in failed})

    def _failure(self, slot: int, result: int) -> IobenchError:
        try:
            if result < 0:
                raise OSError(-result, os.strerror(-result))
            self._slots.check(slot, result)
        except StorageError as error:
            return error
        except OSError as error:
            return self._storage.failed("read", self._slots.key_of(slot), error)
        raise AssertionError("a read that is not short")

    def close(self) -> None:
        self._ring.await_all()
        self._ring.close()
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

"""The read engine over io_uring: one thread, and one system call for many requests.

It has the interface of ``ReadEngine`` and of ``ReadAhead``. Requests are kept, issued and checked
as arrays. Shards are kept open; files of one sample each are opened through the ring as well, so
that an open that waits for the storage holds up no other request.
"""

from __future__ import annotations

import errno
import os
import resource
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .. import buffers
from ..buffers import Buffer
from ..errors import StorageError
from ..storage.local.storage import ALIGNMENT, LocalStorage
from ..storage.local.uring import NOBODY, OPENAT, READ, REQUEST, Ring
from .engine import Columns, Extent, ReadEngine, Then, ends_early

_OPENED = 1 << 32
"""Bit of a completion's ``user``: it opened a file. The lower bits are the place in the window."""

_KEPT_OPEN = 128
"""Shards that stay open."""

_SHARE = 4
"""Open shards may take 1/_SHARE of the descriptors that the process may have."""

_AGAIN = (-errno.EINTR, -errno.EAGAIN)


class _Reading:
    """The requests of one batch, which were issued together. The first ``next`` are begun."""

    def __init__(self, columns: Columns, memory: Buffer | None, then: Then | None) -> None:
        self.columns = columns
        self.memory = memory  # keeps it alive
        self.address = 0 if memory is None else _address(memory)
        self.then = then
        self.next = 0
        self.left = len(columns.keys)
        self.total = 0
        self.failure: BaseException | None = None


class UringEngine(ReadEngine):
    """Reads files of a ``LocalStorage`` with up to ``concurrency`` requests in flight.

    As for ``ReadEngine``: one per process, and here also for one thread at a time.
    """

    storage: LocalStorage

    def __init__(
        self, storage: LocalStorage, *, concurrency: int, block_size: int, once: bool = False
    ) -> None:
        super().__init__(storage, concurrency=concurrency, block_size=block_size, once=once)
        self._ring: Ring | None = None
        self._scratch: Buffer | None = None
        self._start()

    def _start(self) -> None:
        """Begin with an empty window. Each place in it holds one request in flight."""
        size = self.concurrency
        self._free = list(range(size))
        self._reading: list[_Reading | None] = [None] * size
        self._number = np.zeros(size, np.int64)  # of the request in its reading
        self._had = np.zeros(size, np.int64)  # bytes of it that were read
        self._length, self._needed = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._offset, self._target = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._fd = np.full(size, -1, np.int32)
        self._shard = np.full(size, -1, np.int64)  # its place among the open shards; -1: none
        self._readable: list[int] = []  # places whose file is open, and whose read is to be issued
        self._pending: deque[_Reading] = deque()
        self._live: list[_Reading] = []
        self._shards = _OpenShards(self.storage, size)

    # What a reader calls

    def reserve(self) -> None:
        """Allocate and touch one block for each request in flight, for reads without ``memory``."""
        self._counting()

    def read(
        self, extents: Sequence[Extent] | Columns, memory: Buffer | None, then: Then | None = None
    ) -> int:
        """As ``ReadEngine.read``, with ``then`` called in this thread."""
        return self.wait(self.begin(extents, memory, then))

    def begin(
        self, extents: Sequence[Extent] | Columns, memory: Buffer | None, then: Then | None = None
    ) -> _Reading:
        """Issue the requests for these extents, as far as the window has room for them.

        The memory must not be used before ``wait`` or ``settle`` has returned.
        """
        ring = self._own_ring()
        columns = extents if isinstance(extents, Columns) else Columns.of(extents)
        reading = _Reading(columns.blocks(self.block_size), memory, then)
        self._pending.append(reading)
        self._live.append(reading)
        self._fill(ring)
        ring.enter(0)
        return reading

    def wait(self, reading: _Reading) -> int:
        """Wait for a reading, and return the number of bytes that were read.

        Raises its first error when none of its requests is in flight any more.
        """
        try:
            ring = self._own_ring()
            while reading.left:
                self._fill(ring)
                busy = self.concurrency - len(self._free)
                # To wait for some completions at a time saves system calls; the rest of the window
                # keeps the storage busy.
                ring.enter(min(busy, reading.left, max(1, self.concurrency // 4)))
                self._collect(ring)
        except BaseException:  # an interrupt, or a failure of the ring itself
            self.settle()
            raise
        if reading in self._live:
            self._live.remove(reading)
        if reading.failure is not None:
            raise reading.failure
        return reading.total

    def settle(self) -> None:
        """Leave out all requests that were not begun, and wait for those in flight."""
        for reading in self._live:
            reading.failure = reading.failure or StorageError("the read was given up")
            reading.left = 0
        ring, self._ring = self._ring, None
        if ring is not None and ring.mine:
            # Counted by the kernel: an interrupt may have come between any two of our own counts.
            held = set(self._fd.tolist()) - {-1} - self._shards.descriptors()
            ring.enter(0)
            if ring.in_flight:
                ring.cancel_all()
                ring.enter(0)
            while True:
                for user, result, _ in ring.collect().tolist():
                    if user != NOBODY and user & _OPENED and result >= 0:
                        held.add(result)
                if not ring.in_flight:
                    break
                ring.enter(1)
            ring.close()
            for fd in held:
                os.close(fd)
            self._shards.close()
        self._start()

    def close(self) -> None:
        self.settle()
        super().close()

    # The ring

    def _own_ring(self) -> Ring:
        ring = self._ring
        if ring is None or not ring.mine:  # a ring does not survive a fork
            if ring is not None:
                self._shards.close()  # in a forked child: its own copies of the descriptors
                self._start()
            try:
                ring = self._ring = Ring(1 << (2 * self.concurrency - 1).bit_length())
            except OSError as error:  # no descriptor or no locked memory is left
                raise StorageError(
                    f"cannot make a ring of io_uring for {self.concurrency} reads in flight: "
                    f"{error.strerror}",
                    remedy="use --set reader.engine=threads, or a smaller reader.concurrency",
                ) from error
        return ring

    def _fill(self, ring: Ring) -> None:
        """Issue requests until the window is full or none is left."""
        if self._readable:
            places, self._readable = self._readable, []
            self._issue(ring, np.array(places))
        while self._pending and self._free:
            reading = self._pending[0]
            columns = reading.columns
            if reading.failure is not None:  # the batch has failed: its other requests are useless
                reading.left -= len(columns.keys) - reading.next
                reading.next = len(columns.keys)
            few = min(len(self._free), len(columns.keys) - reading.next)
            if reading.next + few == len(columns.keys):
                self._pending.popleft()
            if few:
                places = self._free[-few:]
                del self._free[-few:]
                self._take(ring, reading, np.array(places))

    def _take(self, ring: Ring, reading: _Reading, places: npt.NDArray[np.int64]) -> None:
        """Put the next requests of a reading in these places of the window, and issue them."""
        columns, few = reading.columns, len(places)
        chosen = slice(reading.next, reading.next + few)
        reading.next += few
        for place in places.tolist():
            self._reading[place] = reading
        self._number[places] = np.arange(chosen.start, chosen.stop)
        self._had[places] = 0
        self._length[places], self._needed[places] = columns.length[chosen], columns.needed[chosen]
        self._offset[places] = columns.offset[chosen]
        if reading.memory is None:
            self._target[places] = self._counting() + places * self.block_size
        else:
            self._target[places] = columns.landing[chosen] + reading.address
        keys = columns.keys[chosen]
        self._fd[places], self._shard[places] = -1, -1
        if self.once and not columns.split:
            self._open_files(ring, keys, places)
            return
        try:
            shards = self._shards.take(keys)
        except StorageError as error:
            for place in places.tolist():
                self._fail(place, error)
            return
        self._shard[places] = shards
        self._fd[places] = self._shards.fds[shards]
        self._issue(ring, places)

    def _issue(self, ring: Ring, places: npt.NDArray[np.int64]) -> None:
        requests = np.zeros(len(places), REQUEST)
        had = self._had[places]
        requests["opcode"] = READ
        requests["fd"] = self._fd[places]
        requests["offset"] = self._offset[places] + had
        requests["address"] = self._target[places] + had
        requests["length"] = self._length[places] - had
        requests["user"] = places
        ring.put(requests)

    def _open_files(self, ring: Ring, keys: Sequence[str], places: npt.NDArray[np.int64]) -> None:
        directory, flags = self.storage.opening()
        quick = []
        for place, key in zip(places.tolist(), keys, strict=True):
            if self.storage.may_open(key):
                quick.append((place, os.fsencode(key)))
            else:
                self._open_here(place, key)
        if not quick:
            return
        paths = b"\0".join(path for _, path in quick) + b"\0"
        lengths = np.fromiter((len(path) + 1 for _, path in quick), np.int64, len(quick))
        requests = np.zeros(len(quick), REQUEST)
        requests["opcode"], requests["fd"], requests["options"] = OPENAT, directory, flags
        requests["address"] = _address(paths) + np.cumsum(lengths) - lengths
        requests["user"] = [place | _OPENED for place, _ in quick]
        ring.put(requests)
        ring.enter(0)  # the kernel copies the paths in this call

    def _open_here(self, place: int, key: str) -> None:
        """Open a file with all checks, and every failure told; the read follows."""
        try:
            self._fd[place] = self.storage.open_file(key)
        except StorageError as error:
            self._fail(place, error)
        else:
            self._readable.append(place)

    def _counting(self) -> int:
        """The address of memory for bytes that are only counted: one block for each request."""
        if self._scratch is None:
            self._scratch = buffers.private(self.concurrency * self.block_size).array.data
        return _address(self._scratch)

    # Completions

    def _collect(self, ring: Ring) -> None:
        found = ring.collect()
        user, result = found["user"].astype(np.int64), found["result"].astype(np.int64)
        opens = user >= _OPENED
        if opens.any():
            places = (user[opens] - _OPENED).tolist()
            for place, fd in zip(places, result[opens].tolist(), strict=True):
                self._opened(place, fd)
            user, result = user[~opens], result[~opens]
        if not len(user):
            return
        had = self._had[user] + result
        ended = (had == self._length[user]) | (result == 0)
        if self.storage.direct:
            # A direct read of unaligned length has reached the end of the file.
            ended |= had % ALIGNMENT != 0
        good = (result >= 0) & ended & (had >= self._needed[user])
        if not good.all():
            for place, count in zip(user[~good].tolist(), result[~good].tolist(), strict=True):
                self._go_on(place, count)
            user, had = user[good], had[good]
        self._finish(user, had)

    def _opened(self, place: int, fd: int) -> None:
        reading = self._reading[place]
        assert reading is not None
        key = reading.columns.keys[int(self._number[place])]
        if fd < 0:
            self._open_here(place, key)
            return
        try:
            self._fd[place] = self.storage.opened(key, fd)
        except StorageError as error:
            self._fail(place, error)
        else:
            self._readable.append(place)

    def _go_on(self, place: int, count: int) -> None:
        """Issue the rest of a short read again, or fail."""
        reading = self._reading[place]
        assert reading is not None
        key = reading.columns.keys[int(self._number[place])]
        if count > 0:
            self._had[place] += count
            had = int(self._had[place])
            if had < self._length[place] and not (self.storage.direct and had % ALIGNMENT):
                self._readable.append(place)
                return
        elif count in _AGAIN:
            self._readable.append(place)
            return
        elif count < 0:
            error = OSError(-count, os.strerror(-count))
            self._fail(place, self.storage.failed("read", key, error))
            return
        offset = int(self._offset[place])
        needed = int(self._needed[place])
        self._fail(place, ends_early(key, offset + int(self._had[place]), offset + needed))

    def _fail(self, place: int, failure: BaseException) -> None:
        reading = self._reading[place]
        assert reading is not None
        reading.failure = reading.failure or failure
        self._finish(np.array([place]), np.zeros(1, np.int64))

    def _finish(self, places: npt.NDArray[np.int64], had: npt.NDArray[np.int64]) -> None:
        """Take these requests out of the window."""
        shards = self._shard[places]
        files = self._fd[places][shards < 0].tolist()
        self._fd[places] = -1
        for fd in files:
            if fd >= 0:
                os.close(fd)
        self._shards.give(shards[shards >= 0])
        for place, count in zip(places.tolist(), had.tolist(), strict=True):
            reading = self._reading[place]
            assert reading is not None
            self._reading[place] = None
            reading.left -= 1
            reading.total += count
            if reading.then is not None and reading.failure is None and not reading.columns.split:
                try:
                    reading.then(int(reading.columns.landing[self._number[place]]))
                except BaseException as error:
                    reading.failure = error
            self._free.append(place)


class _OpenShards:
    """Shards that are kept open. ``fds``: the descriptor at each place."""

    def __init__(self, storage: LocalStorage, concurrency: int) -> None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        few = _KEPT_OPEN if soft == resource.RLIM_INFINITY else min(_KEPT_OPEN, soft // _SHARE)
        size = max(few, concurrency)  # each request in flight may have a shard of its own
        self._storage = storage
        self._places: dict[str, int] = {}
        self._keys: list[str | None] = [None] * size
        self._users = np.zeros(size, np.int64)
        self._last = np.zeros(size, np.int64)
        self._turn = 0
        self.fds = np.full(size, -1, np.int32)

    def take(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the place of each key's shard, which stays open until ``give``.

        Raises StorageError, with no shard taken.
        """
        self._turn += 1
        found: list[int] = []
        try:
            for key in keys:
                place = self._places.get(key, -1)
                if place < 0:
                    place = self._open(key)
                found.append(place)
                self._users[place] += 1
        except StorageError:
            self.give(np.array(found, np.int64))
            raise
        places = np.array(found, np.int64)
        self._last[places] = self._turn
        return places

    def give(self, places: npt.NDArray[np.int64]) -> None:
        np.subtract.at(self._users, places, 1)

    def _open(self, key: str) -> int:
        fd = self._storage.open_file(key)
        idle = np.where(self._users == 0, self._last, np.iinfo(np.int64).max)
        place = int(np.argmin(idle))
        before = self._keys[place]
        if before is not None:
            del self._places[before]
            os.close(int(self.fds[place]))
        self._keys[place], self.fds[place] = key, fd
        self._places[key] = place
        return place

    def descriptors(self) -> set[int]:
        return {int(self.fds[place]) for place in self._places.values()}

    def close(self) -> None:
        for fd in self.descriptors():
            os.close(fd)
        self._places.clear()


def _address(memory: Buffer | bytes) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)

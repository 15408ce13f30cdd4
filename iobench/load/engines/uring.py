"""The read engine over io_uring: one thread, and one system call for many requests.

Requests are kept, issued and checked
as arrays. Shards are kept open. A file of one sample is opened through the ring as well, so that an
open that waits for the storage holds up no other request. Once it is known to be a regular file,
its open, read and close are issued together, as a chain. No file is read with O_NONBLOCK: some
file systems ignore it, and the kernel would let this thread wait for each of their reads.
"""

from __future__ import annotations

import errno
import os
import resource
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...base import buffers
from ...base.buffers import Buffer
from ...base.errors import StorageError
from ...base.interrupts import defer_interrupts
from ...storage.local.storage import ALIGNMENT, LocalStorage
from ...storage.local.uring import (
    CLOSE,
    FIXED_FILE,
    HARDLINK,
    LARGEST_BUFFER,
    OPENAT,
    READ,
    READ_FIXED,
    REQUEST,
    Ring,
)
from .base import Columns, Extents, ReadEngine, Reading, Then, ends_early

_READ, _OPENED, _HAD, _CLOSED, _AGAIN, _NOTHING = range(6)
"""What has ended: the read of a shard; of a file that is opened for one request its open, its read
and its close; a read that was issued alone; what needs no look."""

_NUMBER, _KIND = 32, 60
"""Bits of a completion's ``user``: below them the request in its reading, then the number of the
reading, then what has ended."""

_INDEX, _NUMBERS = (1 << _NUMBER) - 1, (1 << (_KIND - _NUMBER)) - 1

_FEW = 6
"""Completions up to which a loop costs less than operations on arrays."""

_LINKED, _LARGE = 32, 256 << 10
"""Up to so many reads of so many bytes follow one another in the kernel, with one place in the
window for all: Python wakes up less often, and no fewer reads are in flight."""

_ENTRIES = 2048
"""Requests in a ring beyond which no more reads are linked."""

_KEPT_OPEN = 128
"""Shards that stay open, if no more are read at a time."""

_SHARE = 4
"""An engine takes at most 1/_SHARE of the descriptors that the process may have."""

_TRY_AGAIN = (-errno.EINTR, -errno.EAGAIN)

_NOT_REGISTERED = (-errno.EFAULT, -errno.EINVAL, -errno.EOPNOTSUPP)
"""What a file system may say that can't read into registered memory."""

_BUFFERS = 256
"""Places for registered memory."""

_LEFT: list[object] = []
"""Rings whose threads have not waited for them, with the memory into which the kernel may write."""

Numbers = npt.NDArray[np.int64]


class _Part:
    """Requests of a reading, up to ``stop``, whose shards were opened together."""

    def __init__(self, start: int, stop: int, shards: Numbers) -> None:
        self.start, self.stop = start, stop
        self.left = stop - start  # requests that have not ended
        self.shards = shards  # their places among the open shards


class _Files:
    """What requests need that each open a file of their own, read it and close it."""

    def __init__(self, columns: Columns, storage: LocalStorage, *, chain: bool) -> None:
        count, keys = len(columns.key), columns.keys
        paths = [os.fsencode(key) for key in keys]
        lengths = np.fromiter(map(len, paths), np.int64, len(paths)) + 1
        self.paths = b"\0".join(paths) + b"\0"
        self.at = (_address(self.paths) + np.cumsum(lengths) - lengths)[columns.key]
        # Known files are opened, read and closed in a chain, with a place in the ring in place of a
        # descriptor. Of others the open is issued alone: it must be looked at before the read.
        known = np.fromiter(map(storage.is_known, keys), bool, len(keys))
        self.chained = known[columns.key] & chain
        self.place = np.full(count, -1, np.int64)  # of a registered file
        self.fd = np.full(count, -1, np.int64)  # a descriptor that is open
        self.result = np.zeros(count, np.int64)  # of the read


class _Registered(NamedTuple):
    """Memory that is registered, in pieces of LARGEST_BUFFER from ``place`` on."""

    start: int
    stop: int
    place: int


class RingReading(Reading):
    """Requests in a ring. Those before ``next`` are begun, those before ``ready`` may be.

    ``requests``: what is issued for each of them, a row of one read, or of an open, a read and a
    close.
    """

    def __init__(
        self,
        number: int,
        columns: Columns,
        memory: Buffer | None,
        then: Then | None,
        files: _Files | None,
    ) -> None:
        super().__init__(memory, then)
        self.number = number
        self.columns = columns
        self.files = files
        self.left = count = len(columns.key)
        self.next = 0
        self.ready = count if files is not None else 0
        self.parts: list[_Part] = []
        self.linked = 1  # reads that follow one another
        self.followed = np.zeros(count, bool)  # by another one, which takes its place in the window
        self.had: dict[int, int] = {}  # bytes of requests that were issued again
        self.lengths: list[int] = []  # of each request, once one of them is asked for
        self.requests = np.zeros((count, 1 if files is None else 3), REQUEST)
        self.reads = self.requests[:, 0 if files is None else 1]
        self.reads["opcode"] = READ
        self.reads["offset"], self.reads["length"] = columns.offset, columns.length
        self.reads["user"] = self._users(_READ if files is None else _HAD)

    def open_files(self, files: _Files, directory: int, options: int) -> None:
        opens, reads, closes = self.requests.T
        opens["opcode"], closes["opcode"] = OPENAT, CLOSE
        opens["address"], opens["fd"] = files.at, directory
        # Whatever a step gives, the next one follows: the close in any case.
        reads["flags"] = HARDLINK
        opens["options"] = options
        opens["user"], closes["user"] = self._users(_OPENED), self._users(_CLOSED)
        if files.chained.any():
            of = files.chained
            reads["flags"][of] |= FIXED_FILE
            opens["flags"][of] = HARDLINK
            opens["options"][of] = options & ~(os.O_CLOEXEC | os.O_NONBLOCK)
            opens["user"][of] = self._users(_NOTHING)[of]

    def _users(self, kind: int) -> Numbers:
        first = kind << _KIND | self.number << _NUMBER
        return np.arange(first, first + len(self.columns.key))

    def key(self, index: int) -> str:
        return self.columns.keys[int(self.columns.key[index])]


class UringEngine(ReadEngine):
    """Reads files of a ``LocalStorage`` with up to ``concurrency`` requests in flight.

    As for ``ReadEngine``: one per process, and here also for one thread at a time.
    """

    storage: LocalStorage

    def __init__(
        self, storage: LocalStorage, *, concurrency: int, block_size: int, once: bool = False
    ) -> None:
        super().__init__(storage, concurrency=concurrency, block_size=block_size, once=once)
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._descriptors = max(1, soft // _SHARE) if soft != resource.RLIM_INFINITY else 1 << 20
        self._linked = max(1, min(_LINKED, _ENTRIES // concurrency))
        self._ring: Ring | None = None
        self._regions: list[Buffer] = []  # to be registered with each ring
        self._scratch: Buffer | None = None
        self._number = 0
        self._start()

    def _start(self) -> None:
        """Begin with an empty window."""
        self._busy = 0  # requests that were begun and have not ended
        self._opened = 0  # of them those that may each have a descriptor
        self._pending: deque[RingReading] = deque()
        self._live: dict[int, RingReading] = {}
        self._places: list[int] = []  # free places of registered files, for chains
        self._shards = _OpenShards(self.storage, 0)
        self._registered: list[_Registered] = []

    # What a reader calls

    def reserve(self) -> None:
        """Allocate and touch one block for each request in flight, for reads without ``memory``."""
        self._counting()

    def register(self, memory: Buffer) -> None:
        """Have the kernel pin this memory once, and not for each direct read into it."""
        if self.storage.direct:
            self._regions.append(memory)
            if self._ring is not None and self._ring.mine:
                self._register(self._ring, memory)

    def read(self, extents: Extents, memory: Buffer | None, then: Then | None = None) -> int:
        """As ``ReadEngine.read``, with ``then`` called in this thread."""
        reading = None
        try:
            reading = self.begin(extents, memory, then)
            return self.wait(reading)
        except BaseException:
            if reading is None or reading.left:  # an interrupt came between the two
                self.settle()
            raise

    def begin(
        self, extents: Extents, memory: Buffer | None, then: Then | None = None
    ) -> RingReading:
        """As ``ReadEngine.begin``, as far as the window has room for the requests."""
        try:
            with defer_interrupts():
                return self._begin(extents, memory, then)
        except BaseException:
            self.settle()
            raise

    def _begin(self, extents: Extents, memory: Buffer | None, then: Then | None) -> RingReading:
        ring = self._own_ring()
        columns = self.requests_of(extents)
        files = None
        if self.once and columns.whole is None:
            files = _Files(columns, self.storage, chain=bool(self._shards.ring))
        self._number = (self._number + 1) & _NUMBERS
        reading = RingReading(self._number, columns, memory, then, files)
        if files is not None:
            reading.open_files(files, *self.storage.opening())
        elif reading.left and int(columns.length.mean()) >= _LARGE:
            reading.linked = min(self._linked, -(-reading.left // self.concurrency))
        if memory is None:
            # Linked reads take turns in one block, so that those in flight have one each.
            turns = np.arange(reading.left) // reading.linked % self.concurrency
            reading.reads["address"] = self._counting() + turns * self.block_size
        else:
            reading.reads["address"] = columns.landing + _address(memory)
        if self._registered and reading.left:
            self._use_registered(reading)
        if reading.left:
            self._live[reading.number] = reading
            self._pending.append(reading)
            self._fill(ring)
            ring.enter(0)
        return reading

    def wait(self, reading: RingReading) -> int:
        """As ``ReadEngine.wait``."""
        try:
            while reading.left:
                with defer_interrupts() as arrived:
                    self._wait(reading, arrived)
        except BaseException:  # an interrupt, or a failure of the ring itself
            self.settle()
            raise
        self._live.pop(reading.number, None)
        return reading.result()

    def _wait(self, reading: RingReading, arrived: Sequence[int]) -> None:
        """Wait until a reading has ended, or an interrupt has arrived."""
        ring = self._own_ring()
        if self._live.get(reading.number) is not reading:
            raise StorageError("the read was given up")  # it was begun before a fork
        # To wait for some completions at a time saves system calls; the rest of the window keeps
        # the storage busy.
        some = max(1, self.concurrency // 4) * reading.requests.shape[1]
        whole = reading.then is None and reading.files is None
        while reading.left and not arrived:
            self._fill(ring)
            if self._pending:
                wanted = some * self._pending[0].linked
            else:
                wanted = reading.left if whole else some
            ring.enter(min(ring.awaited, reading.left, wanted))
            self._collect(ring)

    def settle(self) -> None:
        """As ``ReadEngine.settle``."""
        for reading in self._live.values():
            reading.failure = reading.failure or StorageError("the read was given up")
            reading.left = 0
        ring = self._ring
        if ring is not None and not ring.is_open:  # both were dropped at the same time
            ring = self._ring = None
        if ring is not None and ring.mine:
            with defer_interrupts():
                ring.cancel_all()
                ring.enter(0)
            while ring.awaited:  # counted by the kernel
                ring.enter(1)
                with defer_interrupts():
                    self._note_descriptors(ring)
        with defer_interrupts():
            if ring is not None and ring.mine:
                self._note_descriptors(ring)
                ring.close()
            self._close_files()  # in a forked child, its own copies of the descriptors
            self._ring = None
            self._start()

    def __del__(self) -> None:
        """Leave nothing in flight: the kernel would write into memory that others get next.

        Another thread than the ring's own can't wait for it. Then the memory is kept.
        """
        ring = getattr(self, "_ring", None)
        if ring is None or os is None or not ring.is_open:  # None at the interpreter's end
            return
        if ring.mine:
            self.settle()
        elif ring.left:
            _LEFT.append((ring, self._live, self._regions, self._scratch))

    def _note_descriptors(self, ring: Ring) -> None:
        """Drop all completions; remember only which descriptors the kernel opened and closed."""
        for part in self._by_reading(*ring.completions()):
            _note_descriptors(*part)
        ring.drop()

    def close(self) -> None:
        self.settle()
        self._regions, self._scratch = [], None

    # The ring

    def _own_ring(self) -> Ring:
        ring = self._ring
        if ring is None or not ring.mine:  # a ring does not survive a fork
            if ring is not None:
                self.settle()
            # A file that is opened for one request takes three: open, read and close.
            entries = 1 << (max(3, self._linked) * self.concurrency).bit_length()
            try:
                ring = self._ring = Ring(entries)
            except OSError as error:  # no descriptor or no locked memory is left
                raise StorageError(
                    f"cannot make a ring of io_uring for {self.concurrency} reads in flight: "
                    f"{error.strerror}",
                    remedy="use --set reader.engine=threads, or a smaller reader.concurrency",
                ) from error
            chains = self.concurrency
            most = max(_KEPT_OPEN, chains)  # each request in flight may have a shard of its own
            if ring.keep_places(chains + most):
                self._places = list(range(chains))
                self._shards = _OpenShards(self.storage, most, ring, chains)
            else:  # each takes a descriptor
                self._shards = _OpenShards(self.storage, min(_KEPT_OPEN, self._descriptors))
            if self.storage.direct and ring.keep_buffers(_BUFFERS):
                for memory in self._regions:
                    self._register(ring, memory)
        return ring

    def _register(self, ring: Ring, memory: Buffer) -> None:
        start, place = _address(memory), 0
        if self._registered:
            last = self._registered[-1]
            place = last.place - (last.start - last.stop) // LARGEST_BUFFER
        pieces = range(start, start + len(memory), LARGEST_BUFFER)
        if place + len(pieces) > _BUFFERS:
            return
        for number, piece in enumerate(pieces, place):
            nbytes = min(LARGEST_BUFFER, start + len(memory) - piece)
            if not ring.set_buffer(number, piece, nbytes):
                return  # the places can be used again
        self._registered.append(_Registered(start, start + len(memory), place))

    def _use_registered(self, reading: RingReading) -> None:
        """Read into registered memory as such, where a request does not leave a piece of it."""
        reads = reading.reads
        first = reads["address"].astype(np.int64)
        last = first + np.maximum(reading.columns.length, 1) - 1
        for start, stop, place in self._registered:
            if start <= first[0] < stop:
                piece = (first - start) // LARGEST_BUFFER
                whole = (piece == (last - start) // LARGEST_BUFFER) & (last < stop) & (piece >= 0)
                reads["opcode"][whole] = READ_FIXED
                reads["buffer"][whole] = place + piece[whole]
                break

    def _close_files(self) -> None:
        for reading in self._live.values():
            if reading.files is not None:
                for fd in reading.files.fd[reading.files.fd >= 0].tolist():
                    os.close(fd)
        self._shards.close()

    def _fill(self, ring: Ring) -> None:
        """Issue requests until the window is full or none is left."""
        while self._pending and self._busy < self.concurrency:
            reading = self._pending[0]
            if reading.failure is not None:  # the batch has failed: its other requests are useless
                self._leave_out(reading)
            elif reading.next < reading.ready or self._open_shards(reading):
                first = reading.next
                linked = reading.linked
                stop = min(first + (self.concurrency - self._busy) * linked, reading.ready)
                if (files := reading.files) is not None and not files.chained.all():
                    stop = min(stop, first + self._descriptors - self._opened)
                    if stop <= first:
                        return  # other files must be closed first
                    self._opened += stop - first
                reading.next = stop
                self._busy += -(-(stop - first) // linked)
                if linked > 1:
                    reading.followed[first : stop - 1] = True
                    reading.followed[first + linked - 1 : stop : linked] = False
                    reading.reads["flags"][first:stop][reading.followed[first:stop]] |= HARDLINK
                if files is None:
                    ring.put(reading.reads[first:stop])
                else:
                    self._open_files(ring, reading, files, slice(first, stop))
            elif reading.failure is None:
                return  # other requests must end before its shards can be opened
            if reading.next == len(reading.requests):
                self._pending.popleft()

    def _leave_out(self, reading: RingReading) -> None:
        """Leave out the requests that were not begun."""
        reading.left -= len(reading.requests) - reading.next
        if reading.parts and reading.ready > reading.next:
            self._give_shards(reading, np.arange(reading.next, reading.ready))
        reading.next = reading.ready = len(reading.requests)

    def _open_shards(self, reading: RingReading) -> bool:
        """Open the shards of the next requests; False if it failed, or must wait."""
        columns, first = reading.columns, reading.next
        stop = self._shards.enough(columns, first)
        if stop - first == len(columns.key):
            numbers, which = np.arange(len(columns.keys)), columns.key
        else:
            numbers, which = np.unique(columns.key[first:stop], return_inverse=True)
        try:
            shards = self._shards.take([columns.keys[number] for number in numbers.tolist()])
        except StorageError as error:
            reading.failure = error
            return False
        if shards is None:
            return False
        reading.reads["fd"][first:stop] = self._shards.named[shards][which]
        reading.reads["flags"][first:stop] = FIXED_FILE if self._shards.ring else 0
        reading.parts.append(_Part(first, stop, shards))
        reading.ready = stop
        return True

    def _open_files(self, ring: Ring, reading: RingReading, files: _Files, few: slice) -> None:
        """Issue requests of files that are opened for them alone."""
        requests, chained = reading.requests[few], files.chained[few]
        chains = np.flatnonzero(chained)
        if len(chains):
            places = np.array(self._places[-len(chains) :])
            del self._places[-len(chains) :]
            files.place[chains + few.start] = places
            requests["fd"][chains, 1] = places
            requests["place"][chains, 0] = requests["place"][chains, 2] = places + 1
            ring.put((requests if len(chains) == len(chained) else requests[chains]).reshape(-1))
        if len(chains) == len(chained):
            return
        opens = []
        for at in np.flatnonzero(~chained).tolist():
            if self.storage.may_open(reading.key(few.start + at)):
                opens.append(at)
            else:
                self._open_here(ring, reading, files, few.start + at)
        ring.put(requests[opens, 0])

    def _open_here(self, ring: Ring, reading: RingReading, files: _Files, index: int) -> None:
        """Open a file with all checks, and every failure told, and issue its read alone."""
        try:
            files.fd[index] = fd = self.storage.open_file(reading.key(index))
        except StorageError as error:
            self._fail(reading, index, error)
        else:
            os.set_blocking(fd, True)
            self._issue_again(ring, reading, index)

    def _issue_again(self, ring: Ring, reading: RingReading, index: int) -> None:
        """Issue the rest of one request."""
        request, had = reading.reads[[index]], reading.had.get(index, 0)
        if reading.files is not None:
            request["fd"], request["flags"] = reading.files.fd[index], 0
        request["flags"] &= FIXED_FILE
        request["offset"] += np.uint64(had)
        request["address"] += np.uint64(had)
        request["length"] -= np.uint32(had)
        request["user"] = _AGAIN << _KIND | reading.number << _NUMBER | index
        ring.put(request)

    def _counting(self) -> int:
        """The address of memory for bytes that are only counted: one block for each request."""
        if self._scratch is None:
            self._scratch = buffers.private(self.concurrency * self.block_size).array.data
            self.register(self._scratch)
        return _address(self._scratch)

    # Completions

    def _collect(self, ring: Ring) -> None:
        if not self.once and ring.completed <= _FEW:
            few = ring.few_completions()
            ring.drop()
            for one, told in few:
                reading = self._live[one >> _NUMBER & _NUMBERS]
                self._ended_alone(ring, reading, one >> _KIND, one & _INDEX, told)
            return
        user, result = ring.completions()
        if not len(user):
            return
        number = int(user[0]) >> _NUMBER
        if number <= _NUMBERS and (user >> _NUMBER == number).all():  # reads of one batch's shards
            ring.drop()
            self._ended(ring, self._live[number], user & _INDEX, result)
            return
        parts = list(self._by_reading(user, result))
        for part in parts:
            _note_descriptors(*part)
        ring.drop()
        for reading, kind, index, result in parts:
            if not kind.any():
                self._ended(ring, reading, index, result)
                continue
            if (files := reading.files) is not None:
                had = kind == _HAD
                files.result[index[had]] = result[had]
                if (opened := kind == _OPENED).any():
                    self._read_opened(ring, reading, files, index[opened])
                closed = index[kind == _CLOSED]
                if len(closed):
                    self._ended(ring, reading, closed, files.result[closed])
            ended = kind == _READ
            if ended.any():
                self._ended(ring, reading, index[ended], result[ended])
            again = kind == _AGAIN
            for one, told in zip(index[again].tolist(), result[again].tolist(), strict=True):
                self._go_on(ring, reading, one, told)

    def _by_reading(
        self, user: Numbers, result: Numbers
    ) -> Iterator[tuple[RingReading, Numbers, Numbers, Numbers]]:
        """For each reading: what has ended, of which requests, and the results."""
        kind, number, index = user >> _KIND, user >> _NUMBER & _NUMBERS, user & _INDEX
        if len(number) and (number == number[0]).all():
            if kind[0] >= 0:
                yield self._live[int(number[0])], kind, index, result
            return
        for one in np.unique(number[kind >= 0]).tolist():  # not of a cancellation
            mine = (number == one) & (kind >= 0)
            yield self._live[one], kind[mine], index[mine], result[mine]

    def _read_opened(self, ring: Ring, reading: RingReading, files: _Files, index: Numbers) -> None:
        """Issue the reads of files that were opened, if they may be read."""
        good = []
        for one, fd in zip(index.tolist(), files.fd[index].tolist(), strict=True):
            if fd < 0:
                self._open_here(ring, reading, files, one)
                continue
            files.fd[one] = -1
            try:
                files.fd[one] = fd = self.storage.opened(reading.key(one), fd)
                os.set_blocking(fd, True)
            except StorageError as error:
                self._fail(reading, one, error)
                continue
            good.append(one)
        steps = reading.requests[good, 1:]
        steps["fd"] = files.fd[good][:, None]
        ring.put(steps.reshape(-1))

    def _ended_alone(
        self, ring: Ring, reading: RingReading, kind: int, index: int, result: int
    ) -> None:
        """As ``_ended``, for one request of a shard."""
        reading.lengths = reading.lengths or reading.columns.length.tolist()
        if kind == _AGAIN or result != reading.lengths[index]:
            self._go_on(ring, reading, index, result)
        elif len(reading.parts) > 1 or reading.then is not None:
            self._finish(reading, np.array([index]), result)
        else:
            self._busy -= not reading.followed[index]
            reading.left -= 1
            reading.total += result
            self._give(reading, reading.parts[0], 1)

    def _ended(self, ring: Ring, reading: RingReading, index: Numbers, result: Numbers) -> None:
        """Take requests whose reads gave these results out of the window, if they are complete."""
        good = result == reading.columns.length[index]
        if not good.all():
            if self.storage.direct:
                # A direct read of unaligned length has reached the end of the file.
                good |= (result >= reading.columns.needed[index]) & (result % ALIGNMENT != 0)
            for one, told in zip(index[~good].tolist(), result[~good].tolist(), strict=True):
                self._go_on(ring, reading, one, told)
            index, result = index[good], result[good]
        if len(index):
            self._finish(reading, index, int(result.sum()))

    def _go_on(self, ring: Ring, reading: RingReading, index: int, count: int) -> None:
        """Issue the rest of a short read, or fail."""
        columns, files = reading.columns, reading.files
        length, needed = int(columns.length[index]), int(columns.needed[index])
        closed = files is not None and files.fd[index] < 0
        if count in _NOT_REGISTERED and reading.reads["opcode"][index] == READ_FIXED:
            reading.reads["opcode"][index], count = READ, -errno.EAGAIN
            self._registered.clear()
        if count < 0 and count not in _TRY_AGAIN and not closed:
            error = OSError(-count, os.strerror(-count))
            self._fail(reading, index, self.storage.failed("read", reading.key(index), error))
            return
        had = reading.had[index] = reading.had.get(index, 0) + max(0, count)
        if count == 0 or had == length or (self.storage.direct and had % ALIGNMENT):
            if had >= needed:
                self._finish(reading, np.array([index]), had)
            else:
                end = int(columns.offset[index]) + had
                expected = int(columns.offset[index]) + needed
                self._fail(reading, index, ends_early(reading.key(index), end, expected))
        elif files is not None and closed:  # also where its open failed: the reason is told then
            self._open_here(ring, reading, files, index)
        else:
            self._issue_again(ring, reading, index)

    def _fail(self, reading: RingReading, index: int, failure: BaseException) -> None:
        reading.failure = reading.failure or failure
        self._finish(reading, np.array([index]), 0)

    def _finish(self, reading: RingReading, index: Numbers, nbytes: int) -> None:
        """Take these requests of a reading out of the window."""
        self._busy -= len(index) - int(np.count_nonzero(reading.followed[index]))
        reading.left -= len(index)
        reading.total += nbytes
        if (files := reading.files) is not None:
            if not files.chained.all():
                self._opened -= len(index)
            places = files.place[index]
            self._places.extend(places[places >= 0].tolist())
            for one in index[files.fd[index] >= 0].tolist():
                fd, files.fd[one] = int(files.fd[one]), -1
                os.close(fd)
        else:
            self._give_shards(reading, index)
        if reading.then is not None and reading.failure is None:
            columns = reading.columns
            whole = index if columns.whole is None else index[columns.whole[index]]
            try:
                for landing in columns.landing[whole].tolist():
                    reading.then(landing)
            except BaseException as error:
                reading.failure = error

    def _give_shards(self, reading: RingReading, index: Numbers) -> None:
        """These requests have ended: no shard may be closed before the last one of its part has."""
        if len(reading.parts) == 1:
            self._give(reading, reading.parts[0], len(index))
            return
        for part in tuple(reading.parts):
            mine = np.logical_and(index >= part.start, index < part.stop)
            self._give(reading, part, int(np.count_nonzero(mine)))

    def _give(self, reading: RingReading, part: _Part, few: int) -> None:
        part.left -= few
        if not part.left:
            self._shards.give(part.shards)
            reading.parts.remove(part)


def _note_descriptors(reading: RingReading, kind: Numbers, index: Numbers, result: Numbers) -> None:
    """Remember which descriptors the kernel opened and closed. May be told twice."""
    if reading.files is not None:
        opened = (kind == _OPENED) & (result >= 0)
        reading.files.fd[index[opened]] = result[opened]
        reading.files.fd[index[(kind == _CLOSED) & (result == 0)]] = -1


class _OpenShards:
    """Shards that are kept open. ``named``: how a request names the file at each place.

    That is its descriptor or, if a ``ring`` is given, a place there, from ``first`` on.
    """

    def __init__(
        self, storage: LocalStorage, size: int, ring: Ring | None = None, first: int = 0
    ) -> None:
        self._storage = storage
        self.ring = ring
        self._first = first
        self._places: dict[str, int] = {}
        self._keys: list[str | None] = [None] * size
        self._users = np.zeros(size, np.int64)
        self._last = np.zeros(size, np.int64)
        self._turn = 0
        self.fds = np.full(size, -1, np.int32)
        self.named = np.full(size, -1, np.int32)

    def enough(self, columns: Columns, start: int) -> int:
        """The request before which the requests from ``start`` on have shards for half the places.

        Then the shards of two parts fit.
        """
        most = max(1, len(self.fds) // 2)
        if len(columns.keys) <= most:
            return len(columns.key)
        seen: set[int] = set()
        for at, number in enumerate(columns.key[start:].tolist(), start):
            seen.add(number)
            if len(seen) > most:
                return at
        return len(columns.key)

    def take(self, keys: Sequence[str]) -> Numbers | None:
        """Return the place of each key's shard, which stays open until ``give``.

        None if all places are in use. Raises StorageError. In both cases none is taken.
        """
        self._turn += 1
        found: list[int] = []
        try:
            for key in keys:
                place = self._places.get(key, -1)
                if place < 0:
                    place = self._open(key)
                if place < 0:
                    break
                found.append(place)
                self._users[place] += 1
        except StorageError:
            self.give(np.array(found, np.int64))
            raise
        places = np.array(found, np.int64)
        if len(places) < len(keys):
            self.give(places)
            return None
        self._last[places] = self._turn
        return places

    def give(self, places: Numbers) -> None:
        self._users[places] -= 1

    def _open(self, key: str) -> int:
        """Open a shard in the place of the one that was used longest ago; -1 if all are in use."""
        idle = np.where(self._users == 0, self._last, np.iinfo(np.int64).max)
        place = int(np.argmin(idle))
        if self._users[place]:
            return -1
        fd = self._storage.open_file(key)
        os.set_blocking(fd, True)
        before = self._keys[place]
        if before is not None:
            del self._places[before]
            self._keys[place] = None
            self._close(place)
        if self.ring is None:
            self.fds[place] = self.named[place] = fd
        else:
            self.named[place] = self._first + place
            try:
                self.ring.set_place(self._first + place, fd)
            finally:
                os.close(fd)
        self._keys[place] = key
        self._places[key] = place
        return place

    def _close(self, place: int) -> None:
        fd, self.fds[place] = int(self.fds[place]), -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        for place in self._places.values():
            self._close(place)
        self._places.clear()


def _address(memory: Buffer | bytes) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)

"""The read engine over S3's connections: one thread, which has many requests in flight.

The thread waits for all connections at
once and receives each body where it belongs. What is not the plain good answer is left to the
storage, in a thread for that one request, with its retries and its errors.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue

from ...base import buffers
from ...base.buffers import Buffer
from ...base.errors import StorageError
from ...base.processes import watch
from ...storage.s3.errors import TRANSIENT, Failure, Kind
from ...storage.s3.storage import S3Storage
from ...storage.s3.threads import Threads
from ...storage.s3.wire import S3Wire, error_is_whole, failure_of, understood
from .base import Columns, Extent, Extents, ReadEngine, Reading, Then, ends_early

log = logging.getLogger(__name__)

_HEAD = 4096
"""Bytes that are received before it is known where a body begins; its part of them is copied."""

_LONGEST_HEAD = 64 << 10
"""Bytes. A longer head, or a longer error, is left to the storage."""

_IDLE_S = 60.0
"""A connection that was idle for longer is not used again: what lies between may have dropped it
without a word."""

_LEAST_RATE = 4 << 10
"""Bytes per second of a body. Fewer, for the time-out, are no progress."""

_NOT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class LoopReading(Reading):
    """Requests over the connections. Its memory is dropped at the end."""

    def __init__(self, columns: Columns, memory: Buffer | None, then: Then | None) -> None:
        super().__init__(memory, then)
        self.counted = memory is None  # the bytes go nowhere
        self.left = self.unissued = len(columns.key)
        self.requests = iter(columns.extents())
        self.ended: SimpleQueue[None] = SimpleQueue()

    def give_up(self, failure: BaseException) -> None:
        self.failure = self.failure or failure
        self.left = self.unissued = 0
        self.memory = None
        self.ended.put(None)


class _Request:
    """A request in flight."""

    __slots__ = (
        *("began", "head", "key", "landing", "length", "needed", "offset", "reading", "view"),
        "whole",
    )

    def __init__(self, reading: LoopReading, extent: Extent) -> None:
        self.reading = reading
        self.key, self.offset, self.length, self.landing, self.needed, self.whole = extent
        self.began = time.monotonic()
        self.head = b""  # what has come of an answer whose head or error is not complete
        self.view: Buffer | None = None  # where its bytes go, while they are received


class _Connection:
    """``had`` of ``count`` bytes of a body have come; ``count`` is -1 before its head has.

    ``since_had`` of them had come at ``since``, from which on the next stall is counted.
    """

    __slots__ = ("count", "had", "kept", "request", "since", "since_had", "socket", "tls")

    def __init__(self, made: socket.socket) -> None:
        self.socket = made
        self.tls = isinstance(made, ssl.SSLSocket)
        self.request: _Request | None = None
        self.count, self.had, self.kept = -1, 0, True
        self.since, self.since_had = time.monotonic(), 0


class EventLoopEngine(ReadEngine):
    """Reads objects of an ``S3Storage`` with up to ``concurrency`` requests in flight.

    As for ``ReadEngine``: one per process, and here also for one thread at a time.
    """

    storage: S3Storage

    def __init__(
        self, storage: S3Storage, *, concurrency: int, block_size: int, once: bool = False
    ) -> None:
        super().__init__(storage, concurrency=concurrency, block_size=block_size, once=once)
        self._loop: _Loop | None = None

    def begin(
        self, extents: Extents, memory: Buffer | None, then: Then | None = None
    ) -> LoopReading:
        """As ``ReadEngine.begin``; the loop's thread calls ``then``."""
        columns = self.requests_of(extents)
        reading = LoopReading(columns, memory, then)
        if not reading.left:
            reading.ended.put(None)
        elif not self._own_loop().begin(reading):
            reading.give_up(StorageError("the event loop has ended"))
        return reading

    def wait(self, reading: LoopReading) -> int:
        """As ``ReadEngine.wait``."""
        try:
            reading.ended.get()
        except BaseException:
            self.settle()
            raise
        return reading.result()

    def settle(self) -> None:
        """As ``ReadEngine.settle``: all requests are given up."""
        if self._loop is not None and self._loop.mine:
            self._loop.settle()

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and loop.mine:
            loop.end()
            loop.thread.join()

    def _own_loop(self) -> _Loop:
        loop = self._loop
        if loop is None or not loop.usable:  # a loop does not survive a fork
            loop = self._loop = _Loop(
                self.storage, self.concurrency, self.block_size, self._blocks_free
            )
            weakref.finalize(self, loop.end).atexit = False
        return loop


class _Loop:
    """The thread and its connections. All but ``begin``, ``settle`` and ``end`` runs in it."""

    def __init__(
        self, storage: S3Storage, concurrency: int, block_size: int, blocks: deque[Buffer]
    ) -> None:
        self._pid = os.getpid()
        self._ended = self._closed = False
        self._lock = threading.Lock()
        self._storage = storage
        self._timeout = storage.options.timeout
        self._check_at, self._checked = 0.0, time.monotonic()
        self._block_size, self._blocks = block_size, blocks
        self._concurrency = self._free = concurrency
        self._wire: S3Wire | None = None
        self.left_to_storage = 0  # requests
        self._refused = False  # this TLS library does not trust the server
        self._pending: deque[LoopReading] = deque()
        self._live: set[LoopReading] = set()
        self._connections: dict[int, _Connection] = {}
        self._idle: list[_Connection] = []
        self._head = bytearray(_HEAD)
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._helpers, self._stop = self._new_helpers()
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        watch(self)
        # A daemon: a process must end although the loop waits for a server.
        self.thread = threading.Thread(target=self._run, name="iobench-loop", daemon=True)
        self.thread.start()

    # From other threads

    @property
    def mine(self) -> bool:
        return self._pid == os.getpid()

    @property
    def usable(self) -> bool:
        return self.mine and not self._ended

    def begin(self, reading: LoopReading) -> bool:
        """Whether the loop was there to take it."""
        return self._call(lambda: self._begin(reading))

    def settle(self) -> None:
        settled: SimpleQueue[None] = SimpleQueue()

        def settle() -> None:
            self._give_up(StorageError("the read was given up"))
            settled.put(None)

        if self._call(settle):
            settled.get()
        else:
            self.thread.join()

    def end(self) -> None:
        if self.usable:
            self._call(self._end)

    def _call(self, call: Callable[[], None]) -> bool:
        """Have the loop's thread call this, and return whether it will."""
        with self._lock:  # the number of a closed descriptor may be another file's
            if self._closed:
                return False
            self._calls.put(call)
            os.eventfd_write(self._bell, 1)
        return True

    def after_fork(self) -> None:
        """In a forked child: close its copies of the parent's connections."""
        self._lock = threading.Lock()
        closed, self._closed, self._ended = self._closed, True, True
        if closed:  # its descriptor's number may be another file's by now
            return
        for connection in list(self._connections.values()):
            connection.socket.close()
        self._epoll.close()
        os.close(self._bell)

    # The thread

    def _run(self) -> None:
        try:
            while not self._ended:
                self._turn()
        except BaseException as error:  # no reading may wait for a thread that is gone
            self._give_up(error)
        self._ended = True
        with self._lock:
            self._closed = True
            os.close(self._bell)
        self._make_calls()
        self._give_up(StorageError("the event loop has ended"))
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._epoll.close()

    def _make_calls(self) -> None:
        while not self._calls.empty():
            self._calls.get()()

    def _turn(self) -> None:
        """Wait until something happens, and handle it."""
        busy = len(self._connections) > len(self._idle)
        # A stall is noticed late by up to a quarter of the time-out.
        events = self._epoll.poll(self._timeout / 4 if busy else None)
        for number, _ in events:
            if number == self._bell:
                os.eventfd_read(self._bell)
                self._make_calls()
            elif (connection := self._connections.get(number)) is not None:
                self._receive(connection)
        if (now := time.monotonic()) >= self._check_at:
            self._check_at = now + self._timeout / 4
            self._check_stalls(now)
        self._fill()

    def _begin(self, reading: LoopReading) -> None:
        self._live.add(reading)
        self._pending.append(reading)

    def _end(self) -> None:
        self._ended = True

    def _fill(self) -> None:
        """Issue requests until as many as allowed are in flight, or none is left."""
        while self._free and self._pending:
            reading = self._pending[0]
            if reading.failure is not None:  # the batch has failed: its other requests are useless
                reading.left -= reading.unissued
                reading.unissued = 0
            if reading.unissued:
                reading.unissued -= 1
                self._free -= 1
                self._issue(_Request(reading, next(reading.requests)))
            if not reading.unissued:
                if self._pending and self._pending[0] is reading:
                    self._pending.popleft()
                self._check_end(reading)

    def _issue(self, request: _Request) -> None:
        try:
            if self._wire is None:
                self._wire = self._storage.wire()
            connection = self._idle_connection()
            if not request.length or self._refused:
                self._leave(request)
            elif connection is not None:
                self._send(connection, request)
            else:
                connect = self._helpers.submit(self._wire.connect)
                connect.add_done_callback(lambda made: self._connecting_ended(made, request))
        except Exception:
            # Without credentials, or with an unusable configuration: the storage says so.
            self._leave(request)

    def _idle_connection(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if time.monotonic() - connection.since < _IDLE_S:
                return connection
            self._drop(connection)
        return None

    def _connecting_ended(self, made: Future[socket.socket], request: _Request) -> None:
        """In the thread that has connected."""
        if not self._call(lambda: self._connected(made, request)) and made.exception() is None:
            made.result().close()

    def _connected(self, made: Future[socket.socket], request: _Request) -> None:
        failure = made.exception()
        if failure is not None:
            if isinstance(failure, ssl.SSLCertVerificationError) and not self._refused:
                self._refused = True
                log.warning(
                    "the event loop can't verify the server of %s (%s): the client library reads",
                    *(self._storage.url, failure.verify_message),
                )
            if request.reading in self._live:
                self._leave(request)
            return
        connection = _Connection(made.result())
        number = connection.socket.fileno()
        self._connections[number] = connection
        self._epoll.register(number, select.EPOLLIN)
        if request.reading in self._live:
            self._send(connection, request)
        else:
            self._idle.append(connection)

    def _send(self, connection: _Connection, request: _Request) -> None:
        assert self._wire is not None
        key = request.key
        try:
            key = self._storage.full_key(request.key)
            data = self._wire.get(key, request.offset, request.length)
        except Exception:  # no such key can be, or credentials could not be renewed
            self._idle.append(connection)
            self._leave(request)
            return
        request.view = self._target(request)
        connection.request, connection.count, connection.had = request, -1, 0
        connection.since, connection.since_had = time.monotonic(), 0
        try:
            whole = connection.socket.send(data) == len(data)
        except OSError:
            whole = False
        if not whole:
            self._lose(connection, Failure(Kind.LOST))

    def _target(self, request: _Request) -> Buffer:
        memory = request.reading.memory
        if memory is not None:
            return memory[request.landing : request.landing + request.length]
        try:
            return self._blocks.popleft()
        except IndexError:
            return buffers.private(self._block_size).array.data

    # Answers

    def _receive(self, connection: _Connection) -> None:
        if connection.request is None:  # the server has closed it, or speaks without being asked
            self._idle.remove(connection)
            self._drop(connection)
            return
        try:
            while self._receive_some(connection):
                pass
        except _NOT_YET:
            pass
        except OSError:
            self._lose(connection, Failure(Kind.LOST))

    def _receive_some(self, connection: _Connection) -> bool:
        """Receive what is there, and return whether there may be more."""
        request = connection.request
        assert request is not None
        assert request.view is not None
        if connection.count < 0:
            return self._receive_head(connection, request)
        had = connection.had
        got = connection.socket.recv_into(request.view[had : connection.count])
        if not got:
            self._lose(connection, Failure(Kind.LOST))
            return False
        connection.had = had = had + got
        if had == connection.count:
            self._finish_on(connection, request)
            return False
        return connection.tls  # what its library has received already is not seen by epoll

    def _receive_head(self, connection: _Connection, request: _Request) -> bool:
        got = connection.socket.recv_into(self._head)
        data = bytes(memoryview(self._head)[:got])
        if request.head:
            data = request.head + data
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            if not got:
                self._lose(connection, Failure(Kind.LOST))
            elif len(data) > _LONGEST_HEAD:
                self._lose(connection, None)
            else:
                request.head = data
                return True
            return False
        answer = understood(data[:end], request.offset, request.length)
        body = len(data) - end
        if 0 <= body <= answer.length:
            request.head = b""
            connection.count, connection.had, connection.kept = answer.length, body, answer.kept
            if body:
                assert request.view is not None
                request.view[:body] = data[end:]
            if body == answer.length:
                self._finish_on(connection, request)
                return False
            return True
        if 300 <= answer.status < 400 and b"\r\nlocation:" in data[:end].lower():
            # It is final, and no library may follow it: it would take the token along.
            self._lose(connection, failure_of(answer.status, data[end:]))
            return False
        if answer.status >= 400:
            if got and not error_is_whole(data[:end], data[end:]) and len(data) <= _LONGEST_HEAD:
                request.head = data
                return True
            failure = failure_of(answer.status, data[end:])
            # A final answer is the storage's to get, and to explain.
            self._lose(connection, failure if failure.kind in TRANSIENT else None)
            return False
        self._lose(connection, None)
        return False

    def _finish_on(self, connection: _Connection, request: _Request) -> None:
        connection.request, connection.since = None, time.monotonic()
        if connection.kept:
            self._idle.append(connection)
        else:
            self._drop(connection)
        self._finish(request, connection.count)

    def _check_stalls(self, now: float) -> None:
        """Give up requests whose bytes come too slowly to be progress.

        Otherwise a server could hold a reader for hours with a byte now and then. The head of an
        answer, however long, counts as no progress.
        """
        # Where this thread itself stood still, nothing is known of the servers.
        late = now - self._checked > self._timeout / 2
        self._checked = now
        for connection in list(self._connections.values()):
            if connection.request is None or (not late and now - connection.since < self._timeout):
                continue
            came = connection.had - connection.since_had
            if late or came >= _LEAST_RATE * self._timeout:
                connection.since, connection.since_had = now, connection.had
            else:
                self._lose(connection, Failure(Kind.TIMEOUT))

    # The end of a request

    def _lose(self, connection: _Connection, failure: Failure | None) -> None:
        """Close a connection; the storage reads what it was asked for, as in ``_leave``."""
        request = connection.request
        self._drop(connection)
        if request is not None:
            self._release(request)
            self._leave(request, failure)

    def _leave(self, request: _Request, failure: Failure | None = None) -> None:
        """Have the storage read it. ``failure``: of the first attempt, if it counts as one."""
        storage, stop = self._storage, self._stop
        self.left_to_storage += 1
        log.debug("the client library reads %s (%s)", request.key, failure.kind if failure else "")
        # In memory of its own, which may be written to after the read was given up.
        memory = bytearray(request.length)

        def read() -> int:
            return storage.read_on(
                request.key,
                request.offset,
                memoryview(memory),
                first=failure,
                began=request.began,
                stop=stop,
            )

        def done(result: Future[int]) -> None:
            if not stop.is_set():
                self._call(lambda: self._left(request, memory, result))

        self._helpers.submit(read).add_done_callback(done)

    def _left(self, request: _Request, memory: bytearray, result: Future[int]) -> None:
        if request.reading not in self._live:
            return
        error = result.exception()
        if error is not None:
            self._fail(request, error)
            return
        count, target = result.result(), request.reading.memory
        if target is not None:
            target[request.landing : request.landing + count] = memoryview(memory)[:count]
        self._finish(request, count)

    def _finish(self, request: _Request, count: int) -> None:
        reading = request.reading
        if count < request.needed:
            offset = request.offset
            self._fail(request, ends_early(request.key, offset + count, offset + request.needed))
            return
        reading.total += count
        if reading.then is not None and request.whole and reading.failure is None:
            self._fill()  # the network does not wait for what is done with the bytes
            try:
                reading.then(request.landing)
            except BaseException as error:
                reading.failure = reading.failure or error
        self._out(request)

    def _fail(self, request: _Request, failure: BaseException) -> None:
        request.reading.failure = request.reading.failure or failure
        self._out(request)

    def _out(self, request: _Request) -> None:
        """Take a request out of those in flight."""
        reading = request.reading
        self._release(request)
        self._free += 1
        reading.left -= 1
        self._check_end(reading)

    def _release(self, request: _Request) -> None:
        """Its connection writes to its memory no more."""
        if request.view is not None and request.reading.counted:
            self._blocks.append(request.view)
        request.view = None

    def _check_end(self, reading: LoopReading) -> None:
        if not reading.left and reading in self._live:
            self._live.remove(reading)
            reading.memory = None
            reading.ended.put(None)

    def _give_up(self, failure: BaseException) -> None:
        self._stop.set()
        self._helpers.close()  # a thread that waits for a server ends by itself
        self._helpers, self._stop = self._new_helpers()
        for connection in list(self._connections.values()):
            if connection.request is not None:
                self._release(connection.request)
                self._drop(connection)
        self._pending.clear()
        self._free = self._concurrency
        live, self._live = self._live, set()
        for reading in live:
            reading.give_up(failure)

    def _new_helpers(self) -> tuple[Threads, threading.Event]:
        """Threads that connect, and read what is left to the storage, until the event is set."""
        return Threads(self._concurrency, "iobench-loop-helper"), threading.Event()

    def _drop(self, connection: _Connection) -> None:
        number = connection.socket.fileno()
        del self._connections[number]
        # A forked child may have a copy of it, so that closing it alone would end nothing.
        self._epoll.unregister(number)
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)
        connection.socket.close()

"""Reads and DELETE requests over connections of one's own, by a thread that waits for each answer.

A client library takes several times the CPU time for a small object. As the event loop does, this
understands the plain good answer alone (``wire``), and leaves all else to the storage, which
retries and explains.

DELETE requests are for a process that may be suspended at any moment. A client library works for
about a millisecond between the call and the first byte that it sends. Who is suspended in between
deletes when it goes on, whatever has happened meanwhile. Here a request is made ready first, then
it is asked whether it is still allowed, and then the bytes are sent.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from threading import Event, Lock
from typing import Protocol

from ..base import Buffer
from .errors import TRANSIENT, Failure, Kind
from .options import S3Options
from .wire import S3Wire, failure_of, understood

_HEAD = 4096
"""Bytes that are received before it is known where a body begins; its part of them is copied."""

_LONGEST_HEAD = 64 << 10
"""Bytes. A longer head is left to the storage."""

_LEAST_RATE = 4 << 10
"""Bytes per second of a body. Fewer, for the time-out, are no progress."""


class _LeftError(Exception):
    """The answer is the storage's to get."""


class WiredStorage(Protocol):
    """What a connection needs of its ``S3Storage``."""

    options: S3Options

    def not_wired(self) -> str: ...

    def wire(self) -> S3Wire: ...

    def full_key(self, key: str) -> str: ...

    def read_on(
        self,
        key: str,
        offset: int,
        buffer: Buffer,
        *,
        first: Failure | None = None,
        began: float | None = None,
        stop: Event | None = None,
    ) -> int: ...


class OwnConnection:
    """For one thread. It is made on first use, and again when the server has closed it."""

    def __init__(self, storage: WiredStorage) -> None:
        self._storage = storage
        self._wire: S3Wire | None = None
        self._socket: socket.socket | None = None
        self._ended = select.poll()
        self._head = bytearray(_HEAD)
        self._refused = bool(storage.not_wired())

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        """As ``Storage.read_into``."""
        began, first = time.monotonic(), None
        if len(buffer) and not self._refused:
            try:
                return self._read(self._storage.full_key(key), offset, buffer)
            except Failure as failure:
                first = failure
            except _LeftError:
                pass
        return self._storage.read_on(key, offset, buffer, first=first, began=began)

    def close(self) -> None:
        made, self._socket = self._socket, None
        if made is not None:
            made.close()

    def _read(self, key: str, offset: int, buffer: Buffer) -> int:
        """Raises Failure for a first attempt that counts, and _LeftError."""
        try:
            if self._wire is None:
                self._wire = self._storage.wire()
            request = self._wire.get(key, offset, len(buffer))
        except Exception:  # without credentials, for example: the storage says so
            raise _LeftError from None
        try:
            made = self._connected(self._wire)
            made.sendall(request)
            return self._receive(made, self._receive_head(made), offset, buffer)
        except (Failure, _LeftError):
            self.close()
            raise
        except ssl.SSLCertVerificationError:
            self._refused = True
            raise _LeftError from None
        except (BlockingIOError, TimeoutError, ssl.SSLWantReadError):
            self.close()
            raise Failure(Kind.TIMEOUT) from None
        except OSError:
            self.close()
            raise Failure(Kind.LOST) from None

    def _connected(self, wire: S3Wire) -> socket.socket:
        if self._socket is not None and self._ended.poll(0):
            self.close()  # by the server since the last answer: it has seen no request
        if self._socket is None:
            made = wire.connect()
            # With a time-out of Python's own, each call would be two.
            limit = struct.pack("ll", int(wire.timeout), int(wire.timeout % 1 * 1e6))
            made.setblocking(True)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                made.setsockopt(socket.SOL_SOCKET, option, limit)
            self._socket, self._ended = made, select.poll()
            self._ended.register(made, select.POLLRDHUP)
        return self._socket

    def _receive_head(self, made: socket.socket) -> bytes:
        """The head of an answer, and what came with it; nothing if the server has hung up."""
        got = made.recv_into(self._head)
        data = bytes(memoryview(self._head)[:got])
        while got and b"\r\n\r\n" not in data:
            if len(data) > _LONGEST_HEAD:
                raise _LeftError
            got = made.recv_into(self._head)
            data += bytes(memoryview(self._head)[:got])
        return data if got else b""

    def _receive(self, made: socket.socket, data: bytes, offset: int, buffer: Buffer) -> int:
        """The body of an answer that begins with ``data``; return its length."""
        if not data:
            raise Failure(Kind.LOST)
        end = data.find(b"\r\n\r\n") + 4
        answer, had = understood(data[:end], offset, len(buffer)), len(data) - end
        if not 0 <= had <= answer.length:
            self._explain(answer.status, data[:end], data[end:])
        buffer[:had] = data[end:]
        wait_all = 0 if isinstance(made, ssl.SSLSocket) else socket.MSG_WAITALL
        since, since_had = time.monotonic(), had
        timeout = self._storage.options.timeout
        while had < answer.length:
            got = made.recv_into(buffer[had : answer.length], 0, wait_all)
            if not got:
                raise Failure(Kind.LOST)
            had += got
            if had < answer.length and (now := time.monotonic()) - since >= timeout:
                if had - since_had < _LEAST_RATE * timeout:
                    raise Failure(Kind.TIMEOUT)
                since, since_had = now, had
        if not answer.kept:
            self.close()
        return answer.length

    def _explain(self, status: int, head: bytes, body: bytes) -> None:
        """Raise what an answer means that is not the plain good one."""
        failure = failure_of(status, body)
        # No library may follow a redirection: it would take the token along.
        leads_on = 300 <= status < 400 and b"\r\nlocation:" in head.lower()
        if leads_on or (status >= 400 and failure.kind in TRANSIENT):
            raise failure
        raise _LeftError


_MAX_ERROR = 64 << 10  # bytes that are read of an error's text


class NoConnectionError(Exception):
    """The client library must delete: it may know a proxy, or trust another certificate."""


class Deletions:
    """Made in the process that uses it; thread-safe."""

    def __init__(self, wire: S3Wire) -> None:
        self._wire = wire
        self._lock = Lock()
        self._idle: deque[socket.socket] = deque()

    def delete(self, key: str, etag: str, allowed: Callable[[], None]) -> None:
        """Delete an object if ``allowed`` raises nothing, and if it has this ETag ('': any).

        ``key``: the full one. Raises Failure (of Kind.EXISTS for another ETag), NoConnectionError,
        and what ``allowed`` raises.
        """
        used = self._taken()
        try:
            made = used or self._wire.connect()
        except (OSError, ssl.SSLError) as error:
            raise NoConnectionError from error
        try:
            made.settimeout(self._wire.timeout)
            with self._lock:
                request = self._wire.delete(key, etag)
            allowed()
            try:
                made.sendall(request)
                kept = _answered(made)
            except TimeoutError:
                raise Failure(Kind.TIMEOUT) from None
            except (OSError, HTTPException, ValueError):
                raise Failure(Kind.LOST) from None
        except BaseException:
            made.close()
            raise
        if kept:
            self._idle.append(made)
        else:
            made.close()

    def _taken(self) -> socket.socket | None:
        """An idle connection that the server has not closed."""
        while self._idle:
            try:
                made = self._idle.popleft()
            except IndexError:
                break
            made.setblocking(False)
            try:
                made.recv(1)
            except (BlockingIOError, ssl.SSLWantReadError):
                return made
            except OSError:
                pass
            made.close()
        return None

    def close(self) -> None:
        while self._idle:
            self._idle.popleft().close()

    def __del__(self) -> None:
        self.close()


def _answered(made: socket.socket) -> bool:
    """Read the answer; whether the connection serves further requests. Raises Failure."""
    answer = HTTPResponse(made, method="DELETE")
    try:
        answer.begin()
        body = answer.read(_MAX_ERROR)
        if answer.status >= 300:
            raise failure_of(answer.status, body)
        return answer.isclosed() and not answer.will_close
    finally:
        answer.close()

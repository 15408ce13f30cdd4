"""DELETE requests on connections of one's own, for a process that may be suspended at any moment.

A client library works for about a millisecond between the call and the first byte that it sends.
Who is suspended in between deletes when it goes on, whatever has happened meanwhile. Here a request
is made ready first, then it is asked whether it is still allowed, and then the bytes are sent.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from threading import Lock

from .errors import Failure, Kind
from .wire import S3Wire, failure_of

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

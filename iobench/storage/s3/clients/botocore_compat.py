"""The parts of botocore that are not public. Checked with botocore 1.43.117."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any
from weakref import WeakSet, ref

from .base import longest_s


def stay(session: Any) -> None:
    """Have no client of botocore's session send a request again to another region's endpoint.

    botocore's own S3RegionRedirectorv2 does so once, and marks the request then.
    """

    def mark(params: Any, **_: Any) -> None:
        params["context"].setdefault("s3_redirect", {})["redirected"] = True

    session.register("before-call.s3", mark)


def expiry(credentials: Any) -> Any:
    """When credentials expire (a datetime); None if they do not, as far as botocore says."""
    return getattr(credentials, "_expiry_time", None)


class Deadlines:
    """Ends the connections of a botocore client whose request takes longer than it may.

    botocore's time-outs are for a single read, so a byte now and then would hold it for hours. A
    connection is shut down by a thread, so that whoever reads from it finds it closed.
    """

    def __init__(self, client: Any, deadline_s: float, every_s: float) -> None:
        self._deadline_s, self._every_s = deadline_s, every_s
        self._connections: WeakSet[Any] = WeakSet()
        self._lock, self._ended = Lock(), Event()
        self._thread: Thread | None = None
        pools = client._endpoint.http_session._pool_classes_by_scheme
        for scheme, pool in list(pools.items()):
            kind = self._watched(pool.ConnectionCls)
            pools[scheme] = type(pool.__name__, (pool,), {"ConnectionCls": kind})

    def _watched(self, kind: Any) -> Any:
        begin = self._begin

        class Limited(kind):  # type: ignore[misc]
            def request(self, method: str, url: str, *rest: Any, **more: Any) -> Any:
                headers = more.get("headers") or (rest[1] if len(rest) > 1 else None) or {}
                begin(self, method, headers)
                try:
                    return super().request(method, url, *rest, **more)
                finally:
                    self.watched_socket = self.sock  # an answer may take it from here

        return Limited

    def _begin(self, connection: Any, method: str, headers: Mapping[Any, Any]) -> None:
        said = {_text(name).lower(): _text(value) for name, value in headers.items()}
        extent, sent = said.get("range"), said.get("content-length")
        limit = longest_s(self._deadline_s, method, extent, sent)
        with self._lock:
            connection.ends_at = None if limit is None else time.monotonic() + limit
            self._connections.add(connection)
            if self._thread is None:
                self._thread = Thread(
                    target=_end_late, args=(ref(self), self._ended, self._every_s), daemon=True,
                    name="iobench-s3-watch",
                )  # fmt: skip
                self._thread.start()

    def end_late(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [one for one in self._connections if one.ends_at and one.ends_at < now]
            for connection in late:
                connection.ends_at = None
        for connection in late:
            for made in (connection.sock, getattr(connection, "watched_socket", None)):
                if made is not None:
                    with suppress(OSError):
                        socket.socket.shutdown(made, socket.SHUT_RDWR)  # also of TLS

    def close(self) -> None:
        self._ended.set()

    def __del__(self) -> None:
        self._ended.set()


def _end_late(watch: ref[Deadlines], ended: Event, every_s: float) -> None:
    while not ended.wait(every_s):
        if (found := watch()) is None:
            return
        found.end_late()
        del found


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)

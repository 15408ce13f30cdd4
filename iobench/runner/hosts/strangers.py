"""Who connects to a port of a job, until he has said who he is.

A port scanner, a probe of a load balancer, or somebody who means harm may connect as well. None of
them is waited for, there are never many of them, and none stays for long.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from dataclasses import dataclass, field
from types import TracebackType

from .wire import watch_silence

MAX_STRANGERS = 64
"""Who connects when there are so many takes the place of the one who came first."""

STRANGER_S = 2.0
"""Who has not said who he is within this time is turned away."""

_PAUSE_S = 0.2
"""For so long nobody is let in after this process had no descriptor left for him."""


def listen() -> socket.socket:
    """A socket on all addresses, since only the launcher knows which of them the others use."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=1024)


@dataclass
class _Stranger:
    connected: socket.socket
    until: float
    said: bytearray = field(default_factory=bytearray)


class Strangers:
    """Those who have connected to ``listener``, and have not said enough yet.

    ``selector``: a listener among others, whose events are passed on by ``ready``.
    """

    def __init__(
        self, listener: socket.socket, selector: selectors.BaseSelector | None = None
    ) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._own = selectors.DefaultSelector() if selector is None else None
        self._selector = selector or self._own or selectors.DefaultSelector()
        self._known: dict[socket.socket, _Stranger] = {}  # the one who came first is the first
        self._paused: float | None = None
        self._selector.register(listener, selectors.EVENT_READ, self)

    def __enter__(self) -> Strangers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Turn all of them away, and let nobody in any more."""
        for stranger in list(self._known):
            self._turn_away(stranger)
        if self._paused is None:
            self._selector.unregister(self._listener)
        self._paused = None
        if self._own is not None:
            self._own.close()

    def heard(self, size: int, deadline: float) -> list[tuple[socket.socket, bytes]]:
        """Wait a moment for what somebody says; see ``ready``."""
        left = max(0.0, min(_PAUSE_S, deadline - time.monotonic()))
        found = []
        for key, _ in self._selector.select(left):
            assert isinstance(key.fileobj, socket.socket)
            found += self.ready(key.fileobj, size)
        self.tidy()
        return found

    def ready(self, connected: socket.socket, size: int) -> list[tuple[socket.socket, bytes]]:
        """Something has happened at the listener or at a stranger.

        Returns the one who has now said ``size`` bytes, with them. He is no stranger any more: it
        is the caller who closes his connection, which does not block.
        """
        if connected is self._listener:
            self._let_in()
            return []
        stranger = self._known.get(connected)
        if stranger is None:  # he was turned away a moment ago
            return []
        try:
            more = connected.recv(size - len(stranger.said))
        except BlockingIOError:
            return []
        except OSError:
            more = b""
        stranger.said += more
        if not more:
            self._turn_away(connected)
        elif len(stranger.said) >= size:
            del self._known[connected]
            self._selector.unregister(connected)
            return [(connected, bytes(stranger.said))]
        return []

    def tidy(self) -> None:
        """Turn away who has been here for too long."""
        now = time.monotonic()
        for stranger in list(self._known.values()):
            if now > stranger.until:
                self._turn_away(stranger.connected)
        if self._paused is not None and now > self._paused:
            self._paused = None
            self._selector.register(self._listener, selectors.EVENT_READ, self)

    def _let_in(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._pause()
            return
        try:
            watch_silence(connected)
            connected.setblocking(False)
        except OSError:  # he has gone already
            connected.close()
            return
        if len(self._known) >= MAX_STRANGERS:
            self._turn_away(next(iter(self._known)))
        self._known[connected] = _Stranger(connected, time.monotonic() + STRANGER_S)
        self._selector.register(connected, selectors.EVENT_READ, self)

    def _pause(self) -> None:
        """No descriptor is left: free one, and let nobody in for a moment."""
        if self._known:
            self._turn_away(next(iter(self._known)))
        self._selector.unregister(self._listener)
        self._paused = time.monotonic() + _PAUSE_S

    def _turn_away(self, connected: socket.socket) -> None:
        del self._known[connected]
        self._selector.unregister(connected)
        connected.close()

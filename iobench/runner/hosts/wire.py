"""A connection between two hosts: messages of known kinds, and nothing else.

What comes from the network is text in JSON, and is checked before it is used (``words``); no
pickle is ever read. What is no message ends the connection. A connection whose
other end is gone, whose host does not answer, or which takes too long for a message, is a lost
host. Both ends send a sign of life every second, whatever else they do.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import threading
import time
from typing import Any

from ...base.errors import HostLostError
from ...record.typed import of_text
from . import words
from .words import Message

log = logging.getLogger(__name__)

SILENCE_S = 10
"""A host from which nothing comes for this long is lost."""

_GIVEN_UP_S = 8
"""After how many seconds without an answer the kernel ends a connection."""

BEAT_S = 1.0
"""Time between two signs of life."""

LEAST_BYTES_PER_S = 1 << 20
"""A message that has begun to come has ``SILENCE_S`` and the time that it takes at this rate."""

_AT_ONCE = 1 << 20
"""Bytes that are received in one call."""

_LOOK_THERE = "see the output of iobench and the kernel log on that host"


class Wire:
    """One end of a connection. ``name``: the host at the other end, for messages.

    One thread uses it; another one sends the signs of life (``keep_alive``).
    """

    def __init__(self, connected: socket.socket, name: str) -> None:
        watch_silence(connected)
        connected.settimeout(None)
        self.name = name
        self.connection = connected
        self.heard = time.monotonic()
        self._coming = bytearray()  # of the message that has begun to come
        self._sizes: tuple[int, int] | None = None  # of its kind and its body
        self._began = self._looked = self.heard  # when it began to come; without times of no look
        self._next: Message | None = None  # was received while the wire was only looked at
        self._one_at_a_time = threading.Lock()
        self._closed = threading.Event()
        self.lost: HostLostError | None = None

    def fileno(self) -> int:
        """So that it can be waited for together with pipes."""
        return self.connection.fileno()

    def keep_alive(self) -> None:
        """Send a sign of life every ``BEAT_S``, and expect one from the other end from now on."""
        self.heard = time.monotonic()
        threading.Thread(target=self._beat, name=f"beats for {self.name}", daemon=True).start()

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S):
            try:
                if select.select([], [self.connection], [], 0)[1]:  # never wait for its buffer
                    self.send(Message("beat"))
            except (HostLostError, OSError, ValueError):
                return  # it was lost, which was told, or closed just now

    def send(self, message: Message) -> None:
        """Raises HostLostError, also if the other end takes too long to receive it."""
        self._check_lost()
        left = memoryview(words.encoded(message))
        try:
            with self._one_at_a_time:
                deadline = time.monotonic() + SILENCE_S + len(left) / LEAST_BYTES_PER_S
                while left:
                    left_s = deadline - time.monotonic()
                    if left_s < 0 or not _is_ready(self.connection, select.POLLOUT, left_s):
                        break
                    left = left[_sent(self.connection, left) :]
        except OSError as error:
            raise self._lost(error) from None
        if left:  # what follows would be no message
            raise self.give_up("iobench there did not receive a message in time")

    def receive(self) -> Message:
        """Wait for the next message. Raises HostLostError, also for what is no message."""
        while not self.poll(1.0):
            pass
        message, self._next = self._next, None
        assert message is not None
        return message

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Whether a message has come. Raises HostLostError if the other end is gone or silent."""
        now = time.monotonic()
        self._began += now - self._looked
        deadline = now + timeout_s
        try:
            while self._next is None:
                left = max(0.0, deadline - time.monotonic())
                readable = _is_ready(self.connection, select.POLLIN, left)
                message = self._take() if readable else None
                if message is None:
                    self._check_silence()
                    if not readable or time.monotonic() > deadline:
                        return self._next is not None
                else:
                    self.heard = time.monotonic()
                    self._next = None if message.kind == "beat" else message
        except (EOFError, OSError) as error:
            raise self._lost(error) from None
        finally:
            self._looked = time.monotonic()
        return True

    def _take(self) -> Message | None:
        """Receive what is there of the message that comes, and no more; None: it is not whole."""
        try:
            whole = self._sizes is not None
            size = words.HEAD.size + (sum(self._sizes) if self._sizes else 0)
            missing = size - len(self._coming)
            more = self.connection.recv(min(missing, _AT_ONCE), socket.MSG_DONTWAIT)
            if not more:
                raise EOFError
            self._began = self._began if self._coming else time.monotonic()
            self._coming += more
            if len(self._coming) < size:
                return None
            if not whole:
                self._sizes = words.sizes(bytes(self._coming))
                if sum(self._sizes):
                    return None
            assert self._sizes is not None
            begin = words.HEAD.size + self._sizes[0]
            said, body = bytes(self._coming[words.HEAD.size : begin]), bytes(self._coming[begin:])
            self._coming, self._sizes = bytearray(), None
            return words.decoded(said, body)
        except BlockingIOError:
            return None
        except ValueError as error:
            raise self.wrong(error) from None

    def _check_silence(self) -> None:
        self._check_lost()  # but its last words, which have come before, are read
        if self._coming:
            whole_s = sum(self._sizes or ()) / LEAST_BYTES_PER_S
            if (took := time.monotonic() - self._began) > SILENCE_S + whole_s:
                raise self.give_up(f"iobench there sent only a part of a message in {took:.0f} s")
        elif (silent := time.monotonic() - self.heard) > SILENCE_S:
            raise self.give_up(f"iobench there was silent for {silent:.0f} s")

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        self._closed.set()
        with self._one_at_a_time:
            self.connection.close()

    def drain(self, deadline_s: float) -> None:
        """Wait until the other end has closed, at most until this moment of time.monotonic.

        If this end closed while a message of the other one was unread, the kernel would drop what
        the other one has not read yet, such as the last words.
        """
        self._closed.set()
        try:
            while (left := deadline_s - time.monotonic()) > 0:
                if _is_ready(self.connection, select.POLLIN, left) and not self.connection.recv(
                    _AT_ONCE
                ):
                    return
        except OSError:
            return

    def _lost(self, error: Exception) -> HostLostError:
        why = "its process has ended"
        if isinstance(error, TimeoutError) or (
            isinstance(error, OSError) and error.errno in _SILENT
        ):
            why = f"it did not answer for {_GIVEN_UP_S} s"
        return self.give_up(why)

    def wrong(self, error: ValueError) -> HostLostError:
        """The error for what is no message, or for a part of one that is not of its type."""
        return self.give_up(
            f"what it sent is no message of this iobench: {error}",
            "use the same iobench on all hosts",
        )

    def read(self, message: Message, kind: Any) -> Any:
        """What a message has to say, which is of this type. Raises HostLostError if it is not."""
        try:
            return of_text(message.body, kind)
        except ValueError as error:
            raise self.wrong(error) from None

    def give_up(self, why: str, remedy: str = _LOOK_THERE) -> HostLostError:
        """The other host is lost, for this reason: the error that all methods raise from now on.

        It is logged at once, since its reader may be busy, or will be for a while.
        """
        if self.lost is None:
            self.lost = HostLostError(f"{self.name} was lost: {why}", remedy=remedy)
            if not self._closed.is_set():
                log.warning("%s", self.lost.what)
        return self.lost

    def _check_lost(self) -> None:
        if self.lost is not None:
            raise self.lost


_SILENT = (
    *(errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN),
    *(errno.ENETUNREACH, errno.ENETDOWN),
)


def watch_silence(connected: socket.socket) -> None:
    """Have the kernel end the connection if the other host answers nothing (tcp(7))."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _GIVEN_UP_S)


def _is_ready(connected: socket.socket, event: int, timeout_s: float) -> bool:
    """Whether one can read (POLLIN) or write (POLLOUT), or the connection is over."""
    if connected.fileno() < 0:
        raise OSError(errno.EBADF, "the connection was closed")
    looked = select.poll()
    looked.register(connected, event)
    return bool(looked.poll(1e3 * timeout_s))


def _sent(connected: socket.socket, data: memoryview) -> int:
    """How many bytes the kernel has taken."""
    try:
        return connected.send(data, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return 0

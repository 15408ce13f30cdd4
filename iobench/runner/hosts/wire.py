"""The connection between two hosts: messages of known kinds, and nothing else.

Everything that two hosts tell each other goes through it, the barrier of a step and the echoes that
measure clocks, too. What comes from the network is checked before it is used; texts are JSON of the
types that are expected (``record.typed``), and no pickle is ever read. What is no message ends the
connection. A connection whose other end is gone, whose host does not answer, or which takes too
long for a message, is a lost host.

A thread receives from all connections of a process (``Wires``). So signs of life, echoes and
barriers never wait for what the process does otherwise.

The clock of another host, as seen from this one: by how much it is ahead, and how sure that is.

Each echo says that the other clock showed some instant between two instants of this one. The offset
lies within half of the round trip, so the shortest of many round trips tells it best (D. L. Mills,
"Internet time synchronization", 1991, the minimum filter). All clocks are monotonic, which nobody
sets; they start at the boot of each host, and run at slightly different speeds.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np

from ...base.errors import HostLostError, IobenchError
from ...record.typed import ErrorText, of_text

ECHOES = 200

MAX_DRIFT = 100e-6
"""By how much the speeds of two quartz clocks differ at most, as a share; most by less than 20e-6.
"""

MIN_SPAN_S = 10.0
"""Offsets that were measured within a shorter time say nothing of the clocks' speeds."""


class Echo(NamedTuple):
    """Instants in nanoseconds: ``sent`` and ``back`` on this clock, ``there`` on the other one."""

    sent: int
    there: int
    back: int


class Offset(NamedTuple):
    """The other clock minus this one, in nanoseconds, at the instant ``at_ns`` of this clock.

    ``error_ns``: half of the round trip, the largest error that the offset can have.
    """

    at_ns: int
    offset_ns: int
    error_ns: int


def offset_of(echoes: Sequence[Echo]) -> Offset:
    """The offset by the echo with the shortest round trip. Raises ValueError without any echo."""
    best = min(echoes, key=lambda echo: echo.back - echo.sent)
    middle = (best.sent + best.back) // 2
    return Offset(middle, best.there - middle, max(1, (best.back - best.sent + 1) // 2))


@dataclass
class Clock:
    """All offsets that were measured of another host's clock, and what follows from them."""

    known: list[Offset] = field(default_factory=list)

    def there(self, at_ns: int) -> int:
        """What the other clock shows when this one shows ``at_ns``.

        By the offset whose error is the smallest by then, if the clocks' speeds differ by
        ``MAX_DRIFT``: one that was measured beside working ranks may be worse than an older one.
        """

        def error_by_then(known: Offset) -> float:
            return known.error_ns + MAX_DRIFT * abs(at_ns - known.at_ns)

        best = min(reversed(self.known), key=error_by_then)
        drifted = (self.drift or 0.0) * (at_ns - best.at_ns)
        return at_ns + best.offset_ns + round(drifted)

    @property
    def drift(self) -> float | None:
        """By how much the other clock is faster, as a share; None: the time was too short to tell.

        Also None if the offsets' errors allow for no drift at all.
        """
        first, last = self.known[0], self.known[-1]
        span = last.at_ns - first.at_ns
        if span < MIN_SPAN_S * 1e9:
            return None
        at = np.array([each.at_ns - first.at_ns for each in self.known], dtype=np.float64)
        offsets = np.array(
            [each.offset_ns - first.offset_ns for each in self.known], dtype=np.float64
        )
        weights = 1.0 / np.array([each.error_ns for each in self.known], dtype=np.float64)
        slope = float(np.polyfit(at, offsets, 1, w=weights)[0]) if len(at) > 1 else 0.0
        return slope if abs(slope) * span > first.error_ns + last.error_ns else None

    @property
    def error_ns(self) -> int:
        """The largest error of any of the offsets."""
        return max(each.error_ns for each in self.known)


log = logging.getLogger(__name__)

SILENCE_S = 10
"""A host from which nothing comes for this long is lost."""

_GIVEN_UP_S = 8
"""After how many seconds without an answer the kernel ends a connection."""

BEAT_S = 1.0
"""Time between two signs of life."""

LEAST_BYTES_PER_S = 1 << 20
"""A message that has begun to come has ``SILENCE_S`` and the time that it takes at this rate."""

MAX_BODY_BYTES = 1 << 27
"""The events of a rank take some 20 MB; nothing larger is sent or received."""

_AT_ONCE = 1 << 20
"""Bytes that are received in one call."""

_LAST_WORDS_S = 1.0
"""How long to wait for what a lost host has sent before."""

_LOOK_THERE = "see the output of iobench and the kernel log on that host"

Kind = Literal["beat", "echo", "step", "call", "answer", "refused", "report", "interrupted", "bye"]

Error = Annotated[IobenchError, ErrorText()]

HEAD = struct.Struct("!4sBBqI")
"""Before each message: a mark, the number of its kind, the bytes of ``what``, the code, and the
bytes of its body."""

_MARK = b"iob2"
_KINDS: tuple[Kind, ...] = get_args(Kind)
_INSTANTS = struct.Struct("!2q")


@dataclass(frozen=True, slots=True)
class Message:
    """A message of one of these kinds.

    ``call`` is for the method ``what`` of the other host (``member``), with its arguments as
    ``body``. ``answer`` has its result, and ``refused`` an error. ``code`` is the number of the
    call that they belong to, so that nobody takes the answer of a call that he has given up for
    another one. It is 0 in a call that is not answered, and in what is said unasked: the error of
    such a call, or of a rank, which has ended.
    ``report``: what a host says unasked, by the name ``what``. ``bye``: the run is over, with the
    exit code ``code``, and what went wrong. ``interrupted``: Ctrl-C or SIGTERM has reached this
    host. ``step``: of the barrier. The first host sends a ``beat`` every second, which is answered
    by an ``echo``: signs of life, which measure the clocks as well.
    """

    kind: Kind
    what: str = ""
    code: int = 0
    body: bytes = b""


def encoded(message: Message) -> bytes:
    what, number = message.what.encode(), _KINDS.index(message.kind)
    head = HEAD.pack(_MARK, number, len(what), message.code, len(message.body))
    missing(head)
    return head + what + message.body


def missing(data: bytes | bytearray) -> int:
    """The bytes of the message that are still to come after these. Raises ValueError."""
    if len(data) < HEAD.size:
        return HEAD.size - len(data)
    mark, kind, what, _, body = HEAD.unpack_from(data)
    if mark != _MARK or kind >= len(_KINDS):
        raise ValueError("it does not begin as one")
    if body > MAX_BODY_BYTES:
        raise ValueError(f"it has {body >> 20} MiB")
    return int(HEAD.size + what + body - len(data))


def decoded(data: bytes | bytearray) -> Message:
    """The message of these bytes, which are all of it. Raises ValueError."""
    _, kind, what, code, _ = HEAD.unpack_from(data)
    begin = HEAD.size + what
    return Message(_KINDS[kind], data[HEAD.size : begin].decode(), code, bytes(data[begin:]))


class Wire:
    """One end of a connection. ``name``: the host at the other end, for messages.

    One thread uses it, beside that of ``Wires``. It can be waited for together with pipes.
    """

    def __init__(self, connected: socket.socket, name: str) -> None:
        self._bell = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK)  # how many are in the inbox
        watch_silence(connected)
        connected.settimeout(None)
        self.name = name
        self.connection = connected
        self.lost: HostLostError | None = None
        self.over = threading.Event()  # nothing will be received any more
        self.closed = False
        self._inbox: deque[Message] = deque()
        self._echoes: SimpleQueue[Echo] = SimpleQueue()
        self._coming = bytearray()  # of the message that has begun to come
        self._heard = self._began = time.monotonic()
        self._one_at_a_time = threading.Lock()

    def fileno(self) -> int:
        """Readable where ``receive`` returns or raises at once."""
        return self._bell

    def send(self, message: Message) -> None:
        """Raises HostLostError, also if the other end takes too long to receive it."""
        if self.lost is not None:
            raise self.lost
        left = memoryview(encoded(message))
        try:
            with self._one_at_a_time:
                deadline = time.monotonic() + SILENCE_S + len(left) / LEAST_BYTES_PER_S
                while left:
                    left_s = deadline - time.monotonic()
                    if left_s < 0 or not _is_ready(self.connection, select.POLLOUT, left_s):
                        break
                    with suppress(BlockingIOError):
                        left = left[self.connection.send(left, socket.MSG_DONTWAIT) :]
        except OSError as error:
            raise self._gone(error) from None
        if left:  # what follows would be no message
            raise self.give_up("iobench there did not receive a message in time")

    def receive(self) -> Message:
        """Wait for the next message. Raises HostLostError, also for what is no message."""
        while not self.poll(1.0):
            pass
        os.eventfd_read(self._bell)
        return self._inbox.popleft()

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Whether a message has come. Raises HostLostError if the other end is gone or silent."""
        deadline = time.monotonic() + timeout_s
        while not self._inbox and self.lost is None:
            if (left_s := deadline - time.monotonic()) <= 0:
                return False
            _is_ready(self._bell, select.POLLIN, left_s)
        if not self._inbox and self.lost is not None:
            self.over.wait(_LAST_WORDS_S)
            if not self._inbox:
                raise self.lost
        return bool(self._inbox)

    def echo(self) -> Echo:
        """What the clock of the other host shows now. Raises HostLostError."""
        began = time.monotonic_ns()
        self.beat()
        return self.echo_since(began)

    def beat(self) -> None:
        """Have the other host send an echo. Raises HostLostError."""
        self.send(Message("beat", body=_INSTANTS.pack(time.monotonic_ns(), 0)))

    def echo_since(self, began_ns: int) -> Echo:
        """Wait for the echo of a beat that was sent at this instant or later."""
        while True:
            try:
                if (found := self._echoes.get(timeout=BEAT_S)).sent >= began_ns:
                    return found
            except Empty:
                if self.lost is not None:
                    raise self.lost from None

    def echoes(self) -> list[Echo]:
        """All echoes that have come until now, since the last call."""
        return [self._echoes.get() for _ in range(self._echoes.qsize())]

    def take(self) -> Message | None:
        """What has come beside signs of life; None: no message is whole.

        Called where something can be received. Raises HostLostError.
        """
        try:
            more = self.connection.recv(min(missing(self._coming), _AT_ONCE), socket.MSG_DONTWAIT)
            if not more:
                raise EOFError
            self._heard = time.monotonic()
            self._began = self._began if self._coming else self._heard
            self._coming += more
            if missing(self._coming):
                return None
            message, self._coming = decoded(self._coming), bytearray()
            if message.kind == "beat":
                sent, _ = _INSTANTS.unpack(message.body)
                self.send(Message("echo", body=_INSTANTS.pack(sent, time.monotonic_ns())))
            elif message.kind == "echo":
                sent, there = _INSTANTS.unpack(message.body)
                self._echoes.put(Echo(sent, there, time.monotonic_ns()))
            else:
                return message
        except BlockingIOError:
            pass
        except (ValueError, struct.error) as error:
            raise self.wrong(error) from None
        except (EOFError, OSError) as error:
            raise self._gone(error) from None
        return None

    def put(self, message: Message) -> None:
        """Keep what has come for ``receive``."""
        os.eventfd_write(self._bell, 1)
        self._inbox.append(message)

    def put_back(self, messages: Sequence[Message]) -> None:
        """Let ``receive`` return these first, which it has returned before."""
        for message in reversed(messages):
            os.eventfd_write(self._bell, 1)
            self._inbox.appendleft(message)

    def check_silence(self) -> None:
        """Raises HostLostError."""
        now = time.monotonic()
        if self._coming:
            whole_s = (len(self._coming) + missing(self._coming)) / LEAST_BYTES_PER_S
            if (took := now - self._began) > SILENCE_S + whole_s:
                raise self.give_up(f"iobench there sent only a part of a message in {took:.0f} s")
        elif (silent := now - self._heard) > SILENCE_S:
            raise self.give_up(f"iobench there was silent for {silent:.0f} s")

    def close(self) -> None:
        self.closed = True
        with suppress(OSError):  # its own end, too, receives that nothing comes any more
            self.connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Nothing will be received any more."""
        self.connection.close()
        self.over.set()

    def __del__(self) -> None:
        os.close(self._bell)

    def _gone(self, error: Exception) -> HostLostError:
        silent = isinstance(error, OSError) and error.errno in _SILENT
        return self.give_up(
            f"it did not answer for {_GIVEN_UP_S} s" if silent else "its process has ended"
        )

    def wrong(self, error: Exception) -> HostLostError:
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
            os.eventfd_write(self._bell, 1)
            if not self.closed:
                log.warning("%s", self.lost.what)
        return self.lost


Step = Callable[["Wire | None", bytes], None]
"""Hears of a barrier from another host, or (None) from the ranks of this one. Raises ValueError for
what is none."""


class Wires:
    """The connections of this process, from which a thread receives until it is closed.

    ``leads``: this end beats. ``step``: hears the messages of the barrier.
    """

    def __init__(self, *, leads: bool) -> None:
        self._leads = leads
        self._selector = selectors.DefaultSelector()
        self._bell = os.eventfd(0)  # wakes the thread
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._step: Step | None = None
        self._open: list[Wire] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="hosts", daemon=True)
        self._thread.start()

    def add(self, connected: socket.socket, name: str) -> Wire:
        """The wire of a connection to the host of this name. Raises OSError if it is gone."""
        wire = Wire(connected, name)
        self._open.append(wire)
        self._selector.register(connected, selectors.EVENT_READ, wire)
        return wire

    def meet(self, ranks: Connection, step: Step) -> Callable[[], None]:
        """From now on ``step`` hears of barriers, also what the ranks of this host say there.

        Returns what ends that.
        """
        self._step = step
        self._selector.register(ranks, selectors.EVENT_READ, ranks)

        def end() -> None:
            self._step = None
            self._selector.unregister(ranks)

        return end

    def close(self) -> None:
        """End the thread, and close all connections."""
        self._closing = True
        os.eventfd_write(self._bell, 1)
        self._thread.join()

    def __del__(self) -> None:
        os.close(self._bell)

    def _run(self) -> None:
        due = 0.0
        while not self._closing:
            for key, _ in self._selector.select(max(0.0, due - time.monotonic())):
                if isinstance(key.data, Wire):
                    self._with(key.data, self._take)
                elif key.data is not None:
                    with suppress(OSError, EOFError):  # the phase has just ended
                        self._hear(None, key.data.recv_bytes())
            if (now := time.monotonic()) >= due:
                due = now + BEAT_S
                for wire in list(self._open):
                    self._with(wire, self._look)
        self._selector.close()
        for wire in self._open:
            wire.close()
            wire.end()

    def _with(self, wire: Wire, act: Callable[[Wire], None]) -> None:
        try:
            act(wire)
        except HostLostError:
            self._selector.unregister(wire.connection)
            self._open.remove(wire)
            wire.end()

    def _take(self, wire: Wire) -> None:
        message = wire.take()
        if message is not None and message.kind == "step":
            try:
                self._hear(wire, message.body)
            except (ValueError, struct.error) as error:
                raise wire.wrong(error) from None
        elif message is not None:
            wire.put(message)

    def _hear(self, wire: Wire | None, said: bytes) -> None:
        if self._step is not None:  # else the phase has just ended
            self._step(wire, said)

    def _look(self, wire: Wire) -> None:
        wire.check_silence()
        # Never wait for its buffer.
        if self._leads and wire.lost is None and _is_ready(wire.connection, select.POLLOUT, 0):
            wire.beat()


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


def _is_ready(connected: socket.socket | int, event: int, timeout_s: float) -> bool:
    """Whether one can read (POLLIN) or write (POLLOUT), or the connection is over."""
    if not isinstance(connected, int) and connected.fileno() < 0:
        raise OSError(errno.EBADF, "the connection was closed")
    looked = select.poll()
    looked.register(connected, event)
    return bool(looked.poll(1e3 * timeout_s))

"""The barrier at which the ranks of several hosts wait for each other after, or before, each step.

On each host it is ``StepBarrier``. The last rank of a host to arrive tells the controller the
latest nominal end of the host's ranks. When the last host has arrived, the controller tells all of
them the latest end of all, for which each host opens its barrier. So a barrier costs a host one
round trip to the controller. Nominal ends are on the controller's clock.
"""

from __future__ import annotations

import hmac
import os
import select
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from ...base.errors import WorkerError
from ..barrier import StepBarrier
from ..messages import Flag
from .meeting import Meeting
from .strangers import Strangers, listen
from .wire import watch_silence

_LOOK_S = 0.2
"""How often a host that waits looks whether it is to stop."""

_PATIENCE_S = 1.0
"""How long after a stop a host waits for the others, if all of them make a step or none does."""

_LOST_S = 10.0
"""How long a rank that has lost the controller waits for its agent to stop it."""

_JOIN, _ARRIVE, _LEAVE = 1, 2, 3
_MEASURED = 0
"""Stands for a phase, whose numbers begin at 1, while the cost of a barrier is measured: all hosts
take part."""
_HOST = struct.Struct("!q")  # who connects, after the secret
_SAID = struct.Struct("!4q")  # what, phase, epoch, nominal end in nanoseconds
_ANSWER = struct.Struct("!q")  # the latest nominal end of all hosts; 0 for who has joined


# At the controller


@dataclass
class _Epoch:
    """The hosts that take part in the steps of an epoch, and who has arrived at this one."""

    members: set[int]
    waiting: dict[int, tuple[socket.socket, int]] = field(default_factory=dict)


class BarrierServer:
    """Lets the ranks of all hosts meet: a thread of the controller, until it is closed.

    Whoever connects must know the secret of the meeting, and is not answered otherwise.
    """

    def __init__(self, meeting: Meeting) -> None:
        self._token = meeting.hosts[0].token.encode()
        self._listener = listen()
        self.port: int = self._listener.getsockname()[1]
        self._hosts = len(meeting.hosts)
        self._epochs: dict[tuple[int, int], _Epoch] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="barrier", daemon=True)
        self._thread.start()

    def expect(self, phase: int, hosts: Sequence[int]) -> None:
        """These hosts, and no others, take part in all steps of a phase, as its epoch 0."""
        self._epochs[phase, 0] = _Epoch(set(hosts))

    def close(self) -> None:
        self._closed = True
        self._thread.join()

    def _serve(self) -> None:
        size = len(self._token) + _HOST.size
        with selectors.DefaultSelector() as selector, self._listener:
            strangers = Strangers(self._listener, selector)
            try:
                while not self._closed:
                    for key, _ in selector.select(_LOOK_S):
                        connected = key.fileobj
                        assert isinstance(connected, socket.socket)
                        if key.data is not strangers:
                            if not self._read(connected, *key.data):
                                selector.unregister(connected)
                                connected.close()
                            continue
                        for known, said in strangers.ready(connected, size):
                            (host,) = _HOST.unpack(said[-_HOST.size :])
                            secret = hmac.compare_digest(said[: -_HOST.size], self._token)
                            if secret and 0 <= host < self._hosts:
                                selector.register(known, selectors.EVENT_READ, (host, bytearray()))
                            else:
                                known.close()
                    strangers.tidy()
            finally:
                strangers.close()
                for key in list(selector.get_map().values()):
                    key.fileobj.close()  # type: ignore[union-attr]

    def _read(self, connected: socket.socket, host: int, unread: bytearray) -> bool:
        """Take what has come, as far as it is whole; False: the connection is over."""
        try:
            if not (more := connected.recv(4096)):
                return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        unread += more
        while len(unread) >= _SAID.size:
            what, phase, number, end_ns = _SAID.unpack(unread[: _SAID.size])
            if not self._hear(connected, what, phase, number, host, end_ns):
                return False
            del unread[: _SAID.size]
        return True

    def _hear(
        self, connected: socket.socket, what: int, phase: int, number: int, host: int, end_ns: int
    ) -> bool:
        """False: the connection is over."""
        everyone = range(self._hosts if phase == _MEASURED else 0)
        epoch = self._epochs.setdefault((phase, number), _Epoch(set(everyone)))
        if what == _JOIN:
            epoch.members.add(host)
            return _answered(connected, 0)
        if what == _LEAVE:
            epoch.members.discard(host)
        else:
            epoch.waiting[host] = connected, end_ns
        if epoch.waiting and epoch.waiting.keys() >= epoch.members:
            latest = max(end for _, end in epoch.waiting.values())
            waiting, epoch.waiting = epoch.waiting, {}
            for other, _ in waiting.values():
                _answered(other, latest)  # where not, its agent's silence tells it
        if not epoch.members:
            del self._epochs[phase, number]
        return True


def _answered(connected: socket.socket, end_ns: int) -> bool:
    """Answer without waiting: who reads nothing of thousands of answers is not waited for."""
    answer = _ANSWER.pack(end_ns)
    try:
        if connected.send(answer, socket.MSG_DONTWAIT) == len(answer):
            return True
        connected.shutdown(socket.SHUT_RDWR)  # half of an answer is none
    except BlockingIOError:
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    return False


# On each host


class BarrierClient:
    """A connection of one process to the controller's ``BarrierServer``.

    Raises WorkerError from all its methods if the controller is lost.
    """

    def __init__(self, meeting: Meeting, port: int) -> None:
        self._where = f"{meeting.hosts[0].label} at {meeting.launch.address}:{port}"
        hello = meeting.hosts[0].token.encode() + _HOST.pack(meeting.launch.index)
        with self._or_lost():
            self._connected = socket.create_connection((meeting.launch.address, port), _LOST_S)
            watch_silence(self._connected)
            self._connected.settimeout(_LOST_S)
            self._connected.sendall(hello)

    def join(self, phase: int, epoch: int) -> None:
        """Take part in the steps of this epoch; when this returns, the controller knows it."""
        self._say(_JOIN, phase, epoch)
        while self.answer() is None:
            pass

    def arrive(self, phase: int, epoch: int, end_ns: int) -> None:
        """Arrive at a step's barrier; ``answer`` then returns the latest end of all hosts."""
        self._say(_ARRIVE, phase, epoch, end_ns)

    def leave(self, phase: int, epoch: int) -> None:
        self._say(_LEAVE, phase, epoch)

    def answer(self, timeout_s: float = _LOOK_S) -> int | None:
        """What the controller answers, in nanoseconds; None if it does not do so in this time."""
        with self._or_lost():
            looked = select.poll()
            looked.register(self._connected, select.POLLIN)
            if not looked.poll(1e3 * timeout_s):
                return None
            found = self._connected.recv(_ANSWER.size, socket.MSG_WAITALL)
            if len(found) < _ANSWER.size:
                raise OSError("the connection was closed")
        end_ns: int = _ANSWER.unpack(found)[0]
        return end_ns

    def close(self) -> None:
        self._connected.close()

    def _say(self, what: int, phase: int, epoch: int, end_ns: int = 0) -> None:
        with self._or_lost():
            self._connected.sendall(_SAID.pack(what, phase, epoch, end_ns))

    @contextmanager
    def _or_lost(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WorkerError(
                f"the barrier of the hosts, which {self._where} keeps, was lost: "
                f"{error.strerror or error}",
                remedy="see the output of iobench on host 0",
            ) from None


class HostsBarrier(StepBarrier):
    """Made before the ranks of this host are forked. ``port``: of the controller's server.

    ``phase``: its number in the run. ``offset_ns``: how far this host's clock is ahead of the
    controller's. ``members``: as in ``StepBarrier``, ranks of this host that take part in all
    steps; the server must then ``expect`` this host. Raises WorkerError from its methods if the
    controller is lost.
    """

    def __init__(
        self, meeting: Meeting, port: int, phase: int, *, offset_ns: int = 0, members: int = 0
    ) -> None:
        super().__init__(members)
        self._meeting, self._port, self._phase = meeting, port, phase
        self._offset_ns = offset_ns
        self._patience_s = _PATIENCE_S if members else 0.0
        self._opened: tuple[int, BarrierClient] | None = None

    @property
    def _client(self) -> BarrierClient:
        """Of this process alone: each rank opens a connection before its first step."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), BarrierClient(self._meeting, self._port)
        return self._opened[1]

    def join(self, epoch: int, stopped: Flag) -> None:
        self._client.join(self._phase, epoch)
        super().join(epoch, stopped)

    def _agree(self, epoch: int, stopped: Flag) -> bool:
        """Meet the other hosts at the end of a step; False: the rank is to stop."""
        try:
            self._client.arrive(self._phase, epoch, self._latest() - self._offset_ns)
            stopped_s = None
            while (latest := self._client.answer()) is None:
                if not stopped.value:
                    continue
                stopped_s = stopped_s or time.monotonic()
                if time.monotonic() - stopped_s >= self._patience_s:
                    return False
        except WorkerError as error:
            # This host's agent notices that the controller is lost, too. Then the ranks are
            # stopped, and what they recorded is kept.
            deadline = time.monotonic() + _LOST_S
            while not stopped.value:
                if time.monotonic() > deadline:
                    raise error
                time.sleep(0.05)
            return False
        self._set_latest(latest + self._offset_ns)
        return True

    def _end(self, epoch: int) -> None:
        with suppress(WorkerError):  # without a controller, nobody waits for this host
            self._client.leave(self._phase, epoch)


def barrier_s(meeting: Meeting, port: int, *, rounds: int = 100) -> float:
    """The median seconds of a barrier of all hosts that arrive at once, over ``rounds`` of it.

    All hosts call it at about the same time. The first round waits for the last of them.
    """
    client = BarrierClient(meeting, port)
    took: list[float] = []
    try:
        for _ in range(1 + rounds):
            began = time.monotonic()
            client.arrive(_MEASURED, 0, 0)
            while client.answer() is None:
                pass
            took.append(time.monotonic() - began)
        client.leave(_MEASURED, 0)
    finally:
        client.close()
    return sorted(took[1:])[rounds // 2]

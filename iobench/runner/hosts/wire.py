"""A connection between two hosts: messages of known kinds, and nothing else.

What comes from the network is unpickled by an unpickler that knows the classes of messages, the
errors of iobench and numpy's arrays. Any other class ends the connection, and no function is ever
called. A connection whose other end is gone, or whose host does not answer, is a lost host. Both
ends send a sign of life every second, whatever else they do.
"""

from __future__ import annotations

import errno
import io
import logging
import pickle
import select
import socket
import threading
import time
import types
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from multiprocessing.connection import Connection

import numpy as np

from ... import errors
from ...errors import HostLostError, IobenchError
from ...generator import writer
from ...measure import depth, nfs
from ...schema import accelerator, checkpoint, host, job, resources, training, workload
from ...schema.base import OpenRecord, Record, Strict
from ...verify import report
from .. import agent, fetches, messages
from ..curve import places
from . import words
from .words import Beat

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 1 << 28
"""The events of a rank take some 15 MB; nothing larger is received."""

SILENCE_S = 10
"""A host from which nothing comes for this long is lost."""

_GIVEN_UP_S = 8
"""After how many seconds without an answer the kernel ends a connection."""

BEAT_S = 1.0
"""Time between two signs of life."""

_NUMPY = "numpy.core" if np.__version__.startswith("1.") else "numpy._core"

_ARRAYS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    (f"{_NUMPY}.multiarray", "_reconstruct"),
    (f"{_NUMPY}.multiarray", "scalar"),
    (f"{_NUMPY}.numeric", "_frombuffer"),
}

_MODULES = (
    *(messages, words, errors, agent, fetches),
    *(accelerator, checkpoint, host, job, resources, training, workload),
    *(writer, report, depth, places),
)


class Wire:
    """One end of a connection. ``name``: the host at the other end, for messages.

    One thread uses it; another one sends the signs of life (``keep_alive``).
    """

    def __init__(self, connected: socket.socket, name: str) -> None:
        watch_silence(connected)
        connected.settimeout(None)
        self.name = name
        self.connection = Connection(connected.detach())
        self.heard = time.monotonic()
        self._next: object = None  # was received while the wire was only looked at
        self._one_at_a_time = threading.Lock()
        self._closed = threading.Event()
        self._told = threading.Event()

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
                    self.send(Beat())
            except (HostLostError, OSError, ValueError):
                return  # it was lost, which was told, or closed just now

    def send(self, message: object) -> None:
        """Raises HostLostError."""
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            with self._one_at_a_time:
                self.connection.send_bytes(data)
        except OSError as error:
            raise self._lost(error) from None

    def receive(self) -> object:
        """Wait for the next message. Raises HostLostError, also for what is no message."""
        while not self.poll(1.0):
            pass
        message, self._next = self._next, None
        return message

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Whether a message has come. Raises HostLostError if the other end is gone or silent."""
        deadline = time.monotonic() + timeout_s
        try:
            while self._next is None:
                left = max(0.0, deadline - time.monotonic())
                if not self.connection.poll(left):
                    if (silent := time.monotonic() - self.heard) > SILENCE_S:
                        raise self._tell(f"iobench there was silent for {silent:.0f} s")
                    return False
                message = loads(self.connection.recv_bytes(MAX_MESSAGE_BYTES))
                self.heard = time.monotonic()
                self._next = None if isinstance(message, Beat) else message
        except (EOFError, OSError) as error:
            raise self._lost(error) from None
        return True

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
        with suppress(EOFError, OSError):
            while self.connection.poll(max(0.0, deadline_s - time.monotonic())):
                self.connection.recv_bytes(MAX_MESSAGE_BYTES)

    def _lost(self, error: Exception) -> HostLostError:
        why = "its process has ended"
        if isinstance(error, TimeoutError) or (
            isinstance(error, OSError) and error.errno in _SILENT
        ):
            why = f"it did not answer for {_GIVEN_UP_S} s"
        return self._tell(why)

    def _tell(self, why: str) -> HostLostError:
        """The error. It is logged at once, since its reader may be busy, or will be for a while."""
        error = lost(self.name, why)
        if not (self._told.is_set() or self._closed.is_set()):
            self._told.set()
            log.warning("%s", error.what)
        return error


_SILENT = (
    *(errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN),
    *(errno.ENETUNREACH, errno.ENETDOWN),
)


def lost(name: str, why: str) -> HostLostError:
    return HostLostError(
        f"{name} was lost: {why}",
        remedy="see the output of iobench and the kernel log on that host",
    )


def watch_silence(connected: socket.socket) -> None:
    """Have the kernel end the connection if the other host answers nothing (tcp(7))."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _GIVEN_UP_S)


def loads(data: bytes) -> object:
    """Read a message. Raises HostLostError for bytes that are none."""
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except IobenchError:
        raise
    except Exception as error:  # whatever damaged bytes make an unpickler raise
        raise HostLostError(
            f"what another host has sent is no message ({type(error).__name__})",
            remedy="use the same iobench on all hosts",
        ) from None


class _Unpickler(pickle.Unpickler):
    """Knows the classes of messages only. ``_rebuild`` makes an error, and takes nothing else."""

    def find_class(self, module: str, name: str) -> object:
        found = known().get((module, name))
        if found is None:
            raise HostLostError(
                f"what another host has sent is no message: {module}.{name} is not known",
                remedy="use the same iobench on all hosts",
            )
        return found


@cache
def known() -> dict[tuple[str, str], object]:
    """What a message may consist of, by its module and its name."""
    found: dict[tuple[str, str], object] = {
        (kind.__module__, kind.__qualname__): kind
        for module in _MODULES
        for kind in _classes(module)
    }
    found["iobench.errors", "_rebuild"] = errors._rebuild
    found["iobench.measure.nfs", "MountStats"] = nfs.MountStats
    found["iobench.measure.nfs", "Operation"] = nfs.Operation
    for module_name, name in _ARRAYS:
        found[module_name, name] = getattr(import_module(module_name), name)
    return found


def _classes(module: types.ModuleType) -> Iterable[type]:
    """The classes of a module that hold data: those that it defines itself."""
    return (
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and each.__module__ == module.__name__
        and (
            is_dataclass(each)
            or issubclass(each, (Record, OpenRecord, Strict, IobenchError))
            or (issubclass(each, tuple) and hasattr(each, "_fields"))
        )
    )

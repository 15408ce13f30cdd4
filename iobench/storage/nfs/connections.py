"""Connections to one NFS server.

They are made on demand, one for each thread at work, and made again when lost and after a fork.
"""

from __future__ import annotations

import errno
import posixpath
import socket
import time
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from ...base.errors import MissingObjectError, StorageError
from ...base.processes import watch
from ...base.units import format_duration
from ..base import check_key
from .context import Context, Lost

T = TypeVar("T")

_MAX_IDLE = 64
_PAUSE_S = 0.2
"""Pause between two attempts: a server that is restarting refuses connections at once."""

_REMEDIES = {
    errno.ENOSPC: "free some space, or choose another target",
    errno.EROFS: "the export is read-only: choose another target",
    errno.EACCES: "check the export's list of clients, the permissions, and the options uid and "
    "gid in the URL",
    errno.EPERM: "check the export's list of clients, the permissions, and the options uid and "
    "gid in the URL",
    errno.ENOENT: "check that the dataset is complete: iobench verify",
    errno.EIO: "the server reports an error: see its log",
}


class Connections:
    """Connections to ``path`` on ``server``, mounted with libnfs's URL arguments ``settings``.

    The server may take ``timeout_s`` to answer.
    """

    def __init__(self, server: str, path: str, settings: str, *, timeout_s: float) -> None:
        self.server = server
        self.path = path
        self.settings = settings
        self.timeout_s = timeout_s
        self.mounted: str | None = None  # the directory that was mounted; None: none yet
        self.links: bool | None = None  # whether the server has LINK; None: not known yet
        self._below = ""  # this storage's path below it
        self._reset()
        watch(self)

    def after_fork(self) -> None:
        for context in self._idle:
            context.abandon()  # closes this process's copy of the parent's sockets
        self._reset()

    def _reset(self) -> None:
        self._lock = Lock()
        self._idle: list[Context] = []
        self.retries = 0  # in this process

    def ask(self, work: Callable[[Context], T], verb: str, key: str, *, patient: bool = True) -> T:
        """The result of ``work`` on a connection.

        Where the server does not answer, ``work`` is repeated on a new connection until the server
        has been silent for ``timeout_s``; with ``patient`` False it is not repeated. Raises
        StorageError that names ``verb`` and ``key``.
        """
        deadline = time.monotonic() + self.timeout_s
        while True:
            context: Context | None = None
            try:
                context = self.take(deadline)
                result = work(context)
            except Lost as lost:
                if context is not None:
                    deadline = max(deadline, context.answered_s + self.timeout_s)
                    context.abandon()
                # The very first connection is not retried: the name or the port may be wrong.
                if not patient or self.mounted is None or time.monotonic() + _PAUSE_S >= deadline:
                    raise self.failed(verb, key, lost) from lost
                with self._lock:
                    self.retries += 1
                time.sleep(_PAUSE_S)
            except OSError as error:
                if context is not None:
                    self.give_back(context)
                raise self.failed(verb, key, error) from error
            except BaseException:
                if context is not None:
                    context.abandon()
                raise
            else:
                self.give_back(context)
                return result

    def take(self, deadline: float | None = None) -> Context:
        """A connection for this thread alone. Raises Lost, OSError."""
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        left = self.timeout_s if deadline is None else max(1.0, deadline - time.monotonic())
        taken = idle or self._connect(left)
        taken.set_timeout(left)
        return taken

    def give_back(self, context: Context) -> None:
        """Return a working connection, for the next caller."""
        with self._lock:
            if len(self._idle) < _MAX_IDLE and not context.spoiled:
                self._idle.append(context)
                return
        _destroy(context)

    def _connect(self, timeout_s: float) -> Context:
        """Mount the path, or the nearest directory above it that the server lets us mount.

        Raises Lost, OSError.
        """
        try:
            socket.getaddrinfo(self.server, None)
        except OSError as error:
            raise OSError(
                errno.EHOSTUNREACH, f"the server's name could not be resolved ({error.strerror})"
            ) from error
        folder = self.mounted or self.path
        refusal: OSError | None = None
        while True:
            try:
                context = Context(self.server, folder, self.settings, timeout_s=timeout_s)
            except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
                # Some servers let clients mount only the export itself.
                refusal = refusal or error
                if folder == "/" or self.mounted:
                    raise refusal from None
                folder = posixpath.dirname(folder)
                continue
            below = posixpath.relpath(self.path, folder)
            self.mounted, self._below = folder, "" if below == "." else f"/{below}"
            return context

    def path_of(self, key: str) -> str:
        """The path of a key on a connection, once one was made; '' is the root.

        Raises StorageError for one that leads out of the root.
        """
        return f"{self._below}/{check_key(key)}" if key else self._below or "/"

    def close(self) -> None:
        idle, self._idle = self._idle, []
        for context in idle:
            _destroy(context)
        self._idle = []

    def failed(self, verb: str, key: str, error: Exception) -> StorageError:
        """The error as one line: what failed, on which key, why."""
        where = f"nfs://{self.server}{self.path.rstrip('/')}" + (f"/{key}" if key else "")
        if isinstance(error, Lost):
            silent = (
                f"no answer from the NFS server for {format_duration(self.timeout_s)}"
                if self.mounted
                else "no NFS server was reached"
            )
            remedy = (
                "check that it runs and can be reached; the options nfsport and mountport name "
                "its ports, timeout says how long to wait"
            )
            return StorageError(f"cannot {verb} {where}: {silent} ({error})", remedy=remedy)
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        remedy = _REMEDIES.get(error.errno or 0, "") if isinstance(error, OSError) else ""
        missing = isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENOTDIR)
        return (MissingObjectError if missing else StorageError)(
            f"cannot {verb} {where}: {reason}", remedy=remedy
        )


def _destroy(context: Context) -> None:
    try:
        context.destroy()
    except (Lost, OSError):
        context.abandon()

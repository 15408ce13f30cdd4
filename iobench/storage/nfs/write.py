"""How an object is written to NFS: a ``.part`` file, COMMIT, then its name."""

from __future__ import annotations

import ctypes
import errno
import os
import posixpath
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from ...base.errors import IobenchError, StorageError
from ...base.processes import alone_on_this_host
from ..base import Buffer, Sink
from .connections import Connections
from .context import Context, Lost

_PATIENCE_S = 60.0
"""How long another process may take to make a folder; then it is made all the same."""


@contextmanager
def writing(connections: Connections, key: str) -> Iterator[Sink]:
    """See NfsStorage.create, which says what is guaranteed."""
    connections.ask(
        lambda nfs: _prepare(nfs, connections.path_of(key), connections.server), "create", key
    )
    try:
        nfs = connections.take()
    except (Lost, OSError) as error:
        # Another thread took the connection just returned, and no new one could be made.
        raise connections.failed("create", key, error) from error
    path = connections.path_of(key)
    part = f"{path}.part"
    try:
        sink = NfsSink(nfs, part)
        try:
            yield sink
            sink.commit()
            _publish(nfs, part, path)
        except Lost:
            raise
        except BaseException:
            sink.abort()
            raise
    except Lost as lost:
        nfs.abandon()
        # The server may still be unreachable: the next writer starts the file again.
        with suppress(StorageError):
            connections.ask(
                lambda other: other.unlink(part), "delete", f"{key}.part", patient=False
            )
        raise connections.failed("write", key, lost) from lost
    except OSError as error:
        connections.give_back(nfs)
        raise connections.failed("write", key, error) from error
    except BaseException:
        connections.give_back(nfs)
        raise
    connections.give_back(nfs)


def replacing(
    connections: Connections,
    key: str,
    data: bytes,
    *,
    only_new: bool,
    allowed: Callable[[], None],
) -> None:
    """See NfsStorage.replace. Each retry starts with a new ``.part`` file.

    A retry with ``only_new`` may find its own first attempt, whose answer was lost; it is refused.
    """

    def replace(nfs: Context) -> None:
        path = connections.path_of(key)
        part = f"{path}.{secrets.token_hex(4)}.part"
        _make_folders(nfs, posixpath.dirname(path), connections.server)
        sink = NfsSink(nfs, part)
        try:
            sink.write(data)
            sink.commit()
            if only_new:
                connections.links = _publish(nfs, part, path)
            else:
                allowed()
                nfs.rename(part, path)
        except (OSError, IobenchError):
            sink.abort()
            raise

    connections.ask(replace, "replace", key)


def _prepare(nfs: Context, path: str, server: str) -> None:
    """Check that the name is free, make its folders, and remove a killed writer's ``.part``."""
    if exists(nfs, path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    if exists(nfs, f"{path}.part"):
        nfs.unlink(f"{path}.part")
    _make_folders(nfs, posixpath.dirname(path), server)


def exists(nfs: Context, path: str) -> bool:
    try:
        nfs.stat(path)
    except FileNotFoundError:
        return False
    return True


def _make_folders(nfs: Context, folder: str, server: str) -> None:
    """Make a folder with those above it, one writer of this host at a time.

    rclone loses files of a folder that two writers make at once.
    """
    if folder in ("", "/") or exists(nfs, folder):
        return
    _make_folders(nfs, posixpath.dirname(folder), server)
    with alone_on_this_host(f"folders-{server}"[:90], _PATIENCE_S):
        if exists(nfs, folder):
            return  # another writer has made it meanwhile
        with suppress(FileExistsError):  # a writer of another host has made it
            nfs.mkdir(folder)


def _publish(nfs: Context, part: str, path: str) -> bool:
    """Give a file its name, unless the name is taken; whether the server has LINK to do so."""
    try:
        nfs.link(part, path)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EPERM):
            raise
        if exists(nfs, path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        nfs.rename(part, path)
        return False
    nfs.unlink(part)
    return True


class NfsSink:
    """Sends blocks of the server's ``wsize``.

    Writes are not retried: a server that restarts may have lost data that was not committed.
    """

    def __init__(self, nfs: Context, path: str) -> None:
        self._nfs = nfs
        self._path = path
        self._handle = nfs.create(path)
        self._block = np.empty(nfs.writemax, np.uint8)
        self._filled = 0
        self._offset = 0

    def write(self, data: bytes | Buffer) -> None:
        source = np.frombuffer(data, dtype=np.uint8)
        while len(source):
            if not self._filled and len(source) >= len(self._block):
                self._send(source[: len(self._block)])
                source = source[len(self._block) :]
                continue
            count = min(len(self._block) - self._filled, len(source))
            self._block[self._filled : self._filled + count] = source[:count]
            self._filled += count
            source = source[count:]
            if self._filled == len(self._block):
                self._drain()

    def _drain(self) -> None:
        filled, self._filled = self._filled, 0
        self._send(self._block[:filled])

    def _send(self, block: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
        address = int(block.__array_interface__["data"][0])
        done = 0
        while done < len(block):
            done += self._nfs.pwrite(
                self._handle, self._offset + done, address + done, len(block) - done
            )
        self._offset += len(block)

    def commit(self) -> None:
        """Write everything to the server's stable storage, under the ``.part`` name."""
        self._drain()
        self._nfs.fsync(self._handle)
        handle, self._handle = self._handle, ctypes.c_void_p()
        self._nfs.close(handle)
        if self._nfs.stat(self._path).size != self._offset:
            raise OSError(errno.EBUSY, "another process is writing it")

    def abort(self) -> None:
        """Remove the ``.part`` file. Raises Lost, OSError."""
        if self._handle:
            self._nfs.close(self._handle)
        self._nfs.unlink(self._path)

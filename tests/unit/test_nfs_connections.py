"""Several connections to one NFS server, in threads of one process."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from iobench.base.processes import alone_on_this_host
from iobench.storage.nfs.context import Lost
from iobench.storage.nfs.storage import NfsStorage
from iobench.storage.nfs.write import _make_folders


class Folders:
    """A server on which two writers look for ``/new`` before either makes it."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.both = threading.Barrier(2, timeout=30)
        self.waits = 2

    def stat(self, path: str) -> None:
        there = path in self.made
        if self.waits > 0:
            self.waits -= 1
            self.both.wait()
        if not there:
            raise FileNotFoundError(errno.ENOENT, path)

    def mkdir(self, path: str) -> None:
        self.made.append(path)


def test_a_folder_is_made_by_one_writer() -> None:
    """A server that gets two MKDIR of one name at once may lose what is in one of the folders."""
    server: Any = Folders()
    name = f"test-{os.getpid()}"
    writers = [
        threading.Thread(target=_make_folders, args=(server, "/new", name)) for _ in range(2)
    ]
    for each in writers:
        each.start()
    for each in writers:
        each.join(timeout=60)
    assert server.made == ["/new"]


def test_one_process_of_this_host_at_a_time() -> None:
    name = f"test-{os.getpid()}"
    with alone_on_this_host(name, 0.0) as alone:
        child = os.fork()
        if child == 0:
            with alone_on_this_host(name, 0.0) as second:
                os._exit(int(second))
        assert (alone, os.waitpid(child, 0)[1]) == (True, 0)
    with alone_on_this_host(name, 60.0) as again:
        assert again


class KeptOpen:
    """A connection that keeps a file open which was replaced: its server refuses to read it."""

    readmax = 1 << 20

    @contextmanager
    def opened(self, path: str, *, keep: bool, anew: bool = False) -> Iterator[str]:
        yield "new" if anew else "kept"

    def pread(self, handle: str, offset: int, address: int, count: int) -> int:
        if handle == "kept":
            raise OSError(errno.EFAULT, "refused")
        return 0

    def is_folder(self, path: str) -> bool:
        return False


class Stale(KeptOpen):
    """One whose file was replaced after its first two bytes had been read."""

    def pread(self, handle: str, offset: int, address: int, count: int) -> int:
        if offset:
            raise Lost("NFS3ERR_STALE")
        ctypes.memmove(address, b"of", 2)
        return 2


class New(KeptOpen):
    def pread(self, handle: str, offset: int, address: int, count: int) -> int:
        ctypes.memmove(address, found := b"another"[offset : offset + count], len(found))
        return len(found)


class Pool:
    """Connections that are taken one after the other."""

    def __init__(self, *idle: Any) -> None:
        self.idle = list(idle)

    def path_of(self, key: str) -> str:
        return f"/{key}"

    def ask(self, work: Callable[[Any], int], verb: str, key: str) -> int:
        try:
            return work(self.idle.pop())
        except Lost:
            return self.ask(work, verb, key)


def test_a_file_that_several_connections_keep_open_is_opened_anew() -> None:
    storage = NfsStorage("nfs://127.0.0.1/data")
    storage.connections = Pool(KeptOpen(), KeptOpen())  # type: ignore[assignment]
    assert storage.read_into("replaced", 0, memoryview(bytearray(8))) == 0


def test_bytes_of_two_files_are_not_joined() -> None:
    storage, buffer = NfsStorage("nfs://127.0.0.1/data"), bytearray(8)
    storage.connections = Pool(New(), Stale())  # type: ignore[assignment]
    assert storage.read_into("replaced", 0, memoryview(buffer)) == len(b"another")
    assert buffer == b"another\0"

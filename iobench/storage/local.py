"""A directory on a local disk or a mounted file system: ``preadv`` into the caller's memory, O_DIRECT on demand."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, TypeVar
from urllib.parse import unquote, urlsplit

from ..errors import MissingObjectError, StorageError, UsageError
from ..forks import watch
from ..interrupts import undisturbed
from ..measure import filesystem, pagecache
from ..safety import check_target
from .base import Buffer, Entry, ParallelSink, Residency, Sink
from .parallel import ParallelFile
from .sinks import FileSink, make_folders, open_sink, replace_file

ALIGNMENT = 4096
"""What O_DIRECT asks for at most: every block device that Linux supports has logical blocks of 512 to 4096 bytes."""

_OPEN_FILES = 128

_Sink = TypeVar("_Sink", FileSink, ParallelFile)


class LocalStorage:
    """Files below ``root``; keys are relative paths. Handles are kept per process and reopened after a fork."""

    OPTIONS: ClassVar[frozenset[str]] = frozenset()
    exclusive_create = True

    @classmethod
    def open(cls, url: str, *, direct: bool, options: Mapping[str, str]) -> LocalStorage:
        if url.startswith("file://"):
            parts = urlsplit(url)
            if parts.netloc not in ("", "localhost"):
                raise UsageError(
                    f"'{url}' names a host, and file:// is local",
                    remedy="write it like file:///mnt/data or /mnt/data",
                )
            url = unquote(parts.path)
        if "\0" in url:
            raise UsageError(f"'{url!r}' is no path: it has a byte of 0", remedy="check its %00")
        return cls(url, direct=direct)

    def __init__(self, root: str | Path, *, direct: bool = False) -> None:
        self.root = Path(root).expanduser().absolute()
        self.url = str(self.root)
        self.direct = direct
        self.alignment = ALIGNMENT if direct else 1
        self._reset()
        watch(self)

    def _reset(self) -> None:
        self._root_fd = -1
        self._lock = Lock()
        self._files: OrderedDict[str, list[int]] = OrderedDict()  # key -> [fd, readers]

    def after_fork(self) -> None:
        self._reset()  # the parent's descriptors are shared with it; their positions and lifetimes are its own

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "direct": self.direct}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["root"], direct=state["direct"])  # type: ignore[misc]

    def describe(self) -> dict[str, Any]:
        return {
            "scheme": "file",
            "url": self.url,
            "direct": self.direct,
            **filesystem.describe_path(self.root, write_probe=False),
        }

    def local_path(self, key: str) -> Path:
        return self.root / key

    # Reading

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        if once:
            fd = self._open(key)
            try:
                return self._fill(fd, key, offset, buffer)
            finally:
                os.close(fd)
        handle = self._acquire(key)
        try:
            return self._fill(handle[0], key, offset, buffer)
        finally:
            self._release(handle)

    def _fill(self, fd: int, key: str, offset: int, buffer: Buffer) -> int:
        want = len(buffer)
        try:
            done = os.preadv(fd, (buffer,), offset)
            # Direct IO ends unaligned only at the end of the file.
            while 0 < done < want and not (self.direct and done % ALIGNMENT):
                count = os.preadv(fd, (buffer[done:],), offset + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            raise self._failed("read", key, error) from error
        return done

    def _acquire(self, key: str) -> list[int]:
        with self._lock:
            handle = self._files.get(key)
            if handle is not None:
                self._files.move_to_end(key)
                handle[1] += 1
                return handle
        fd = self._open(key)
        with self._lock:
            handle = self._files.setdefault(key, [fd, 0])
            if handle[0] != fd:
                os.close(fd)  # another thread was faster
            handle[1] += 1
            while len(self._files) > _OPEN_FILES:
                idle = next((k for k, h in self._files.items() if h[1] == 0), None)
                if idle is None:
                    break
                os.close(self._files.pop(idle)[0])
            return handle

    def _release(self, handle: list[int]) -> None:
        with self._lock:
            handle[1] -= 1

    def _open(self, key: str) -> int:
        try:
            if self._root_fd < 0:
                with self._lock:
                    if self._root_fd < 0:
                        self._root_fd = os.open(
                            self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
                        )
            flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if self.direct else 0)
            return os.open(key, flags, dir_fd=self._root_fd)
        except OSError as error:
            if error.errno == errno.EINVAL and self.direct:
                raise StorageError(
                    f"{self.root} has no O_DIRECT", remedy="use --set reader.direct=false"
                ) from error
            raise self._failed("open", key, error) from error

    def list(self, prefix: str = "") -> Iterator[Entry]:
        top = self.root / prefix
        if not top.exists():
            return
        try:
            for folder, folders, files in os.walk(top, onerror=_raise):
                folders.sort()
                for name in sorted(files):
                    path = os.path.join(folder, name)
                    status = os.lstat(path)
                    if stat.S_ISREG(
                        status.st_mode
                    ):  # links are not followed, and no key names a pipe or a socket
                        yield Entry(os.path.relpath(path, self.root), status.st_size)
        except OSError as error:
            raise self._failed("list", prefix or ".", error) from error

    def size(self, key: str) -> int:
        try:
            return os.stat(self.root / key).st_size
        except OSError as error:
            raise self._failed("stat", key, error) from error

    def supports_direct(self, key: str) -> bool:
        """Whether O_DIRECT reads of this object work."""
        try:
            fd = os.open(self.root / key, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            os.preadv(fd, [memoryview(mmap.mmap(-1, ALIGNMENT))], 0)
            return True
        except OSError:
            return False
        finally:
            os.close(fd)

    def versions(self, prefix: str = "") -> dict[str, str]:
        """Time of last change (of contents or status) and size, by key."""
        found = {}
        for entry in self.list(prefix):
            try:
                status = os.lstat(self.root / entry.key)
            except OSError as error:
                raise self._failed("stat", entry.key, error) from error
            found[entry.key] = f"{status.st_mtime_ns}-{status.st_ctime_ns}-{status.st_size}"
        return found

    # Writing

    def check_target(self) -> None:
        check_target(self.root)

    def create(
        self, key: str, *, size_hint: int = 0, durable: bool = True
    ) -> AbstractContextManager[Sink]:
        return self._created(
            key, lambda path: open_sink(path, size_hint=size_hint, durable=durable)
        )

    def create_parallel(
        self, key: str, *, size: int, block_size: int, durable: bool = True
    ) -> AbstractContextManager[ParallelSink]:
        return self._created(
            key, lambda path: ParallelFile(path, size=size, block_size=block_size, durable=durable)
        )

    @contextmanager
    def _created(self, key: str, start: Callable[[Path], _Sink]) -> Iterator[_Sink]:
        path = self.root / key
        sink = None
        try:
            with undisturbed():  # a file that is there has someone to remove it
                make_folders(path.parent)
                sink = start(path)
            yield sink
            sink.commit()
        except OSError as error:
            if sink is not None:
                sink.abort()
            raise self._failed("create" if sink is None else "write", key, error) from error
        except BaseException:
            if sink is not None:
                sink.abort()
            raise

    def replace(self, key: str, data: bytes, *, only_new: bool = False) -> None:
        path = self.root / key
        try:
            make_folders(path.parent)
            replace_file(path, data, only_new=only_new)
        except OSError as error:
            raise self._failed("replace", key, error) from error

    def delete(self, key: str) -> None:
        try:
            os.unlink(self.root / key)
        except OSError as error:
            raise self._failed("delete", key, error) from error

    def flush(self) -> None:
        """Everything written so far becomes durable (syncfs(2))."""
        try:
            fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            finally:
                os.close(fd)
        except OSError as error:
            raise self._failed("flush", ".", error) from error

    # The page cache

    def evict(self, keys: Iterable[str]) -> None:
        pagecache.evict(self.root / key for key in keys)

    def residency(self, keys: Iterable[str]) -> Residency:
        return pagecache.residency(self.root / key for key in keys)

    def close(self) -> None:
        for fd, _ in self._files.values():
            os.close(fd)
        if self._root_fd >= 0:
            os.close(self._root_fd)
        self._reset()

    def __del__(self) -> None:
        """What nobody closed: a descriptor is a number, and nobody collects those."""
        with suppress(
            Exception
        ):  # at the end of the interpreter, or of a storage that was never whole
            self.close()

    def _failed(self, verb: str, key: str, error: OSError) -> StorageError:
        remedy = {
            errno.ENOSPC: "free some space, or choose another target",
            errno.EROFS: "the file system is read-only: choose another target",
            errno.EACCES: "check the permissions",
            errno.ENOENT: "check that the dataset is complete: iobench verify",
            errno.EIO: "the device reports an error: see the kernel log",
        }.get(error.errno or 0, "")
        kind = MissingObjectError if error.errno in (errno.ENOENT, errno.ENOTDIR) else StorageError
        return kind(f"cannot {verb} {self.root / key}: {error.strerror or error}", remedy=remedy)


def _raise(error: OSError) -> None:
    raise error

"""A directory on a local disk or a mounted file system.

Reads are ``preadv`` into the caller's memory, with O_DIRECT on demand.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, TypeVar
from urllib.parse import unquote, urlsplit

from ...base import filesystem, pagecache
from ...base.beneath import (
    READ_FLAGS,
    LeadsOutError,
    NoFileError,
    check_folder,
    file_status,
    open_file,
    open_folder,
)
from ...base.documents import walk
from ...base.errors import MissingObjectError, StorageError, UsageError
from ...base.interrupts import defer_interrupts
from ...base.processes import watch
from ...base.safety import check_target
from ..base import (
    Buffer,
    Entry,
    ParallelSink,
    Residency,
    Sink,
    StorageTraits,
    check_key,
    check_prefix,
)
from ..handles import Handles, with_room
from .sinks import LargeSink, ParallelFile, SmallSink, make_folders, open_sink, replace_file

ALIGNMENT = 4096
"""The strictest alignment that O_DIRECT requires: block devices under Linux have logical blocks of
512 to 4096 bytes."""

_MAX_KNOWN = 1 << 16
"""Keys, and folders, that a process remembers as checked: some 100 bytes each."""

_NO_NAMES = frozenset({"", ".", ".."})

_Sink = TypeVar("_Sink", SmallSink | LargeSink, ParallelFile)


class LocalStorage:
    """Files below ``root``; keys are relative paths.

    Handles are kept for each process and opened again after a fork. No key and no symbolic link
    leads out of the root, and only regular files are opened. Before a read, a folder and a file are
    checked at their first use and remembered, so that an open in the hot path costs one system
    call. Before an object is created, replaced or deleted, and before a folder is listed, the
    folder is checked again.
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset()
    exclusive_create = True

    @classmethod
    def open(cls, url: str, *, direct: bool, options: Mapping[str, str]) -> LocalStorage:
        if url.startswith("file://"):
            parts = urlsplit(url)
            if parts.netloc not in ("", "localhost"):
                raise UsageError(
                    f"'{url}' names a host, but file:// URLs are local",
                    remedy="write it like file:///mnt/data or /mnt/data",
                )
            url = unquote(parts.path)
        if "\0" in url:
            raise UsageError(
                f"{url!r} is not a path: it contains a NUL byte", remedy="remove %00 from it"
            )
        return cls(url, direct=direct)

    def __init__(self, root: str | Path, *, direct: bool = False) -> None:
        """Raises UsageError for ``~name`` where no user has that name."""
        try:
            self.root = Path(root).expanduser().absolute()
        except RuntimeError:  # pathlib found no home directory
            raise UsageError(
                f"'{root}' is in the home directory of a user that does not exist on this host",
                remedy=f"for a directory with that name write ./{root}",
            ) from None
        self.url = str(self.root)
        self.direct = direct
        self.alignment = ALIGNMENT if direct else 1
        self._flags = READ_FLAGS | (os.O_DIRECT if direct else 0)
        self._flags_of_known = self._flags | os.O_NOFOLLOW
        self._forget()
        self._reset()
        watch(self)

    def _reset(self) -> None:
        self._root_fd = -1
        self._lock = Lock()
        self._handles = Handles()

    def _forget(self) -> None:
        self._folders: set[str] = set()  # folders known to lie below the root
        self._files: set[str] = set()  # keys of regular files in them, reached by no symbolic link

    def after_fork(self) -> None:
        # The child must neither close the parent's descriptors nor share their reference counts.
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "direct": self.direct}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["root"], direct=state["direct"])  # type: ignore[misc]

    @property
    def traits(self) -> StorageTraits:
        return StorageTraits(direct=self.direct, syncs=True)

    def facts(self) -> dict[str, Any]:
        return {
            "scheme": "file",
            "url": self.url,
            "direct": self.direct,
            **filesystem.describe_path(self.root, write_probe=False),
        }

    def local_path(self, key: str) -> Path:
        """The file's path with all symbolic links resolved. Raises StorageError as a read does."""
        if key in self._files:
            return self.root / key
        return Path(self._status(key, "look at")[1])

    # What may be opened

    def _check(self, key: str, verb: str) -> bool:
        """Whether the key's folder exists. Raises StorageError where the key leads out."""
        folder = check_key(key).rpartition("/")[0]
        return not folder or self._check_folder(folder, verb, key)

    def _check_again(self, key: str, verb: str) -> None:
        """Check the key's folder once more before a write: it may be a symbolic link by now."""
        folder = check_key(key).rpartition("/")[0]
        self._folders.discard(folder)
        self._files.discard(key)
        if folder:
            self._check_folder(folder, verb, key)

    def _check_folder(self, folder: str, verb: str, key: str) -> bool:
        if folder in self._folders:
            return True
        try:
            there = with_room(lambda: check_folder(self.url, folder))
        except OSError as error:
            raise self.failed(verb, key, error) from error
        if there and len(self._folders) < _MAX_KNOWN:
            self._folders.add(folder)
        return there

    def _status(self, key: str, verb: str) -> tuple[os.stat_result, str]:
        """The status of a readable file, and its path with all symbolic links resolved."""
        self._check(key, verb)
        try:
            status, path = file_status(self.url, key)
        except OSError as error:
            raise self.failed(verb, key, error) from error
        if path == f"{self.url}/{key}":
            self._remember(key)
        return status, path

    def _remember(self, key: str) -> None:
        if len(self._files) < _MAX_KNOWN:
            self._files.add(key)

    # Reading

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        if once:
            fd = self._open(key)
            try:
                return self._fill(fd, key, offset, buffer)
            finally:
                os.close(fd)
        handle = self._handles.acquire(key, self._open)
        try:
            return self._fill(handle[0], key, offset, buffer)
        finally:
            self._handles.release(handle)

    def _fill(self, fd: int, key: str, offset: int, buffer: Buffer) -> int:
        want = len(buffer)
        try:
            done = os.preadv(fd, (buffer,), offset)
            # A direct read of unaligned length has reached the end of the file: do not go on.
            while 0 < done < want and not (self.direct and done % ALIGNMENT):
                count = os.preadv(fd, (buffer[done:],), offset + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            raise self.failed("read", key, error) from error
        return done

    def _open(self, key: str) -> int:
        """The fast path of nearly all opens. Every failure goes to ``_open_checked``."""
        if key in self._files:
            try:
                return os.open(key, self._flags_of_known, dir_fd=self._root_fd)
            except OSError:
                return self._open_checked(key, self._flags)
        folder, slash, name = key.rpartition("/")
        if (folder in self._folders or not slash) and name not in _NO_NAMES:
            try:
                fd = os.open(key, self._flags_of_known, dir_fd=self._root_fd)
            except (OSError, ValueError):
                return self._open_checked(key, self._flags)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                self._remember(key)
                return fd
            os.close(fd)
        return self._open_checked(key, self._flags)

    def _open_checked(self, key: str, flags: int) -> int:
        """Open a file that is not known yet, or that the fast path could not open."""
        self._check(key, "open")
        try:
            fd, link = with_room(lambda: open_file(self.url, self._root(), key, flags))
        except OSError as error:
            if error.errno == errno.EINVAL and flags & os.O_DIRECT:
                raise StorageError(
                    f"{self.root} does not support O_DIRECT",
                    remedy="use --set reader.direct=false",
                ) from error
            raise self.failed("open", key, error) from error
        if not link:
            self._remember(key)
        return fd

    def opening(self) -> tuple[int, int]:
        """The directory descriptor and the flags with which ``may_open`` allows to open keys.

        Raises StorageError.
        """
        try:
            return with_room(self._root), self._flags_of_known
        except OSError as error:
            raise self.failed("open", ".", error) from error

    def is_known(self, key: str) -> bool:
        """Whether this is a regular file that no symbolic link leads to."""
        return key in self._files

    def may_open(self, key: str) -> bool:
        """Whether a key may be opened by ``opening``. Then ``opened`` must look at what it is."""
        if key in self._files:
            return True
        folder, slash, name = key.rpartition("/")
        return (folder in self._folders or not slash) and name not in _NO_NAMES and "\0" not in key

    def opened(self, key: str, fd: int) -> int:
        """A descriptor of this key for reading: ``fd``, if it is a regular file's.

        Otherwise ``fd`` is closed. Raises StorageError.
        """
        if key not in self._files:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                return self._open_checked(key, self._flags)
            self._remember(key)
        return fd

    def open_file(self, key: str) -> int:
        """A new descriptor of this key for reading, which the caller closes.

        Raises StorageError.
        """
        return self._open(key)

    def open_and_close(self, key: str) -> None:
        os.close(self._open(key))

    def _root(self) -> int:
        if self._root_fd < 0:
            with self._lock:
                if self._root_fd < 0:
                    self._root_fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._root_fd

    def list(self, prefix: str = "") -> Iterator[Entry]:
        prefix = check_prefix(prefix)
        top = self.root / prefix
        if prefix:
            self._folders.discard(prefix)
            self._check_folder(prefix, "list", prefix)
        if not top.exists():
            return
        try:
            for folder, names in walk(top, failed=_raise):
                for name in names:
                    path = os.path.join(folder, name)
                    try:
                        status = os.lstat(path)
                    except FileNotFoundError:  # removed, or renamed, since it was found
                        continue
                    # Symbolic links are not followed, and no key names a pipe or a socket.
                    if stat.S_ISREG(status.st_mode):
                        yield Entry(os.path.relpath(path, self.root), status.st_size)
        except OSError as error:
            raise self.failed("list", error.filename or prefix or ".", error) from error

    def size(self, key: str) -> int:
        return self._status(key, "stat")[0].st_size

    def supports_direct(self, key: str) -> bool:
        """Whether O_DIRECT reads of this object work."""
        try:
            fd = self._open_checked(key, self._flags | os.O_DIRECT)
        except StorageError:
            return False
        try:
            os.preadv(fd, [memoryview(mmap.mmap(-1, ALIGNMENT))], 0)
            return True
        except OSError:
            return False
        finally:
            os.close(fd)

    def versions(self, prefix: str = "") -> dict[str, str]:
        """Key -> time of the last change (of contents and of status, ns) and size in bytes."""
        found = {}
        for entry in self.list(prefix):
            status = self._status(entry.key, "stat")[0]
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
        self._check_again(key, "create")
        path = self.root / key
        sink = None
        try:
            with defer_interrupts():  # a signal must not leave a file that nobody removes
                make_folders(path.parent)
                sink = start(path)
            yield sink
            sink.commit()
        except OSError as error:
            if sink is not None:
                sink.abort()
            raise self.failed("create" if sink is None else "write", key, error) from error
        except BaseException:
            if sink is not None:
                sink.abort()
            raise

    def replace(
        self,
        key: str,
        data: bytes,
        *,
        only_new: bool = False,
        allowed: Callable[[], None] = lambda: None,
    ) -> None:
        self._check_again(key, "replace")
        path = self.root / key
        try:
            make_folders(path.parent)
            allowed()
            replace_file(path, data, only_new=only_new)
        except OSError as error:
            raise self.failed("replace", key, error) from error

    def delete(self, key: str) -> None:
        folder, _, name = check_key(key).rpartition("/")
        self._files.discard(key)
        try:
            folder_fd = with_room(lambda: open_folder(self.url, folder))
            try:
                os.unlink(name, dir_fd=folder_fd)
            finally:
                os.close(folder_fd)
        except OSError as error:
            raise self.failed("delete", key, error) from error

    def flush(self) -> None:
        """Make everything written so far durable (syncfs(2))."""
        try:
            fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            finally:
                os.close(fd)
        except OSError as error:
            raise self.failed("flush", ".", error) from error

    # The page cache

    def evict(self, keys: Iterable[str]) -> None:
        pagecache.evict(self.local_path(key) for key in keys)

    def residency(self, keys: Iterable[str]) -> Residency:
        return pagecache.residency(self.local_path(key) for key in keys)

    def close(self) -> None:
        self._handles.close()
        if self._root_fd >= 0:
            os.close(self._root_fd)
        self._forget()
        self._reset()

    def __del__(self) -> None:
        """Close descriptors that nobody closed: Python does not collect them."""
        # While the interpreter ends, or for a half-made instance, anything may fail. Names of this
        # module may be None by then, so nothing but built-ins is used here.
        try:
            self.close()
        except Exception:
            pass

    def failed(self, verb: str, key: str, error: OSError) -> StorageError:
        """What to raise when ``verb`` failed for this key."""
        remedy = {
            errno.ENOSPC: "free some space, or choose another target",
            errno.EROFS: "the file system is read-only: choose another target",
            errno.EACCES: "check the permissions",
            errno.ENOENT: "check that the dataset is complete: iobench verify",
            errno.EIO: "the device reports an error: see the kernel log",
            errno.EMFILE: "allow this process more open files: ulimit -n",
            errno.ENFILE: "allow this host more open files: sysctl fs.file-max",
        }.get(error.errno or 0, "")
        if isinstance(error, LeadsOutError):
            remedy = "name the folder that holds the data itself, or replace the link by the data"
        missing = isinstance(error, NoFileError) or error.errno in (errno.ENOENT, errno.ENOTDIR)
        kind = MissingObjectError if missing else StorageError
        return kind(f"cannot {verb} {self.root / key}: {error.strerror or error}", remedy=remedy)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # the folder has been removed meanwhile
        raise error

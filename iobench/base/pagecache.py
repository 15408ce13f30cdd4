"""The page cache of this host, for each file: drop it, and measure how much of a file it holds.

Measuring never changes it. Sources: ``cachestat(2)`` (Linux 6.5), ``mincore(2)``,
``posix_fadvise(2)``.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .errors import StorageError
from .filesystem import mount_of

PAGE = mmap.PAGESIZE
_CACHESTAT = 451  # the system call's number, the same on every architecture
_UNSUPPORTED = (errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)
_WINDOW = 1 << 30  # bytes of a file per call of mincore: its result has 256 KiB
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # opening a FIFO must not wait
_libc = ctypes.CDLL(None, use_errno=True)


class Residency(NamedTuple):
    """How much of some files this host's page cache holds."""

    resident_bytes: int
    total_bytes: int
    how: str  # cachestat | mincore

    @property
    def ratio(self) -> float:
        return self.resident_bytes / self.total_bytes if self.total_bytes else 0.0


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Cachestat(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted")
    )


@contextmanager
def _opened(path: Path | str, what: str) -> Iterator[int]:
    """A descriptor of the file. Raises StorageError, also for what fails meanwhile."""
    try:
        fd = os.open(path, _FLAGS)
        try:
            yield fd
        finally:
            os.close(fd)
    except OSError as error:
        raise StorageError(f"cannot {what} {path}: {error.strerror}") from error


def evict(paths: Iterable[Path | str]) -> None:
    """Flush each file and drop its pages from this host's page cache.

    Caches of a hypervisor or a server stay, and so do pages that a process has mapped: measure
    ``residency`` afterwards. Raises StorageError.
    """
    for path in paths:
        with _opened(path, "evict") as fd:
            try:
                os.fsync(fd)  # DONTNEED does not drop dirty pages
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EINVAL):  # nothing to flush
                    raise
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def residency(paths: Iterable[Path | str]) -> Residency:
    """How much of these files the page cache holds. Raises StorageError.

    Memory use does not grow with the number of files.
    """
    resident = total = 0
    how = "cachestat"
    stacked: dict[int, bool] = {}  # by the file system's device number
    for path in paths:
        with _opened(path, "measure the page cache of") as fd:
            size, device = os.fstat(fd).st_size, os.fstat(fd).st_dev
            if device not in stacked:
                stacked[device] = _is_stacked(path)
            use_cachestat = how == "cachestat" and not stacked[device]
            found = _cachestat(fd) if use_cachestat else None
            if found is None:
                how = "mincore"
            pages = _mincore(fd, size) if found is None else int(found.cache)
        resident += min(pages * PAGE, size)  # the last page is rarely full
        total += size
    return Residency(resident, total, how)


def method() -> str | None:
    """What ``residency`` uses here, ``cachestat`` or ``mincore``; None: neither works."""
    try:
        return residency([__file__]).how
    except StorageError:
        return None


def unwritten_bytes(paths: Iterable[Path | str]) -> int | None:
    """Bytes of these files that the page cache holds and the storage does not have yet.

    After fsync it is 0: no page is dirty or being written. Whole pages are counted. None: it can't
    be seen here, without cachestat(2) or on a file system that is stacked or in memory. Raises
    StorageError.
    """
    pages = 0
    for path in paths:
        if _is_stacked(path) or _is_memory(path):
            return None
        with _opened(path, "measure the page cache of") as fd:
            found = _cachestat(fd)
        if found is None:
            return None
        pages += found.dirty + found.writeback
    return pages * PAGE


def _is_memory(path: Path | str) -> bool:
    """Whether the file is only in memory, where no page is ever counted as dirty."""
    mount = mount_of(path)
    return mount is not None and mount.fs_type in ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")


def _is_stacked(path: Path | str) -> bool:
    """Whether cachestat can't see the file's pages: those of an overlay belong to a lower file."""
    mount = mount_of(path)
    return mount is not None and mount.fs_type == "overlay"


def _cachestat(fd: int) -> _Cachestat | None:
    """Pages of the file in the cache: how many, and in which state.

    None if the kernel has no cachestat, or a sandbox forbids it.
    """
    whole, stat = _Range(0, 0), _Cachestat()
    if (
        _libc.syscall(
            ctypes.c_long(_CACHESTAT),
            ctypes.c_uint(fd),
            ctypes.byref(whole),
            ctypes.byref(stat),
            ctypes.c_uint(0),
        )
        == 0
    ):
        return stat
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return None
    raise OSError(code, os.strerror(code))


def _mincore(fd: int, size: int) -> int:
    """Pages of the file in the cache.

    The file is mapped and never touched, so that no page is faulted in. Raises OSError.
    """
    status = os.fstat(fd)
    # For a file of another user mincore answers "all resident", to prevent side channels. That
    # would be taken for a warm cache.
    if os.geteuid() not in (0, status.st_uid) and not os.access(f"/proc/self/fd/{fd}", os.W_OK):
        raise OSError(
            errno.EPERM,
            "the kernel reports it only to the file's owner and to users who may write it",
        )
    pages = 0
    for offset in range(0, size, _WINDOW):
        length = min(_WINDOW, size - offset)
        vector = np.zeros((length + PAGE - 1) // PAGE, dtype=np.uint8)
        try:
            view = mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ, offset=offset)
        except ValueError:  # Python looks at the file's size, too
            raise OSError(errno.ESTALE, "it became shorter while it was measured") from None
        with view:
            address = np.frombuffer(view, dtype=np.uint8)
            code = _libc.mincore(
                ctypes.c_void_p(address.ctypes.data),
                ctypes.c_size_t(length),
                ctypes.c_void_p(vector.ctypes.data),
            )
            failed = ctypes.get_errno()
            del address  # an exported view cannot be closed
        if code != 0:
            raise OSError(failed, os.strerror(failed))
        pages += int(np.count_nonzero(vector & 1))
    return pages

"""Memory for a benchmark to read into: aligned, on huge pages where possible, and prefaulted.

The first access to a page costs more than the read into it, and direct IO into 4 KiB pages has half
the speed of huge pages. So buffers are allocated once, touched before any clock starts, and reused.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import memory
from .errors import NoMemoryError
from .units import format_bytes

Buffer = memoryview
"""Bytes in memory: always one-dimensional, contiguous, of format 'B'."""

Memory = npt.NDArray[np.uint8]

HUGE = 2 << 20  # bytes of a huge page on x86-64
_LARGE = 64 << 20
"""Bytes. From this size on the host's free memory is checked, which takes some microseconds."""

_SHMEM_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


class Region(NamedTuple):
    """A block of memory.

    ``array``: uint8, page-aligned (private memory: aligned to 2 MiB). ``how``: which pages it got.
    ``fd``: the descriptor of its file, or -1.
    """

    array: Memory
    how: str
    fd: int


def private(nbytes: int, *, prefault: bool = True) -> Region:
    """Zeroed memory of this process, on transparent huge pages if the kernel provides them.

    Raises NoMemoryError if ``nbytes`` are not available.
    """
    if prefault:
        _require(nbytes)
    try:  # HUGE more bytes, for the alignment
        area = mmap.mmap(-1, nbytes + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError):
        raise _refused(nbytes) from None
    how = "4 KiB pages"
    with contextlib.suppress(OSError, AttributeError):
        area.madvise(mmap.MADV_HUGEPAGE)
        how = "transparent huge pages"
    whole = np.frombuffer(area, dtype=np.uint8)
    start = -whole.ctypes.data % HUGE
    array = whole[start : start + nbytes]
    if prefault:
        array[:: mmap.PAGESIZE] = 0
    return Region(array, how, -1)


def shared(nbytes: int, *, prefault: bool = True) -> Region:
    """Memory to share with child processes, on the largest pages that this host allows.

    Tried in this order: a detached tmpfs mounted with ``huge=always`` (needs CAP_SYS_ADMIN; its
    mount point is never visible), reserved huge pages, transparent huge pages for shared memory if
    the administrator has enabled them, 4 KiB pages. The memory has no name in any file system, so
    nothing is left behind, even after kill -9. Raises NoMemoryError if ``nbytes`` are not
    available.
    """
    _require(nbytes)
    for make, how in (
        (_tmpfs_huge, "huge pages (private tmpfs)"),
        (_hugetlb, "huge pages (reserved)"),
    ):
        try:
            return _map_shared(make(nbytes), nbytes, how, prefault)
        except OSError:
            continue
    region = _map_shared(os.memfd_create("iobench"), nbytes, "4 KiB pages", prefault=False)
    if _shmem_advice() and _madvise_huge(region.array):
        region = region._replace(how="transparent huge pages (shared)")
    if prefault:
        region.array[:: mmap.PAGESIZE] = 0
    return region


def available() -> int:
    """Bytes of memory that this process may still take; 2**62 where the kernel does not say."""
    have = memory.available_bytes()
    return 1 << 62 if have is None else have


def _require(nbytes: int) -> None:
    if nbytes >= _LARGE and nbytes > available():
        raise _refused(nbytes)


def _refused(nbytes: int) -> NoMemoryError:
    return NoMemoryError(
        f"{format_bytes(nbytes)} of memory are needed, but only {format_bytes(available())} are "
        "available",
        remedy="lower batch_size, loader.workers or loader.prefetch_factor, or set reader.crop",
    )


def attach(fd: int, nbytes: int) -> Memory:
    """The array of a shared region, in a process that received its ``fd`` (not by fork)."""
    region = _map_shared(os.dup(fd), nbytes, "", prefault=False)
    os.close(region.fd)  # the mapping keeps its own descriptor
    return region.array


def _map_shared(fd: int, nbytes: int, how: str, prefault: bool) -> Region:
    try:
        if os.fstat(fd).st_size == 0:
            os.ftruncate(fd, nbytes)
        # No offset into the mapping: it must mean the same bytes in every process. The kernel
        # itself aligns a mapping of huge pages.
        array = np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size), dtype=np.uint8)[:nbytes]
        if prefault:
            array[:: mmap.PAGESIZE] = 0
        return Region(array, how, fd)
    except (OSError, ValueError) as error:
        os.close(fd)
        raise OSError(str(error)) from error


def _madvise_huge(array: Memory) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    length = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return bool(
        libc.madvise(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(length), ctypes.c_int(14))
        == 0
    )


def _shmem_advice() -> bool:
    try:
        text = _SHMEM_ENABLED.read_text()
    except OSError:
        return False
    return any(f"[{mode}]" in text for mode in ("always", "within_size", "advise", "force"))


def _hugetlb(nbytes: int) -> int:
    fd = os.memfd_create("iobench", os.MFD_CLOEXEC | getattr(os, "MFD_HUGETLB", 4))
    try:
        os.ftruncate(fd, -(-nbytes // HUGE) * HUGE)
        # The first access beyond the reserved pages would raise SIGBUS: reserve all of them now.
        os.posix_fallocate(fd, 0, -(-nbytes // HUGE) * HUGE)
    except OSError:
        os.close(fd)
        raise
    return fd


def _tmpfs_huge(nbytes: int) -> int:
    """A file without a name, on a tmpfs that is mounted nowhere.

    fsopen(2), fsmount(2); Linux 5.2 and newer. Raises OSError.
    """
    fsopen, fsconfig, fsmount = 430, 431, 432
    set_string, create = 1, 6
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: Any) -> int:
        result = libc.syscall(ctypes.c_long(number), *arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(result)

    zero = ctypes.c_int(0)
    context = call(fsopen, ctypes.c_char_p(b"tmpfs"), ctypes.c_int(1))
    try:
        for key, value in ((b"huge", b"always"), (b"size", str(nbytes + HUGE).encode())):
            call(
                fsconfig,
                ctypes.c_int(context),
                ctypes.c_int(set_string),
                ctypes.c_char_p(key),
                ctypes.c_char_p(value),
                zero,
            )
        call(fsconfig, ctypes.c_int(context), ctypes.c_int(create), None, None, zero)
        mount = call(fsmount, ctypes.c_int(context), ctypes.c_int(1), zero)
    finally:
        os.close(context)
    try:
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600, dir_fd=mount)
    finally:
        os.close(mount)
    os.ftruncate(fd, -(-nbytes // HUGE) * HUGE)
    return fd


class Pool:
    """Scratch memory of which several pieces are in use at the same time.

    It is kept and only grows, since page faults of new memory cost more than the read into it.
    """

    def __init__(self) -> None:
        self._free: list[Memory] = []

    def take(self, nbytes: int) -> Memory:
        """Return at least ``nbytes``, which are the caller's until ``give``.

        Raises NoMemoryError.
        """
        for position, piece in enumerate(self._free):
            if len(piece) >= nbytes:
                return self._free.pop(position)
        if self._free:
            self._free.pop()  # it is too small: the new piece replaces it
        return private(max(nbytes + nbytes // 4, 1 << 20)).array

    def give(self, memory: Memory) -> None:
        self._free.append(memory)

    def reserve(self, pieces: int, nbytes: int) -> list[Memory]:
        """Allocate and touch memory before the first use; return what was allocated."""
        made = [private(max(nbytes, 1 << 20)).array for _ in range(pieces - len(self._free))]
        self._free += made
        return made

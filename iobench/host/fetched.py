"""Bytes that processes fetched from storage, as the kernel counts them for each process.

``read_bytes`` of ``/proc/PID/io`` is counted where the block layer receives a request, so reads
that the page cache serves are not in it. Sources: proc(5); Linux ``block/blk-core.c`` (submit_bio)
and ``kernel/exit.c``: when a process waits for a child that has ended, the kernel adds the child's
counters to its own. Some file systems do not count there, or also count what their own cache
serves, so ``probe`` tries it.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from ..base import pagecache
from ..base.cgroup import read_text
from ..base.errors import StorageError
from ..base.units import format_bytes

_TRIES, _PAUSE_S = 20, 0.01
"""Attempts to read the counters of a process and its descendants while none of them ends."""

_PROBE_FILES = 8
_PROBE_BYTES = 1 << 20  # of each file
_PROBE_CHUNK = 128 << 10  # read in order, so that the kernel reads ahead as it does for a reader
_PROBE_TRIES = 5  # another process may read the same files at that moment


def fetched_by_family() -> int | None:
    """Bytes fetched so far by this process and its descendants, ended ones included.

    The difference of two calls is what they fetched in between: an ended child is counted by itself
    until somebody waits for it, and then in its parent. The count of a process that outlived its
    parent is lost, since the system's first process waits for it. None if the kernel does not count
    (no ``/proc/PID/io``), if processes start and end too fast, or if nobody waits for an ended
    child: then only root may read its count.
    """
    for _ in range(_TRIES):
        # A parent is read before its children. A child that is waited for in between is missing
        # then, but never counted twice.
        try:
            children = psutil.Process().children(recursive=True)
        except (OSError, psutil.Error):  # for example, /proc hides other users' processes
            return None
        family = [os.getpid(), *(child.pid for child in children)]
        counts = [_read_bytes(Path(f"/proc/{pid}/io")) for pid in family]
        if counts[0] is None:
            return None
        if None not in counts:
            return sum(count for count in counts if count is not None)
        multiprocessing.active_children()  # waits for ended children
        time.sleep(_PAUSE_S)
    return None


def _read_bytes(path: Path) -> int | None:
    for line in (read_text(path) or "").splitlines():
        name, _, value = line.partition(": ")
        if name == "read_bytes" and value.isdigit():
            return int(value)
    return None


def probe(paths: Sequence[Path], *, direct: bool = False) -> str:
    """Why the counter does not work for these files; '' if it does. Never raises.

    The first MiB of some of the files is evicted and read: the counter must grow by as much. Then
    it is read again from the page cache: the counter must not grow. ``direct`` reads with O_DIRECT,
    without the second read. Afterwards the page cache holds nothing of the files but what was read.
    """
    why = "there is no file to test the kernel's counter with"
    for attempt in range(_PROBE_TRIES):
        chosen = _spread(paths, attempt)
        try:
            read, counted = _read_counted(chosen, evict=True, direct=direct)
            again = 0 if direct else _read_counted(chosen)[1]
        except StorageError as error:
            return str(error)
        except OSError as error:
            return f"a read of the dataset's files failed: {error.strerror}"
        if counted is None or again is None:
            return "this kernel has no counter of fetched bytes (/proc/PID/io)"
        if not read:
            continue
        if counted >= read and 2 * again < read:
            return ""
        why = (
            "the kernel's count of fetched bytes does not follow this file system's reads: it "
            f"counted {format_bytes(counted)} of {format_bytes(read)} that had just been evicted, "
            f"and {format_bytes(again)} when the same bytes were read again"
        )
    return why


def _spread(paths: Sequence[Path], attempt: int) -> list[Path]:
    """Files from the whole list, different ones at each attempt."""
    step = max(1, len(paths) // _PROBE_FILES)
    return list(paths[attempt % step :: step][:_PROBE_FILES])


def _read_counted(
    paths: Sequence[Path], *, evict: bool = False, direct: bool = False
) -> tuple[int, int | None]:
    """(bytes read from the beginnings of files, bytes that this thread fetched for them)."""
    counter = Path("/proc/thread-self/io")
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_DIRECT if direct else 0)
    before, read = _read_bytes(counter), 0
    with mmap.mmap(-1, _PROBE_CHUNK) as buffer:  # page-aligned, as O_DIRECT requires
        for path in paths:
            if evict:
                pagecache.evict([path])
            fd = os.open(path, flags)
            try:
                for offset in range(0, _PROBE_BYTES, _PROBE_CHUNK):
                    count = os.preadv(fd, [buffer], offset)
                    read += count
                    if count < _PROBE_CHUNK:
                        break
            finally:
                os.close(fd)
    after = _read_bytes(counter)
    return read, None if before is None or after is None else after - before

"""What the kernel counts of this process in ``/proc``, and the files that it opens to read.

Looking a file of ``/proc`` up costs ten times as much as reading it, so each is opened once.
Sources: proc(5) for ``io`` and ``smaps_rollup``, and the kernel's
Documentation/scheduler/sched-stats.rst for ``schedstat``.

Opened files are heard by one audit hook for all listeners (PEP 578). The hook runs inside of each
open of the user's loader, so it only keeps the names that it has not passed on before. What they
are is found out later, for all names of a batch. Python can't remove a hook, and opens inside of
libraries in C, Rust or Go do not pass through it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

_T = TypeVar("_T")


class IoBytes(NamedTuple):
    """``/proc/self/io``: bytes that read calls returned, and bytes that devices delivered."""

    calls: int
    device: int


class Kept:
    """A file of ``/proc`` that stays open. Use it only in the process that made it."""

    __slots__ = ("file", "identity", "path")

    def __init__(self, path: str) -> None:
        self.path, self.file = path, -1
        self.identity = (0, 0)

    def read(self, parse: Callable[[bytes], _T]) -> _T | None:
        """The file's first 512 bytes, parsed now; None if it can't be read.

        ``parse`` raises ValueError or IndexError for what is no such file: the user's code may have
        closed ours, and opened another one under its number.
        """
        if self.file >= 0:
            with suppress(OSError, ValueError, IndexError):
                return parse(os.pread(self.file, 512, 0))
        return self.reopened(parse)

    def reopened(self, parse: Callable[[bytes], _T]) -> _T | None:
        """The same by a new look-up, which belongs to the thread that calls."""
        self.close()
        try:
            self.file = os.open(self.path, os.O_RDONLY)
            about = os.fstat(self.file)
            self.identity = (about.st_dev, about.st_ino)
            return parse(os.pread(self.file, 512, 0))
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """Close the file, if it is still the one that was opened."""
        if self.file >= 0:
            with suppress(OSError):
                about = os.fstat(self.file)
                if (about.st_dev, about.st_ino) == self.identity:
                    os.close(self.file)
            self.file = -1


class KernelCounters:
    """The counters of the process that makes this object."""

    def __init__(self) -> None:
        self._io = Kept("/proc/self/io")
        self._schedule = Kept("/proc/thread-self/schedstat")
        self._thread = 0

    def io_bytes(self) -> IoBytes | None:
        """The counts of this process since it began; None if the kernel does not tell them."""
        return self._io.read(_io_bytes)

    def queued_ns(self) -> int:
        """How long this thread has waited for a core so far, in nanoseconds; 0 if not known."""
        thread = threading.get_ident()
        if thread == self._thread:
            return self._schedule.read(_queued_ns) or 0
        self._thread = thread
        return self._schedule.reopened(_queued_ns) or 0

    def close(self) -> None:
        """Close the files. A later look opens them again."""
        self._io.close()
        self._schedule.close()


def _io_bytes(raw: bytes) -> IoBytes:
    # rchar, wchar, syscr, syscw, read_bytes, ... with a number after each
    words = raw.split(None, 10)
    if words[0] != b"rchar:" or words[8] != b"read_bytes:":
        raise ValueError(raw)
    return IoBytes(int(words[1]), int(words[9]))


def _queued_ns(raw: bytes) -> int:
    return int(raw.split(None, 2)[1])


def private_bytes() -> int | None:
    """Bytes of memory that this process has written and shares with none; None if unknown."""
    try:
        with open("/proc/self/smaps_rollup", "rb", buffering=0) as file:
            raw = file.read(4096)
    except OSError:
        return None
    for line in raw.splitlines():
        if line.startswith(b"Private_Dirty:"):
            return int(line.split()[1]) * 1024
    return None


MAX_WAITING = 4096
"""Opens that wait to be told, after which the hook tells them itself."""


class Listener(Protocol):
    """Who wants to know which files are opened."""

    def opened(self, names: set[str]) -> bool:
        """Files were opened to read. Return whether opens of these need not be told again."""


_waiting: deque[tuple[Any, ...]] = deque()
_known: set[str] = set()  # names that no listener needs to hear again
_listeners: list[Listener] = []
_installed = False


def listen(listener: Listener) -> None:
    """Tell the listener which files this process opens from now on."""
    global _installed
    tell()
    _known.clear()
    _listeners.append(listener)
    if not _installed:
        sys.addaudithook(_heard)
        os.register_at_fork(after_in_child=_forget)
        _installed = True


def leave(listener: Listener) -> None:
    """Tell the listener what was opened until now, and nothing more."""
    tell()
    if listener in _listeners:
        _listeners.remove(listener)


def tell() -> None:
    """Tell the listeners which files were opened since the last call."""
    names: set[str] = set()
    while _waiting:
        try:
            path, _, flags = _waiting.popleft()
        except IndexError:  # another thread was faster
            break
        if isinstance(path, int) or not isinstance(flags, int) or flags & os.O_ACCMODE:
            continue  # by a file descriptor, or not to read
        if path.__class__ is str:
            names.add(path)
            continue
        with suppress(Exception):  # a path object of the user's, whose open has failed as well
            names.add(os.fsdecode(path))
    if names:
        heard = [each.opened(names) for each in _listeners]  # each of them is told
        if all(heard):
            _known.update(names)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _listeners:
        try:
            if arguments[0] in _known:
                return
        except Exception:  # a path object that has no hash
            pass
        _waiting.append(arguments)
        if len(_waiting) >= MAX_WAITING:
            tell()


def _forget() -> None:
    """A new process opens files of its own, which nobody listens to yet."""
    _listeners.clear()
    _waiting.clear()
    _known.clear()

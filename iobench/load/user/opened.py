"""The files that this process opens to read, heard by one audit hook for all listeners (PEP 578).

The hook runs inside of each open of the user's loader, so it only keeps the names that it has not
passed on before. What they are is found out later, for all names of a batch. Python can't remove a
hook, and opens inside of libraries in C, Rust or Go do not pass through it.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import Any, Protocol

MAX_WAITING = 4096
"""Opens that wait to be told, after which the hook tells them itself."""


class Listener(Protocol):
    """Who wants to know which files are opened."""

    def opened(self, name: str) -> bool:
        """A file was opened to read. Return whether opens of this name need not be told again."""


_waiting: deque[tuple[Any, ...]] = deque()
_known: set[object] = set()  # paths, as they were given, that no listener needs to hear again
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
    while _waiting:
        try:
            path, _, flags = _waiting.popleft()
        except IndexError:  # another thread was faster
            return
        if isinstance(path, int) or not isinstance(flags, int) or flags & os.O_ACCMODE:
            continue  # by a file descriptor, or not to read
        try:
            name = os.fsdecode(path)
        except Exception:  # a path object of the user's, whose open has failed as well
            continue
        heard_by = sum(each.opened(name) for each in _listeners)
        if heard_by == len(_listeners) and type(path) in (str, bytes):
            _known.add(path)


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

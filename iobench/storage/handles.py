"""A bounded cache of open file descriptors, by key.

Idle ones are closed when the process has no free descriptor.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import TypeVar
from weakref import WeakValueDictionary

MAX_HANDLES = 128
_SHARE = 4
"""Kept handles may take 1/_SHARE of the descriptors that the process may have."""

_AT_LIMIT = frozenset({errno.EMFILE, errno.ENFILE})
_ATTEMPTS = 20
_PAUSE_S = 0.01
"""Pause between attempts at the limit: reads in other threads end and close their descriptors."""

_living: WeakValueDictionary[int, Handles] = WeakValueDictionary()

T = TypeVar("T")

Handle = list[int]
"""[descriptor, number of readers]."""


class Handles:
    """The open handles of one storage in one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._files: OrderedDict[str, Handle] = OrderedDict()
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        unlimited = soft == resource.RLIM_INFINITY
        self._limit = MAX_HANDLES if unlimited else max(1, min(MAX_HANDLES, soft // _SHARE))
        _living[id(self)] = self

    def acquire(self, key: str, opener: Callable[[str], int]) -> Handle:
        """A handle that stays open until it is released. ``opener`` opens a key's descriptor."""
        with self._lock:
            handle = self._files.get(key)
            if handle is not None:
                self._files.move_to_end(key)
                handle[1] += 1
                return handle
        fd = opener(key)
        with self._lock:
            handle = self._files.setdefault(key, [fd, 0])
            if handle[0] != fd:
                os.close(fd)  # another thread has opened the same key meanwhile
            handle[1] += 1
            while len(self._files) > self._limit:
                idle = next((k for k, h in self._files.items() if h[1] == 0), None)
                if idle is None:
                    break
                os.close(self._files.pop(idle)[0])
            return handle

    def release(self, handle: Handle) -> None:
        with self._lock:
            handle[1] -= 1

    def close_idle(self) -> int:
        """Close the handles without readers; their number."""
        with self._lock:
            idle = [key for key, handle in self._files.items() if handle[1] == 0]
            for key in idle:
                os.close(self._files.pop(key)[0])
            return len(idle)

    def close(self) -> None:
        for fd, _ in self._files.values():
            os.close(fd)
        self._files.clear()


def with_room(opener: Callable[[], T]) -> T:
    """``opener()``. Where no descriptor is free, idle handles of this process are closed first.

    Raises OSError, with EMFILE or ENFILE if no descriptor becomes free.
    """
    for _ in range(_ATTEMPTS):
        try:
            return opener()
        except OSError as error:
            if error.errno not in _AT_LIMIT:
                raise
        living = [handles for ref in _living.valuerefs() if (handles := ref()) is not None]
        if not sum(handles.close_idle() for handles in living):
            time.sleep(_PAUSE_S)
    return opener()

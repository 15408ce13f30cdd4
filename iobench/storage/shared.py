"""A number in memory that forked processes share, whichever of them ends at any instant."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import multiprocessing
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from ..base.processes import watch

_AGAIN_S = 1e-4


class SharedNumber:
    """``value`` is 0 at first; change it inside ``alone()``.

    A loader's worker may end at any instant, with threads of its own in the middle of a change. A
    semaphore would then stay taken for ever, and all other processes would wait for it. The lock
    here is a record lock of the kernel (fcntl(2), F_SETLKW), which ends with its process; a lock of
    threads is below it, since all threads of a process own the same record lock.
    """

    def __init__(self, kind: type[ctypes.c_double] | type[ctypes.c_int64]) -> None:
        self._number = multiprocessing.get_context("fork").RawValue(kind, 0)
        self._file = os.memfd_create("iobench-shared", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self.after_fork()
        watch(self)

    def after_fork(self) -> None:
        """In a forked process: a thread that held the lock does not exist there."""
        self._threads = threading.Lock()

    @property
    def value(self) -> float:
        number: float = self._number.value
        return number

    @value.setter
    def value(self, number: float) -> None:
        self._number.value = number

    def _lock(self) -> None:
        """Wait for the record lock.

        The kernel takes it for a deadlock if two processes wait for each other, although the lock
        of each is held by another of its threads, which goes on. Nobody holds two of these locks.
        """
        while True:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno != errno.EDEADLK:
                    raise
                time.sleep(_AGAIN_S)
            else:
                return

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else changes the number meanwhile."""
        with self._threads:
            self._lock()
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

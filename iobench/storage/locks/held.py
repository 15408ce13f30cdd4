"""Is the place still this process's? Asked before each step that removes something.

A process may be suspended at any moment: its virtual machine is paused, its container frozen, its
laptop sleeps. Meanwhile another process may have found no sign of life, broken the lock, and begun
to work. The clock since the boot, which counts suspensions (CLOCK_BOOTTIME), shows without a
request that time has passed.

So an answer of the storage that the lock is held counts for FRESH_S from the moment of the question
on. Whoever breaks a lock waits for longer than that before it does anything
(``object_lock.SETTLE_S``). What remains is a request that was on its way for all that time.
"""

from __future__ import annotations

import os
import time
from threading import Lock
from typing import Protocol

from ...base.errors import StorageError, TargetLostError
from ..base import Storage, innermost, local_root
from .objects import LOCK, look

FRESH_S = 3.0
"""How long an answer counts. A heartbeat that was missed leaves a suspended process 5 s at least
before its lock can be broken (``object_lock.WATCH_S`` less ``object_lease.HEARTBEAT_S``)."""

_TRIES = 5
"""How often is asked where answers are older than that when they come."""


class Confirmed(Protocol):
    def check(self) -> None: ...

    def confirm(self) -> None: ...


class Held:
    """Called before each deletion: raises TargetLostError if the place is another process's now.

    It asks the storage only where the last answer is older than FRESH_S. Raises StorageError, too.
    For many threads of one process; a forked worker makes its own.
    """

    def __init__(self, lease: Confirmed) -> None:
        self._lease = lease
        self._lock = Lock()
        self._asked_s = -FRESH_S
        self._lost: TargetLostError | None = None

    def __call__(self) -> None:
        with self._lock:
            if self._lost is not None:
                raise self._lost
            try:
                if self._confirmed():
                    return
            except TargetLostError as lost:
                self._lost = lost
                raise
        raise StorageError(
            f"stopped, because the storage takes longer than {FRESH_S:g} s to say who holds the "
            "lock",
            remedy="check the storage and the network, and start again",
        )

    def _confirmed(self) -> bool:
        """Whether an answer of the last FRESH_S says that the place is held."""
        self._lease.check()
        for _ in range(_TRIES):
            now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
            if now_s - self._asked_s < FRESH_S:
                return True
            self._lease.confirm()
            self._asked_s = now_s
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self._asked_s < FRESH_S


class Witness:
    """For a process that works in a place which another host's process holds: is it that one still?

    ``marker``: the key of the marker, which is locked where keys are local files.
    """

    def __init__(self, storage: Storage, marker: str) -> None:
        """Raises StorageError."""
        self._storage, self._marker = innermost(storage), marker
        self._seen = self._look()

    def _look(self) -> tuple[object, ...]:
        there, holder = look(self._storage, LOCK)
        root = local_root(self._storage)
        if there or root is None:
            return (there, holder.token if holder is not None else "")
        try:
            found = os.stat(root / self._marker)
        except OSError:
            return ()
        return found.st_dev, found.st_ino

    def check(self) -> None:
        """Nothing is known without looking."""

    def confirm(self) -> None:
        if self._look() != self._seen:
            raise TargetLostError(
                f"stopped, because another process works at {self._storage.url} now",
                remedy="find out which one, and start again",
            )

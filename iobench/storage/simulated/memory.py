"""Objects in memory, and the base of storages that wrap another (``throttled``, ``faulty``)."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import multiprocessing
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import numpy as np

from ...base.errors import MissingObjectError, StorageError, UsageError
from ..base import (
    Buffer,
    Cached,
    Entry,
    Guarded,
    OpensFiles,
    Residency,
    Retries,
    Retrying,
    Sink,
    Storage,
    StorageTraits,
    Unfinished,
    check_key,
    check_prefix,
)


class _ReadOnly:
    """The methods of a storage that can't be written."""

    alignment = 1
    scheme = ""
    url = ""

    traits = StorageTraits()

    def facts(self) -> dict[str, Any]:
        return {"scheme": self.scheme, "url": self.url}

    def create(
        self, key: str, *, size_hint: int = 0, durable: bool = True
    ) -> AbstractContextManager[Sink]:
        check_key(key)
        raise StorageError(f"cannot create {key}: {self.scheme} storage is read-only")

    def flush(self) -> None:
        return

    def delete(self, key: str) -> None:
        check_key(key)
        raise StorageError(f"cannot delete {key}: {self.scheme} storage is read-only")

    def close(self) -> None:
        return


class MemoryStorage(_ReadOnly):
    """Objects in this process's memory, which forked workers share."""

    scheme = "memory"
    OPTIONS: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        url: str = "memory://",
        *,
        direct: bool = False,
        objects: Mapping[str, Buffer] | None = None,
    ) -> None:
        self.url = url
        self._objects = {check_key(key): data for key, data in (objects or {}).items()}

    def list(self, prefix: str = "") -> Iterator[Entry]:
        folder = check_prefix(prefix)
        return (
            Entry(key, len(data))
            for key, data in self._objects.items()
            if not folder or key.startswith(f"{folder}/")
        )

    def size(self, key: str) -> int:
        return len(self._object(key))

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        source = self._object(key)[offset : offset + len(buffer)]
        # numpy releases the GIL while it copies; a memoryview assignment does not.
        np.copyto(
            np.frombuffer(buffer, dtype=np.uint8)[: len(source)],
            np.frombuffer(source, dtype=np.uint8),
        )
        return len(source)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "_objects": {key: bytes(data) for key, data in self._objects.items()},
        }

    def _object(self, key: str) -> Buffer:
        try:
            return self._objects[key]
        except KeyError:
            check_key(key)
            raise MissingObjectError(f"cannot read {key}: it is not in memory") from None


class Wrapper:
    """Forwards everything to ``inner``; subclasses change how reads and writes behave."""

    scheme = ""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.url = f"{self.scheme}+{inner.url}"
        self.alignment = inner.alignment

    def __getstate__(self) -> dict[str, Any]:
        raise UsageError(
            f"{self.scheme} storage shares its state by fork, and can't be sent to a process "
            "that was not forked",
            remedy="use --set loader.start_method=fork",
        )

    @property
    def traits(self) -> StorageTraits:
        return self.inner.traits

    def facts(self) -> dict[str, Any]:
        return {**self.inner.facts(), "scheme": self.scheme, "url": self.url}

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return self.inner.list(prefix)

    def size(self, key: str) -> int:
        return self.inner.size(key)

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        return self.inner.read_into(key, offset, buffer, once=once)

    def open_and_close(self, key: str) -> None:
        if not isinstance(self.inner, OpensFiles):
            raise StorageError(f"{self.inner.url} has no opens")
        self.inner.open_and_close(key)

    def create(
        self, key: str, *, size_hint: int = 0, durable: bool = True
    ) -> AbstractContextManager[Sink]:
        return self.inner.create(key, size_hint=size_hint, durable=durable)

    def flush(self) -> None:
        self.inner.flush()

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def close(self) -> None:
        self.inner.close()

    def check_target(self) -> None:
        if isinstance(self.inner, Guarded):
            self.inner.check_target()

    def retried(self) -> Retries:
        return self.inner.retried() if isinstance(self.inner, Retrying) else Retries(0, 0)

    def discard_unfinished(
        self,
        owned: Callable[[str], bool],
        *,
        dry_run: bool = False,
        allowed: Callable[[], None] = lambda: None,
    ) -> tuple[str, ...]:
        return (
            self.inner.discard_unfinished(owned, dry_run=dry_run, allowed=allowed)
            if isinstance(self.inner, Unfinished)
            else ()
        )

    def evict(self, keys: Iterable[str]) -> None:
        if isinstance(self.inner, Cached):
            self.inner.evict(keys)

    def residency(self, keys: Iterable[str]) -> Residency:
        if not isinstance(self.inner, Cached):
            raise StorageError(f"{self.inner.url} has no page cache to measure")
        return self.inner.residency(keys)


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
        self._threads = threading.Lock()
        renew = weakref.WeakMethod(self._renew)
        os.register_at_fork(after_in_child=lambda: (method := renew()) and method())

    def _renew(self) -> None:
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

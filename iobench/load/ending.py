"""How what a loader has begun ends: with the interpreter, or by a process that dies.

A script may end in the middle of an epoch. Its iterators go last, when the modules whose names they
use are empty already, and workers, threads and requests would be left to chance. So iterators that
are in use when the interpreter ends are closed while everything is still there.

A process that reads through memory maps may die (mmap(2)). The kernel sends SIGBUS for an access to
a page beyond the end of the mapped file, which includes a file that was truncated after it was
mapped. It also sends SIGBUS if the device cannot read the page.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

from ..base.errors import BusError, StorageError, WorkerError
from ..base.units import format_count
from .null import AnyReader
from .reader import BatchReader

T = TypeVar("T")

_open: dict[int, tuple[int, weakref.ref[Generator[Any, None, None]]]] = {}


def closed_at_exit(
    make: Callable[[Any], Generator[T, None, None]],
) -> Callable[[Any], Generator[T, None, None]]:
    """Decorate a method that is a generator, so that it is closed before the interpreter ends."""

    def begin(self: Any) -> Generator[T, None, None]:
        generator = make(self)
        key = id(generator)
        _open[key] = (os.getpid(), weakref.ref(generator, lambda _: _open.pop(key, None)))
        return generator

    begin.__doc__ = make.__doc__
    return begin


@atexit.register
def _close_all() -> None:
    for pid, reference in list(_open.values()):
        generator = reference()
        if generator is None or pid != os.getpid():  # a forked process has none of their threads
            continue
        # Another thread may be within it. Whatever else fails, the process ends.
        with suppress(Exception):
            generator.close()


def cause_of_death(error: WorkerError, reader: AnyReader | None) -> StorageError | None:
    """Return an error that explains the death of a process that read through memory maps.

    Returns None if the reader maps nothing, or if no cause is known. torch does not always report
    the signal that ended a worker, so a truncated shard is taken as the cause of any death.
    """
    if not isinstance(reader, BatchReader) or reader.mapped is None:
        return None
    found = _shortened(reader)
    if found is not None or not isinstance(error, BusError):
        return found
    return StorageError(
        "a mapped file of the dataset could not be read (SIGBUS): its device failed, or another "
        "program made it shorter for a moment",
        remedy="see the kernel log; with --set reader.mmap=false the device's error is reported",
    )


def _shortened(reader: BatchReader) -> StorageError | None:
    """Return an error for the first shard that is missing or shorter than in the manifest."""
    manifest = reader.manifest
    for key, expected in zip(manifest.keys(), manifest.shards["size"].tolist(), strict=True):
        try:
            size = reader.storage.size(key)
        except StorageError as error:
            return error
        if size < expected:
            return StorageError(
                f"{key} became shorter while it was mapped: it has {format_count(size)} bytes, "
                f"but {format_count(expected)} were expected",
                remedy="let no other program write to the data, and check it: iobench verify",
            )
    return None

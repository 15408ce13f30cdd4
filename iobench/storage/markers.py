"""The marker that makes a place iobench's: put into an empty place, and locked from then on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from ..base.errors import MissingObjectError, StorageError, TargetHeldError
from .base import Storage
from .catalog import exists
from .locks.objects import is_lock_name

T = TypeVar("T")

_MAX_TRIES = 5
"""How often a place may change between a look at it and its lock."""

_RIVAL_S = 1.0
"""How long to wait for a marker that another process may be writing."""


def foreign_name(storage: Storage, marker: str, root: Path | None) -> str | None:
    """The name of something in a place that is not claimed; None where it is empty.

    What an interrupted start has left (the unfinished marker, or a lock) does not count. ``root``
    is the directory that is looked into; None: the storage is asked. None as well where somebody
    has claimed the place during the look, because the marker comes before anything else of ours.
    Raises StorageError.
    """
    entries = (entry.key for entry in storage.list()) if root is None else _names(root)
    left_by_a_start = f"{marker}.part"
    names = (name for name in entries if name != left_by_a_start and not is_lock_name(name))
    found = next(names, None)
    return None if found is not None and exists(storage, marker) else found


def _names(root: Path) -> Iterator[str]:
    yield from os.listdir(root) if root.is_dir() else ()


def put_marker(storage: Storage, marker: str, text: bytes, *, made_root: Path | None) -> None:
    """Write the marker, or find that another process does so at this moment.

    ``made_root``: the directory that this write will make. It is removed again where the write
    fails, because the next attempt would take it for the user's own. Raises StorageError.
    """
    try:
        with storage.create(marker, size_hint=len(text)) as sink:
            sink.write(text)
    except StorageError:
        if _appears(storage, marker):
            return
        if made_root is not None:
            with suppress(OSError):
                made_root.rmdir()
        raise


def _appears(storage: Storage, marker: str) -> bool:
    deadline = time.monotonic() + _RIVAL_S
    while not exists(storage, marker):
        if time.monotonic() > deadline:
            return False
        time.sleep(_RIVAL_S / 10)
    return True


@contextmanager
def held_as_seen(storage: Storage, attempt: Callable[[ExitStack], T | None]) -> Iterator[T]:
    """Look at a place, lock it, and look again, until both looks have seen the same.

    ``attempt`` enters the lock into the stack that it gets, and returns what it holds. It returns
    None, or raises MissingObjectError, where others changed the place meanwhile. Raises
    TargetHeldError where they do so every time, and what ``attempt`` raises.
    """
    problem: MissingObjectError | None = None
    for _ in range(_MAX_TRIES):
        with ExitStack() as stack:
            try:
                found = attempt(stack)
            except MissingObjectError as error:
                problem = error
                continue
            if found is not None:
                yield found
                return
    raise TargetHeldError(
        f"{storage.url} is being changed by other processes",
        remedy="find out which, and start again when they have ended",
    ) from problem

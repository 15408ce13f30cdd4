"""The marker that makes a place iobench's: put into an empty place, and locked from then on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..base.documents import MAX_DOCUMENT_BYTES, parse_json
from ..base.errors import MissingObjectError, StorageError, TargetHeldError, TargetRefusedError
from ..base.safety import Removal, removed_empty
from ..base.units import utc_now
from .base import (
    Entry,
    Folders,
    Guarded,
    Storage,
    Unfinished,
    delete,
    exists,
    innermost,
    local_root,
    read_object,
)
from .locks.held import Held
from .locks.lock import Lease, exclusive
from .locks.objects import READERS, is_lock_name

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


def root_is_missing(storage: Storage) -> bool:
    """Whether the first file makes the root, so that ``clean`` is to remove it as well.

    Asked before a lock is taken, since some locks are files. Raises StorageError.
    """
    inner = innermost(storage)
    root = local_root(inner)
    if root is not None:
        return not root.exists()
    return isinstance(inner, Folders) and not inner.has_root()


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
                innermost(storage).close()  # it may keep the folder open that was removed meanwhile
                continue
            if found is not None:
                yield found
                return
    raise TargetHeldError(
        f"{storage.url} is being changed by other processes",
        remedy="find out which, and start again when they have ended",
    ) from problem


@dataclass(frozen=True)
class Marked:
    """A kind of files that iobench makes, each time in a place of their own.

    ``marker``: the name of the file that says so. It is there before anything is written, and until
    all is removed. ``what``: a word for the files. ``is_mine``: whether a key is one of them.
    """

    marker: str
    what: str
    is_mine: Callable[[str], bool]

    def claim(
        self,
        storage: Storage,
        facts: Mapping[str, Any] | None = None,
        *,
        makes_root: bool | None = None,
    ) -> None:
        """Make an empty place one of these. A place that is one already stays as it is.

        ``facts`` are kept in the marker. ``makes_root``: whether the root was missing; None: it is
        looked for now. Raises TargetRefusedError for a place with anything else.
        """
        if not self._is_new(storage):
            return
        makes_root = root_is_missing(storage) if makes_root is None else makes_root
        marker = {"created": utc_now(), "made_root": makes_root, **(facts or {})}
        made_root = local_root(innermost(storage)) if makes_root else None
        put_marker(storage, self.marker, json.dumps(marker).encode() + b"\n", made_root=made_root)

    def _is_new(self, storage: Storage) -> bool:
        """Whether the place is empty, not claimed. TargetRefusedError where it is neither."""
        if isinstance(storage, Guarded):
            storage.check_target()
        if exists(storage, self.marker):
            return False
        found = foreign_name(storage, self.marker, local_root(innermost(storage)))
        if found is not None:
            raise TargetRefusedError(
                f"{storage.url} is not empty (it holds '{found}') and has no {self.what} of "
                "iobench",
                remedy=f"name a new or empty directory, e.g. {storage.url}/{self.what}",
            )
        return not exists(storage, self.marker)

    @contextmanager
    def held(
        self,
        storage: Storage,
        verb: str,
        *,
        facts: Mapping[str, Any] | None = None,
        break_lock: bool = False,
    ) -> Iterator[Lease]:
        """``claim``, and exclude other processes. Raises TargetHeldError if one holds it."""
        makes_root = root_is_missing(storage)

        def attempt(stack: ExitStack) -> Lease:
            # Where the lock is an object, the marker is made by whoever has it: two writers of one
            # object at one moment may both fail on some storages.
            if local_root(innermost(storage)) is not None:
                self.claim(storage, facts, makes_root=makes_root)
            else:
                self._is_new(storage)
            lease = exclusive(storage, self.marker, verb=verb, break_dead=break_lock)
            found = stack.enter_context(lease)
            self.claim(storage, facts, makes_root=makes_root)
            return found

        with held_as_seen(storage, attempt) as lease:
            yield lease
        if makes_root and isinstance(inner := innermost(storage), Folders):
            with suppress(StorageError):  # a lock object kept it until now, if all else is gone
                inner.remove_root()

    def require(self, storage: Storage) -> dict[str, Any]:
        """The marker's contents. Raises TargetRefusedError where there is none, StorageError."""
        if isinstance(storage, Guarded):
            storage.check_target()
        if not exists(storage, self.marker):
            raise TargetRefusedError(
                f"{storage.url} has no {self.what} of iobench (no {self.marker}), "
                "so nothing in it is removed"
            )
        return self.read(storage)

    def read(self, storage: Storage) -> dict[str, Any]:
        """The contents of a marker that is there, {} if it is damaged. Raises StorageError."""
        try:
            return dict(parse_json(read_object(storage, self.marker, max_bytes=MAX_DOCUMENT_BYTES)))
        except (ValueError, TypeError):
            return {}

    def clean(
        self,
        storage: Storage,
        *,
        dry_run: bool = False,
        held: Callable[[], None] = lambda: None,
        remove: Callable[[list[Entry]], None] | None = None,
    ) -> Removal:
        """Remove these files, and the root itself if ``claim`` made it and it is empty.

        The marker is removed last, and only if none of the files is left: files that a mount point
        hides at the moment can then be removed later. ``held`` is called before each deletion, and
        raises where the place is another process's now. ``remove``: does that for the files, which
        are removed one by one else. Raises TargetRefusedError, StorageError.
        """
        marker = self.require(storage)
        entries = [entry for entry in storage.list() if not is_lock_name(entry.key)]
        mine = [entry for entry in entries if self._is_mine(entry)]
        foreign = sorted({entry.key for entry in entries} - {entry.key for entry in mine})
        if dry_run:
            return removal_of(mine, foreign)
        files = [entry for entry in mine if entry.key != self.marker]
        if remove is not None:
            remove(files)
        else:
            for entry in files:
                delete(storage, entry.key, held)
        if isinstance(storage, Unfinished):
            storage.discard_unfinished(self.is_mine, allowed=held)
        held()
        if isinstance(inner := innermost(storage), Folders):
            inner.remove_empty(lambda name: name == READERS)
        left = {entry.key for entry in storage.list() if self._is_mine(entry)} - {self.marker}
        if left:
            gone = [entry for entry in mine if entry.key not in {*left, self.marker}]
            return removal_of(gone, sorted({*foreign, *left}))
        held()
        root = local_root(innermost(storage))
        made_root = not foreign and bool(marker.get("made_root"))
        if root is None:
            delete(storage, self.marker, held)
            return removal_of(mine, foreign, root_removed=made_root)
        _remove_locks(storage, root)
        storage.delete(self.marker)
        return removal_of(mine, foreign, root_removed=made_root and removed_empty(root))

    def clean_alone(
        self,
        storage: Storage,
        clean: Callable[..., Removal],
        *,
        dry_run: bool = False,
        break_lock: bool = False,
    ) -> Removal:
        """``clean`` by whoever does not hold the place yet. TargetHeldError where others do."""
        self.require(storage)
        if dry_run:
            return clean(storage, dry_run=True)
        try:
            with exclusive(storage, self.marker, verb="clean", break_dead=break_lock) as lease:
                removal = clean(storage, held=Held(lease))
        except MissingObjectError:  # another clean was faster
            self.require(storage)
            raise
        inner = innermost(storage)
        if removal.root_removed and isinstance(inner, Folders):  # not before the lock is gone
            return removal._replace(root_removed=inner.remove_root())
        return removal

    def _is_mine(self, entry: Entry) -> bool:
        return entry.key == self.marker or self.is_mine(entry.key)


def removal_of(mine: list[Entry], foreign: list[str], *, root_removed: bool = False) -> Removal:
    return Removal(len(mine), sum(entry.size for entry in mine), foreign, root_removed)


def _remove_locks(storage: Storage, root: Path) -> None:
    """Of a file system without flock: else the lock would keep the root from being empty."""
    for entry in list(storage.list()):
        if is_lock_name(entry.key):
            storage.delete(entry.key)
    with suppress(OSError):
        (root / READERS).rmdir()

"""One writer for each target, or several readers: other processes in the same place are refused.

Local files are locked by flock(2) on a marker in their folder (flocks.py). A file system without
flock, and every other storage that can refuse to create an object twice, is locked by an object
(object_lock.py). Both kinds exclude only processes of iobench, no other programs. Where neither is
possible, a writer has no lock, which is said in a warning.

Wrappers (``throttled+...``) are ignored. A directory that one process uses as a local path and
another through ``local://`` has two kinds of lock, and each checks the other: a process that has
locked the file looks for the object, and one that has made the object tries to lock the file. If
one process uses a mount and another ``nfs://``, only the first sees that it is one directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from ...base.documents import MAX_HEADER_BYTES
from ...base.errors import DatasetError, MissingObjectError
from ...record.manifest import MANIFEST, Manifest, parse_header
from ..base import Storage, dataset_marker, innermost, local_root, read_object
from . import flocks, object_lock
from .object_lease import ObjectLease
from .objects import LOCK, READERS


class Lease(Protocol):
    """A target that this process holds."""

    unregistered: str  # why others can't see this process, which works all the same; '' if they can

    def others(self) -> list[str]:
        """A description of each other process that holds the target now, as far as visible.

        Raises StorageError.
        """

    def check(self) -> None:
        """Raises TargetLostError if the target is known to be another process's now. Cheap."""

    def confirm(self) -> None:
        """``check`` by looking now, before something is completed. Raises StorageError, too."""


@contextmanager
def exclusive(
    storage: Storage, marker: str, *, verb: str, break_dead: bool = False, make: bool = False
) -> Iterator[Lease]:
    """Hold a target alone.

    ``marker``: the key of the marker file, where keys are local files. ``break_dead``: take over a
    lock object whose owner, on another host, shows no sign of life. ``make``: the marker is only a
    lock file, and is created if it is missing.

    Raises TargetHeldError in one line that says who holds it, MissingObjectError if a local marker
    does not exist (any more), StorageError.
    """
    lease = _hold(storage, marker, exclusive=True, verb=verb, break_dead=break_dead, make=make)
    try:
        yield lease
    finally:
        lease.release()


@contextmanager
def shared(
    storage: Storage, marker: str, *, verb: str, break_dead: bool = False, make: bool = False
) -> Iterator[Lease]:
    """Hold a target together with other readers. See ``exclusive``."""
    lease = _hold(storage, marker, exclusive=False, verb=verb, break_dead=break_dead, make=make)
    try:
        yield lease
    finally:
        lease.release()


def remove_left_over(storage: Storage) -> int:
    """Remove a lock object that a dead process of this host left where nothing else is iobench's.

    Returns its size in bytes, 0 if there is none. Raises StorageError.
    """
    return object_lock.remove_dead(innermost(storage))


def _hold(
    storage: Storage, marker: str, *, exclusive: bool, verb: str, break_dead: bool, make: bool
) -> flocks.FileLease | ObjectLease:
    storage = innermost(storage)
    root = local_root(storage)
    if root is not None:
        try:
            return _hold_file(storage, root, marker, exclusive, break_dead, make)
        except flocks.NoFlockError:
            pass
    hold = object_lock.hold_exclusive if exclusive else object_lock.hold_shared
    lease = hold(storage, verb=verb, break_dead=break_dead)
    try:
        _require_file_is_free(storage, marker, exclusive)
    except BaseException:
        lease.release()
        raise
    return lease


def _require_file_is_free(storage: Storage, marker: str, exclusive: bool) -> None:
    """Raises TargetHeldError if a process holds the same directory as a local path.

    A process that comes later finds the lock object.
    """
    folder = storage.traits.folder
    if folder is not None:
        with suppress(MissingObjectError, flocks.NoFlockError):
            flocks.hold(folder / marker, exclusive=exclusive).release()


def _hold_file(
    storage: Storage,
    root: Path,
    marker: str,
    exclusive: bool,
    break_dead: bool,
    make: bool,
) -> flocks.FileLease:
    lease = flocks.hold(root / marker, exclusive=exclusive, make=make)
    try:
        if (root / LOCK).exists():
            object_lock.require_no_writer(storage, break_dead=break_dead)
        if exclusive and (root / READERS).is_dir():
            object_lock.wait_for_readers(storage, break_dead=break_dead)
    except BaseException:
        lease.release()
        raise
    return lease


@contextmanager
def reading(
    home: Storage, manifest: Manifest, *, verb: str, break_dead: bool = False
) -> Iterator[Lease]:
    """Hold the dataset whose ``manifest`` was read from ``home``'s root, to read its shards.

    Raises TargetHeldError if a process writes or removes it, DatasetError if one has done so since
    the manifest was read; StorageError.
    """
    with ExitStack() as stack:
        try:
            marker = dataset_marker(home)
            lease = stack.enter_context(shared(home, marker, verb=verb, break_dead=break_dead))
            text = read_object(innermost(home), MANIFEST, max_bytes=MAX_HEADER_BYTES)
        except MissingObjectError as error:
            raise DatasetError(
                f"the dataset at {home.url} was removed while this command started",
                remedy="generate it again",
            ) from error
        if parse_header(text, where=f"{home.url}/{MANIFEST}") != manifest.header:
            raise DatasetError(
                f"the dataset at {home.url} was replaced while this command started",
                remedy="start the command again",
            )
        yield lease

"""Take a dataset away again: exactly the files that generate made."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from ..errors import DatasetError, MissingObjectError, TargetRefusedError
from ..safety import Removal, check_target, remove_exactly
from ..schema.base import build
from ..schema.dataset import DatasetSpec
from ..schema.manifest import (
    LAYOUT_BEGUN,
    LAYOUT_RECORD,
    MANIFEST,
    MARKER,
)
from ..storage import open_storage
from ..storage.base import Folders, Guarded, Storage, Unfinished
from ..storage.catalog import innermost, local_root
from ..storage.locks.lock import exclusive, remove_left_over
from ..storage.locks.objects import LOCK, is_lock_name
from .marker import read_marker
from .owned import Owned

_DELETES = 16  # in flight, where each is a request over a network


class CleanReport(NamedTuple):
    """What was removed (or, in a dry run, would be), and what was left in place.

    ``foreign``: what iobench did not make, and mount points, which it never crosses.
    """

    root: str
    files: int
    bytes: int
    foreign: list[str]
    root_removed: bool
    dry_run: bool
    unfinished: int = 0  # uploads that a killed writer left, aborted


def clean(root: str | Path, *, dry_run: bool = False, break_lock: bool = False) -> CleanReport:
    """Remove the dataset at ``root`` (a path or a URL), complete or half generated, nothing else.

    ``break_lock``: also where a process of another host holds it that gives no sign of life. Raises
    TargetRefusedError for a place without iobench's marker, and where another process works there;
    DatasetError for a marker that can't be read; StorageError.
    """
    storage = open_storage(str(root))
    path = local_root(innermost(storage))
    if path is not None:
        path = check_target(path)
        if not path.is_dir():
            raise DatasetError(f"nothing to clean at {root}: no such directory")
    elif isinstance(storage, Guarded):
        storage.check_target()
    if dry_run:
        return _clean(root, storage, path, dry_run=True)
    if read_marker(innermost(storage)) is None:
        # A clean that could not remove its own lock at the end has left that alone.
        if path is None and (size := remove_left_over(storage)):
            return CleanReport(storage.url, 1, size, [], False, False)
        raise _not_ours(root)
    try:
        with exclusive(storage, MARKER, verb="clean", break_dead=break_lock):
            return _clean(root, storage, path, dry_run=False)
    except MissingObjectError:  # another clean was faster
        raise _not_ours(root) from None


def _clean(root: str | Path, storage: Storage, path: Path | None, *, dry_run: bool) -> CleanReport:
    marker = read_marker(innermost(storage))
    if marker is None:
        raise _not_ours(root)
    spec = build(DatasetSpec, marker["spec"], where=f"{storage.url}/{MARKER}")
    owned = Owned(spec, path)
    if path is None:
        return _clean_objects(storage, owned, dry_run=dry_run)

    def is_ours(folder: str) -> bool:
        return bool(marker.get("made_root")) if folder == "" else owned.folder(folder)

    removal = remove_exactly(
        path,
        owned.file,
        first=(MANIFEST,),  # what is left of an interrupted removal is half generated, not damaged
        last=(MARKER, LAYOUT_RECORD, LAYOUT_BEGUN, LOCK),
        folders=is_ours,
        dry_run=dry_run,
    )
    return CleanReport(str(path), *removal, dry_run)


def _not_ours(root: str | Path) -> TargetRefusedError:
    return TargetRefusedError(
        f"{root} was not made by iobench (no {MARKER}), so nothing in it is removed"
    )


def _clean_objects(storage: Storage, owned: Owned, *, dry_run: bool) -> CleanReport:
    """Delete by key: the manifest first, then emptied folders where there are such, the marker last.

    So an interrupted removal can be repeated, and what it leaves is no complete dataset. The lock that is held goes when it is released.
    """
    inner = innermost(storage)
    entries = [entry for entry in storage.list() if not is_lock_name(entry.key)]
    mine = [entry for entry in entries if owned.file(entry.key)]
    foreign = sorted({entry.key for entry in entries} - {entry.key for entry in mine})
    unfinished = (
        storage.discard_unfinished(owned.file, dry_run=dry_run)
        if isinstance(storage, Unfinished)
        else ()
    )
    if not dry_run:
        if any(entry.key == MANIFEST for entry in mine):
            storage.delete(MANIFEST)
        with ThreadPoolExecutor(_DELETES) as threads:
            deque(
                threads.map(
                    storage.delete,
                    (entry.key for entry in mine if entry.key not in (MARKER, MANIFEST)),
                ),
                maxlen=0,
            )
        if isinstance(inner, Folders):
            inner.remove_empty(owned.folder)
        storage.delete(MARKER)
    gone = (
        not dry_run and not foreign and not isinstance(inner, Folders)
    )  # a folder that is the root stays
    removal = Removal(len(mine), sum(entry.size for entry in mine), foreign, gone)
    return CleanReport(storage.url, *removal, dry_run, len(unfinished))

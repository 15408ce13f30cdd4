"""Remove a dataset: exactly the files that ``generate`` made."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...base.documents import require_place
from ...base.errors import MissingObjectError, TargetRefusedError
from ...base.safety import Removal, check_target, remove_exactly
from ...record.manifest import LAYOUT_BEGUN, LAYOUT_RECORD, MANIFEST, MARKER
from ...settings.base import build
from ...settings.dataset import DatasetSpec
from ...storage import open_storage
from ...storage.base import Folders, Guarded, Storage, Unfinished, delete, innermost, local_root
from ...storage.locks.held import Held
from ...storage.locks.lock import exclusive, remove_left_over
from ...storage.locks.objects import LOCK, is_lock_name
from .target import Owned, read_marker

_DELETES = 16  # concurrent deletions, when each is a request over a network


class CleanReport(NamedTuple):
    """What was removed (or would be, in a dry run), and what was left in place.

    ``foreign``: files that iobench did not make, and mount points, which are never crossed.
    """

    root: str
    files: int
    bytes: int
    foreign: list[str]
    root_removed: bool
    dry_run: bool
    unfinished: int = 0  # unfinished uploads of a killed writer that were aborted


def clean(root: str | Path, *, dry_run: bool = False, break_lock: bool = False) -> CleanReport:
    """Remove the dataset at ``root`` (path or URL), complete or half generated, and nothing else.

    ``break_lock``: take over a lock whose holder is on another host and shows no sign of life.
    Raises TargetRefusedError if the place has no marker of iobench, or if another process works
    there; DatasetError for a damaged marker; StorageError.
    """
    storage = open_storage(str(root))
    path = local_root(innermost(storage))
    if path is not None:
        path = check_target(path)
        require_place(path, "there is nothing to clean")
    elif isinstance(storage, Guarded):
        storage.check_target()
    if dry_run:
        return _clean(root, storage, path, dry_run=True)
    if read_marker(innermost(storage)) is None:
        # An earlier ``clean`` that failed to remove its own lock at the end leaves only that lock.
        if path is None and (size := remove_left_over(storage)):
            return CleanReport(storage.url, 1, size, [], False, False)
        raise _not_ours(root)
    try:
        with exclusive(storage, MARKER, verb="clean", break_dead=break_lock) as lease:
            report = _clean(root, storage, path, dry_run=False, held=Held(lease))
    except MissingObjectError:  # another clean was faster
        raise _not_ours(root) from None
    inner = innermost(storage)
    if report.root_removed and isinstance(inner, Folders):  # not before the lock object is gone
        return report._replace(root_removed=inner.remove_root())
    return report


def discard(data: str, *, break_lock: bool = False) -> CleanReport:
    """``clean`` a dataset in a folder that has a name of iobench's own, and remove that folder.

    A process that was killed, or could not remove the folder, has left it, so the next one did not
    create it. Raises as ``clean`` does.
    """
    report = clean(data, break_lock=break_lock)
    inner = innermost(open_storage(data))
    root = local_root(inner)
    if isinstance(inner, Folders):
        inner.remove_root()
    elif root is not None and not root.is_symlink():
        with suppress(OSError):  # it does not exist, or is not empty
            root.rmdir()
    return report


def _clean(
    root: str | Path,
    storage: Storage,
    path: Path | None,
    *,
    dry_run: bool,
    held: Callable[[], None] = lambda: None,
) -> CleanReport:
    """``held`` is called before each deletion, and raises where the place is another's now."""
    marker = read_marker(innermost(storage))
    if marker is None:
        raise _not_ours(root)
    spec = build(DatasetSpec, marker["spec"], where=f"{storage.url}/{MARKER}")
    owned = Owned(spec, path)
    made_root = bool(marker.get("made_root"))
    if path is None:
        return _clean_objects(storage, owned, made_root, dry_run=dry_run, held=held)

    def is_ours(folder: str) -> bool:
        return made_root if folder == "" else owned.folder(folder)

    removal = remove_exactly(
        path,
        owned.file,
        # Without the manifest, the rest of an interrupted removal is half generated, not damaged.
        first=(MANIFEST,),
        last=(MARKER, LAYOUT_RECORD, LAYOUT_BEGUN, LOCK),
        folders=is_ours,
        dry_run=dry_run,
        allowed=held,
    )
    return CleanReport(str(path), *removal, dry_run)


def _not_ours(root: str | Path) -> TargetRefusedError:
    return TargetRefusedError(
        f"{root} was not made by iobench (no {MARKER}), so nothing in it is removed"
    )


def _clean_objects(
    storage: Storage, owned: Owned, made_root: bool, *, dry_run: bool, held: Callable[[], None]
) -> CleanReport:
    """Delete by key: first the manifest, then shards, empty folders (if any), and the marker.

    So an interrupted removal can be repeated, and what it leaves is no complete dataset. The lock
    object is deleted when the lock is released.
    """
    inner = innermost(storage)
    entries = [entry for entry in storage.list() if not is_lock_name(entry.key)]
    mine = [entry for entry in entries if owned.file(entry.key)]
    foreign = sorted({entry.key for entry in entries} - {entry.key for entry in mine})
    unfinished = (
        storage.discard_unfinished(owned.file, dry_run=dry_run, allowed=held)
        if isinstance(storage, Unfinished)
        else ()
    )
    if not dry_run:
        if any(entry.key == MANIFEST for entry in mine):
            delete(storage, MANIFEST, held)
        with ThreadPoolExecutor(_DELETES) as threads:
            deque(
                threads.map(
                    lambda key: delete(storage, key, held),
                    [entry.key for entry in mine if entry.key not in (MARKER, MANIFEST)],
                ),
                maxlen=0,
            )
        if isinstance(inner, Folders):
            held()
            inner.remove_empty(owned.folder)
        delete(storage, MARKER, held)
    gone = not dry_run and not foreign and (made_root or not isinstance(inner, Folders))
    removal = Removal(len(mine), sum(entry.size for entry in mine), foreign, gone)
    return CleanReport(storage.url, *removal, dry_run, len(unfinished))

"""The place of a job's checkpoints: claimed, held by one job, and cleared of what writers made."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..base.documents import MAX_DOCUMENT_BYTES, parse_json
from ..base.errors import MissingObjectError, TargetRefusedError
from ..base.safety import Removal, mount_of, remove_exactly
from ..storage.base import Entry, Folders, Guarded, Storage, Unfinished
from ..storage.catalog import exists, innermost, local_root, read_object
from ..storage.locks.held import Held, delete
from ..storage.locks.lock import Lease, exclusive
from ..storage.locks.objects import READERS, is_lock_name
from ..storage.markers import foreign_name, held_as_seen, put_marker
from .manifest import MANIFEST, is_ours

MARKER = ".iobench-checkpoints"
"""Says that a root is iobench's: there before anything is written, and until all is removed."""

STEP = re.compile(r"step-(\d{8,})")


def claim(storage: Storage) -> None:
    """See CheckpointRoot.claim."""
    if not _is_new(storage):
        return
    root = local_root(storage)
    made_root = root if root is not None and not root.exists() else None
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    marker = {"created": created, "made_root": made_root is not None}
    put_marker(storage, MARKER, json.dumps(marker).encode() + b"\n", made_root=made_root)


def _is_new(storage: Storage) -> bool:
    """Whether the place is empty, not claimed. Raises TargetRefusedError where it is neither."""
    if isinstance(storage, Guarded):
        storage.check_target()
    if exists(storage, MARKER):
        return False
    found = foreign_name(storage, MARKER, local_root(storage))
    if found is not None:
        raise TargetRefusedError(
            f"{storage.url} is not empty (it holds '{found}') and has no checkpoints of iobench",
            remedy=f"name a new or empty directory, e.g. {storage.url}/checkpoints",
        )
    return not exists(storage, MARKER)


@contextmanager
def held(storage: Storage, verb: str, *, break_lock: bool = False) -> Iterator[Lease]:
    """See CheckpointRoot.held."""
    # Where the lock is an object, the marker is made by whoever has it: two writers of one object
    # at one moment may both fail on some storages.
    prepare = claim if local_root(innermost(storage)) is not None else _is_new

    def attempt(stack: ExitStack) -> Lease:
        prepare(storage)
        lease = stack.enter_context(exclusive(storage, MARKER, verb=verb, break_dead=break_lock))
        claim(storage)
        return lease

    with held_as_seen(storage, attempt) as lease:
        yield lease


def remove_step(storage: Storage, folder: str, held: Callable[[], None] = lambda: None) -> Removal:
    """Take one checkpoint away: its manifest first, so that half of it is never taken for a whole.

    Only files that writers make. ``held`` is called before each deletion, and raises where the
    place is another process's now. Raises TargetRefusedError where the root is not iobench's,
    StorageError.
    """
    require_marker(storage)
    root = local_root(storage)
    if root is not None and _is_elsewhere(root, folder):
        return Removal(0, 0, [folder], False)
    if exists(storage, f"{folder}/{MANIFEST}"):
        delete(storage, f"{folder}/{MANIFEST}", held)
    if root is not None:
        return remove_exactly(
            root / folder,
            is_ours,
            last=(),
            folders=lambda name: name == "",
            within=root,
            allowed=held,
        )
    entries = list(storage.list(folder))
    mine = [entry for entry in entries if is_ours(entry.key.removeprefix(f"{folder}/"))]
    for entry in mine:
        delete(storage, entry.key, held)
    if isinstance(storage, Unfinished):
        storage.discard_unfinished(lambda key: key.startswith(f"{folder}/"), allowed=held)
    if isinstance(inner := innermost(storage), Folders):
        inner.remove_empty(lambda name: name == folder, folder)
    foreign = _foreign(entries, mine)
    return _removal(mine, foreign, root_removed=not foreign)


def _is_elsewhere(root: Path, folder: str) -> bool:
    """Whether a folder is a mount point. One that is not there is none."""
    try:
        return mount_of(root / folder) != mount_of(root)
    except OSError:
        return False


def clean(
    storage: Storage, *, dry_run: bool = False, held: Callable[[], None] = lambda: None
) -> Removal:
    """See CheckpointRoot.clean."""
    marker = require_marker(storage)
    entries = [entry for entry in storage.list() if not is_lock_name(entry.key)]
    mine = [entry for entry in entries if _is_mine(entry.key)]
    foreign = _foreign(entries, mine)
    if dry_run:
        return _removal(mine, foreign, root_removed=False)
    for folder in sorted({entry.key.partition("/")[0] for entry in mine} - {MARKER}):
        remove_step(storage, folder, held)
    root = local_root(storage)
    held()
    _remove_empty(storage, root)
    left = [entry.key for entry in storage.list() if _is_mine(entry.key) and entry.key != MARKER]
    if left:
        mine = [entry for entry in mine if entry.key not in {*left, MARKER}]
        return _removal(mine, sorted({*foreign, *left}), root_removed=False)
    held()
    if root is not None:
        _remove_locks(storage, root)
        storage.delete(MARKER)
    else:
        delete(storage, MARKER, held)
    gone = not foreign and bool(marker.get("made_root")) and root is not None and _removed(root)
    return _removal(mine, foreign, root_removed=gone)


def clean_exclusively(
    storage: Storage, *, dry_run: bool = False, break_lock: bool = False
) -> Removal:
    """``clean`` by whoever does not hold the place yet. Raises TargetHeldError where others do."""
    require_marker(storage)
    if dry_run:
        return clean(storage, dry_run=True)
    try:
        with exclusive(storage, MARKER, verb="clean", break_dead=break_lock) as lease:
            return clean(storage, held=Held(lease))
    except MissingObjectError:  # another clean was faster
        require_marker(storage)
        raise


def _is_mine(key: str) -> bool:
    folder, _, name = key.partition("/")
    return key == MARKER or (STEP.fullmatch(folder) is not None and is_ours(name))


def _remove_empty(storage: Storage, root: Path | None) -> None:
    """Folders of saves that failed before their first file, and of readers."""
    if isinstance(inner := innermost(storage), Folders):
        inner.remove_empty(lambda name: name == READERS or STEP.fullmatch(name) is not None)
    for folder in root.iterdir() if root is not None else ():
        if STEP.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
            with suppress(OSError):  # something is in it
                folder.rmdir()


def _remove_locks(storage: Storage, root: Path) -> None:
    """Of a file system without flock: else the lock would keep the root from being empty."""
    for entry in list(storage.list()):
        if is_lock_name(entry.key):
            storage.delete(entry.key)
    with suppress(OSError):
        (root / READERS).rmdir()


def _removed(root: Path) -> bool:
    """Whether an empty root could be removed."""
    try:
        root.rmdir()
    except OSError:
        return False  # empty folders of others, or somebody uses it again at this moment
    return True


def require_marker(storage: Storage) -> dict[str, Any]:
    """The marker's contents. Raises TargetRefusedError where there is none, StorageError."""
    if isinstance(storage, Guarded):
        storage.check_target()
    if not exists(storage, MARKER):
        raise TargetRefusedError(
            f"{storage.url} has no checkpoints of iobench (no {MARKER}), "
            "so nothing in it is removed"
        )
    try:
        return dict(parse_json(read_object(storage, MARKER, max_bytes=MAX_DOCUMENT_BYTES)))
    except (ValueError, TypeError):
        return {}


def _foreign(entries: list[Entry], mine: list[Entry]) -> list[str]:
    return sorted({entry.key for entry in entries} - {entry.key for entry in mine})


def _removal(mine: list[Entry], foreign: list[str], *, root_removed: bool) -> Removal:
    return Removal(len(mine), sum(entry.size for entry in mine), foreign, root_removed)

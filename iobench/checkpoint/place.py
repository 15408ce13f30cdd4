"""The place of a job's checkpoints: claimed, held by one job, and cleared of what writers made."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..base.safety import Removal, mount_of, remove_exactly
from ..storage.base import (
    Entry,
    Folders,
    Storage,
    Unfinished,
    delete,
    exists,
    innermost,
    local_root,
)
from ..storage.markers import Marked, removal_of
from .manifest import MANIFEST, is_ours

STEP = re.compile(r"step-(\d{8,})")


def _is_mine(key: str) -> bool:
    folder, _, name = key.partition("/")
    return STEP.fullmatch(folder) is not None and is_ours(name)


CHECKPOINTS = Marked(".iobench-checkpoints", "checkpoints", _is_mine)


def remove_step(storage: Storage, folder: str, held: Callable[[], None] = lambda: None) -> Removal:
    """Take one checkpoint away: its manifest first, so that half of it is never taken for a whole.

    Only files that writers make. ``held`` is called before each deletion, and raises where the
    place is another process's now. Raises TargetRefusedError where the root is not iobench's,
    StorageError.
    """
    CHECKPOINTS.require(storage)
    root = local_root(innermost(storage))
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
        storage.discard_unfinished(
            lambda key: key.startswith(f"{folder}/") and _is_mine(key), allowed=held
        )
    if isinstance(inner := innermost(storage), Folders):
        inner.remove_empty(lambda name: name == folder, folder)
    foreign = sorted({entry.key for entry in entries} - {entry.key for entry in mine})
    return removal_of(mine, foreign, root_removed=not foreign)


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

    def remove(entries: list[Entry]) -> None:
        # The newest first: never a base before what needs it.
        folders = {entry.key.partition("/")[0] for entry in entries}
        for folder in sorted(folders, key=lambda name: (len(name), name), reverse=True):
            remove_step(storage, folder, held)
        held()
        _remove_empty(storage, local_root(innermost(storage)))

    return CHECKPOINTS.clean(storage, dry_run=dry_run, held=held, remove=remove)


def _remove_empty(storage: Storage, root: Path | None) -> None:
    """Folders of saves that failed before their first file."""
    if isinstance(inner := innermost(storage), Folders):
        inner.remove_empty(lambda name: STEP.fullmatch(name) is not None)
    for folder in root.iterdir() if root is not None else ():
        if STEP.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
            with suppress(OSError):  # something is in it
                folder.rmdir()

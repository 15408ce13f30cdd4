"""Take a dataset away again: exactly the files that generate made."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ..documents import parse_json
from ..errors import DatasetError, TargetRefusedError
from ..registry import LOADERS
from ..safety import Removal, check_target, remove_exactly
from ..spec.base import build
from ..spec.dataset import DatasetSpec
from ..spec.manifest import (
    DATA,
    LAYOUT_RECORD,
    LAYOUTS,
    MANIFEST,
    MARKER,
    SAMPLES,
    SHARDS,
    Keys,
    index_key,
    layout_files,
)
from ..storage import open_storage
from ..storage.base import Folders, Guarded, Storage, Unfinished
from ..storage.catalog import exists, innermost, local_root, read_object
from .journal import JOURNAL
from .plan import plan_shards

_JOURNAL_ENTRY = re.compile(rf"{re.escape(JOURNAL)}/\d{{8}}\.json")
_PART = ".part"  # what a storage calls a file that is not complete yet
_DELETES = 16  # in flight, where each is a request over a network


class CleanReport(NamedTuple):
    """What was removed (or, in a dry run, would be), and what was left because iobench did not make it."""

    root: str
    files: int
    bytes: int
    foreign: list[str]
    root_removed: bool
    dry_run: bool
    unfinished: int = 0  # uploads that a killed writer left, aborted


def clean(root: str | Path, *, dry_run: bool = False) -> CleanReport:
    """Remove the dataset at ``root`` (a path or a URL), complete or half generated, and nothing else.

    Raises TargetRefusedError for a place without iobench's marker, DatasetError for a marker that cannot be read.
    """
    storage = open_storage(str(root))
    path = local_root(innermost(storage))
    if path is not None:
        path = check_target(path)
        if not path.is_dir():
            raise DatasetError(f"nothing to clean at {root}: no such directory")
        marker = read_marker(path)
    else:
        if isinstance(storage, Guarded):
            storage.check_target()
        text = read_object(storage, MARKER) if exists(storage, MARKER) else None
        marker = parse_marker(text, where=f"{storage.url}/{MARKER}") if text is not None else None
    if marker is None:
        raise TargetRefusedError(
            f"{root} was not made by iobench (no {MARKER}), so nothing in it is removed"
        )
    spec = build(DatasetSpec, marker["spec"], where=f"{storage.url}/{MARKER}")
    keys = Keys(spec)
    owned = {keys(shard) for shard in range(plan_shards(spec).shard_count)} | {
        MANIFEST,
        SAMPLES,
        SHARDS,
        MARKER,
    }
    unfinished = re.compile(
        rf"{LAYOUTS}/(?:{'|'.join(LOADERS.entries())})\.part(?:/.*)?"
    )  # made by us alone, where there was nothing
    if path is not None:
        owned |= {
            f"{LAYOUTS}/{kind}/{name}"
            for kind in LOADERS.entries()
            for name in layout_files(path / LAYOUTS / kind)
        }
    owned |= {index for index in (index_key(spec),) if index is not None}

    def is_owned(name: str) -> bool:
        name = name.removesuffix(_PART)
        return (
            name in owned
            or _JOURNAL_ENTRY.fullmatch(name) is not None
            or unfinished.fullmatch(name) is not None
        )

    folders = {key.rpartition("/")[0] for key in owned} | {DATA, JOURNAL, LAYOUTS}
    folders |= {f"{LAYOUTS}/{kind}" for kind in LOADERS.entries()}
    folders |= {str(above) for folder in folders for above in PurePosixPath(folder).parents} - {"."}
    if path is None:
        return _clean_objects(storage, is_owned, folders.__contains__, dry_run=dry_run)
    if not marker.get("made_root"):
        folders.discard("")

    def is_ours(folder: str) -> bool:
        return folder in folders or unfinished.fullmatch(folder) is not None

    removal = remove_exactly(
        path, is_owned, last=(MARKER, LAYOUT_RECORD), folders=is_ours, dry_run=dry_run
    )
    return CleanReport(str(path), *removal, dry_run)


def _clean_objects(
    storage: Storage, owned: Callable[[str], bool], folders: Callable[[str], bool], *, dry_run: bool
) -> CleanReport:
    """Delete by key, then the emptied ``folders`` where there are such, the marker last: an interrupted removal can be repeated."""
    inner = innermost(storage)
    entries = list(storage.list())
    mine = [entry for entry in entries if owned(entry.key)]
    foreign = sorted(entry.key for entry in entries if not owned(entry.key))
    unfinished = (
        storage.discard_unfinished(owned, dry_run=dry_run)
        if isinstance(storage, Unfinished)
        else ()
    )
    if not dry_run:
        with ThreadPoolExecutor(_DELETES) as threads:
            deque(
                threads.map(storage.delete, (entry.key for entry in mine if entry.key != MARKER)),
                maxlen=0,
            )
        if isinstance(inner, Folders):
            inner.remove_empty(folders)
        storage.delete(MARKER)
    gone = (
        not dry_run and not foreign and not isinstance(inner, Folders)
    )  # a folder that is the root stays
    removal = Removal(len(mine), sum(entry.size for entry in mine), foreign, gone)
    return CleanReport(storage.url, *removal, dry_run, len(unfinished))


def read_marker(root: Path) -> dict[str, Any] | None:
    """The marker's contents; None where there is none. Raises DatasetError for one that is damaged."""
    marker = root / MARKER
    if marker.is_symlink() or not marker.is_file():
        return None
    return parse_marker(marker.read_bytes(), where=str(marker))


def parse_marker(text: bytes, *, where: str) -> dict[str, Any]:
    try:
        data = parse_json(text)
        if (
            isinstance(data, dict)
            and isinstance(data["id"], str)
            and isinstance(data["spec"], dict)
        ):
            return data
    except (ValueError, KeyError):
        pass
    raise DatasetError(
        f"{where} is damaged", remedy="remove the directory by hand, or generate elsewhere"
    )

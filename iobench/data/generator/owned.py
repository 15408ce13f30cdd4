"""What a place holds of iobench's: the marker that names its dataset, its shards, and other names.

Whether a name belongs to the dataset is computed from the name, without a table.

A marker may claim any number of samples, so nothing here may grow with that number.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ...base.documents import MAX_DOCUMENT_BYTES, parse_json
from ...base.errors import DatasetError, MissingObjectError, StorageError
from ...load.libraries import LOADERS
from ...record.manifest import (
    LAYOUTS,
    MANIFEST,
    MARKER,
    SAMPLES,
    SHARDS,
    Array,
    layout_files,
    layout_lock,
    layout_names,
    unfinished_layout,
)
from ...record.packing import DATA, Keys
from ...settings.dataset import DatasetSpec
from ...storage.base import Storage
from ...storage.catalog import local_root, read_object
from ...storage.locks.objects import READERS, is_lock_name
from ..dataset import ResolvedSpec
from .journal import JOURNAL, is_entry
from .plan import ShardNumbers


def read_marker(storage: Storage) -> dict[str, Any] | None:
    """Read the marker; None if there is none, or if a symbolic link has its name.

    Raises DatasetError for a damaged marker; StorageError, also if it is no regular file.
    """
    root = local_root(storage)
    if root is not None and (root / MARKER).is_symlink():
        return None
    try:
        text = read_object(storage, MARKER, max_bytes=MAX_DOCUMENT_BYTES)
    except MissingObjectError:
        return None
    return parse_marker(text, where=f"{storage.url}/{MARKER}")


def parse_marker(text: bytes, *, where: str) -> dict[str, Any]:
    """Parse a marker's bytes. Raises DatasetError if they are damaged."""
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


_PART = ".part"  # suffix that a storage gives a file which is not complete yet


class Owned:
    """The names of one dataset. ``root``: its directory, which may contain layouts, or None."""

    def __init__(self, spec: DatasetSpec, root: Path | None) -> None:
        """Raises SpecError and UnknownNameError for a spec that ``generate`` would have refused."""
        packing = ResolvedSpec.of(spec).packing
        self._keys = Keys(packing)
        self._shards = ShardNumbers(spec)
        index = packing.index_key
        self._files = {MANIFEST, SAMPLES, SHARDS, MARKER, *([index] if index else [])}
        self._folders = {DATA, JOURNAL, LAYOUTS, READERS, f"{LAYOUTS}/{READERS}"}
        self._unfinished: dict[str, Callable[[str], bool]] = {}
        if root is not None:
            self._add_layouts(root / LAYOUTS)

    def _add_layouts(self, folder: Path) -> None:
        for kind in LOADERS.entries():
            names = {f"{LAYOUTS}/{kind}/{name}" for name in layout_files(folder / kind)}
            self._files |= names | {f"{LAYOUTS}/{layout_lock(kind)}"}
            self._folders |= {f"{LAYOUTS}/{kind}", f"{LAYOUTS}/{kind}{_PART}"}
            for name in names:
                self._folders |= {str(above) for above in PurePosixPath(name).parents} - {"."}
            if patterns := unfinished_layout(folder / f"{kind}{_PART}"):
                self._unfinished[f"{LAYOUTS}/{kind}{_PART}/"] = layout_names(patterns)

    def file(self, name: str) -> bool:
        """Whether iobench made this file, complete or not."""
        if is_lock_name(name) or is_lock_name(name.removeprefix(f"{LAYOUTS}/")):
            return True
        whole = name.removesuffix(_PART)
        if whole in self._files or is_entry(name):
            return True
        shard = self._keys.number(whole)
        return (shard is not None and shard in self._shards) or self._in_unfinished(name)

    def _in_unfinished(self, name: str) -> bool:
        return any(
            name.startswith(folder) and is_ours(name.removeprefix(folder))
            for folder, is_ours in self._unfinished.items()
        )

    def folder(self, name: str) -> bool:
        """Whether iobench made this folder."""
        if name in self._folders:
            return True
        first = self._keys.folder(name)
        return first is not None and first in self._shards


def first_difference(storage: Storage, spec: DatasetSpec, sizes: Array) -> str:
    """Describe the first shard that is missing or has another size; '' if all are right.

    ``sizes``: int64 [shards], bytes. Needs one byte of memory for each shard. Raises StorageError.
    """
    keys = ResolvedSpec.of(spec).keys
    right = np.zeros(len(sizes), np.bool_)
    other: tuple[int, int] | None = None
    for entry in storage.list(DATA):
        shard = keys.number(entry.key)
        if shard is None or shard >= len(sizes):
            continue
        if entry.size == sizes[shard]:
            right[shard] = True
        elif other is None or shard < other[0]:
            other = (shard, entry.size)
    wrong = int(np.argmin(right)) if not right.all() else None
    if wrong is None:
        return ""
    count = len(right) - int(np.count_nonzero(right))
    more = f" ({count} shards of {len(right)} are wrong)" if count > 1 else ""
    if other is not None and other[0] == wrong:
        return f"{keys(wrong)} has {other[1]} bytes, not {int(sizes[wrong])}{more}"
    return f"{keys(wrong)} is missing{more}"


def require_shards(storage: Storage, spec: DatasetSpec, sizes: Array) -> None:
    """Raise StorageError if a shard that was just written is missing or has another size."""
    if wrong := first_difference(storage, spec, sizes):
        raise StorageError(
            f"the dataset at {storage.url} is not complete after writing it: {wrong}",
            remedy="find out what changes files there, and run the same command again",
        )

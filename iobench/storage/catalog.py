"""A dataset's manifest, wherever it lies: mapped from a local directory, fetched from anywhere else."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from ..buffers import private
from ..errors import DatasetError, MissingObjectError, StorageError
from ..spec.manifest import (
    MANIFEST,
    MARKER,
    SAMPLES,
    SHARDS,
    Manifest,
    assemble,
    hash_bytes,
    load_manifest,
    parse_header,
)
from . import open_storage, wrapper_of
from .base import Storage


def find_dataset(url: str, options: Mapping[str, str] | None = None) -> tuple[Manifest, str]:
    """The manifest at a path or URL, and the URL where its shards lie.

    Both are the same but for a scanned dataset, whose manifest is kept beside data that iobench did not write: wrappers are then put around
    that data. Raises DatasetError and StorageError.
    """
    wrappers, place = "", url
    while name := wrapper_of(place):
        wrappers, place = f"{wrappers}{name}+", place[len(name) + 1 :]
    if wrappers and "://" not in place:
        place = place.partition("?")[0]
    manifest = read_manifest(open_storage(url, options=options))
    origin, query = manifest.header.origin, url[len(wrappers) + len(place) :]
    if "?" in origin:
        query = query.replace("?", "&")
    return manifest, f"{wrappers}{origin}{query}" if origin else url


def read_manifest(storage: Storage) -> Manifest:
    """The manifest at a storage's root, read past wrappers. Raises DatasetError where there is none, it is damaged, or half generated."""
    storage = innermost(storage)
    root = local_root(storage)
    if root is not None:
        return load_manifest(root)
    if not exists(storage, MANIFEST):
        if exists(storage, MARKER):
            raise DatasetError(
                f"the dataset at {storage.url} is half generated",
                remedy="finish it: run the same iobench generate again",
            )
        raise DatasetError(
            f"no dataset at {storage.url} (no {MANIFEST})",
            remedy=f"generate one: iobench generate NAME --to {storage.url}",
        )
    header = parse_header(read_object(storage, MANIFEST), where=f"{storage.url}/{MANIFEST}")
    tables = {name: read_object(storage, name) for name in (SAMPLES, SHARDS)}
    return assemble(header, tables.__getitem__, lambda name: hash_bytes(tables[name]))


def innermost(storage: Storage) -> Storage:
    """The storage behind all wrappers."""
    while (inner := getattr(storage, "inner", None)) is not None:
        storage = inner
    return storage


def local_root(storage: Storage) -> Path | None:
    """The directory of a storage whose keys are local files; None for any other."""
    root = getattr(storage, "root", None)
    return root if isinstance(root, Path) else None


def dataset_marker(storage: Storage) -> str:
    """The key that a dataset is locked by: its marker, or the manifest where it has none.

    Scanned data has no marker, since iobench did not write it.
    """
    root = local_root(innermost(storage))
    if root is not None and not (root / MARKER).exists() and (root / MANIFEST).exists():
        return MANIFEST
    return MARKER


def read_object(storage: Storage, key: str) -> bytes:
    """All of a small object. Raises StorageError, also for what is no regular file."""
    root = local_root(storage)
    if root is not None:
        _require_regular(root / key)
    size = storage.size(key)
    alignment = storage.alignment
    buffer = private(-(-max(size, 1) // alignment) * alignment, prefault=False).array.data
    if storage.read_into(key, 0, buffer) < size:
        raise StorageError(f"{key} became shorter while it was read")
    return bytes(buffer[:size])


def _require_regular(path: Path) -> None:
    """A FIFO would be waited for, without an end. What is not there is the storage's to tell."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise StorageError(
            f"cannot read {path}: it is no regular file",
            remedy="look at what it is, and remove it by hand",
        )


def exists(storage: Storage, key: str) -> bool:
    """Raises StorageError for anything but a clear answer."""
    try:
        storage.size(key)
    except MissingObjectError:
        return False
    return True

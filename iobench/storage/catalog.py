"""What lies at the root of a storage: objects, and whether they exist."""

from __future__ import annotations

from pathlib import Path

from ..base.beneath import NoFileError
from ..base.buffers import private
from ..base.errors import MissingObjectError, ShortObjectError, StorageError
from ..record.manifest import MANIFEST, MARKER
from .base import Files, Storage, Wrapping


def innermost(storage: Storage) -> Storage:
    """The storage behind all wrappers."""
    while isinstance(storage, Wrapping):
        storage = storage.inner
    return storage


def local_root(storage: Storage) -> Path | None:
    """The directory of a storage of local files; None for any other storage."""
    return storage.root if isinstance(storage, Files) else None


def dataset_marker(storage: Storage) -> str:
    """The key to lock a dataset by: its marker, or its manifest if it has no marker.

    Scanned data has no marker, since iobench did not write it.
    """
    root = local_root(innermost(storage))
    if root is not None and not (root / MARKER).exists() and (root / MANIFEST).exists():
        return MANIFEST
    return MARKER


def read_object(storage: Storage, key: str, *, max_bytes: int | None = None) -> bytes:
    """The whole of a small object. Raises StorageError, also if it is over ``max_bytes``."""
    size = storage.size(key)
    if max_bytes is not None and size > max_bytes:
        raise StorageError(
            f"{key} has {size:,} bytes, more than the {max_bytes:,} that iobench accepts",
            remedy="check that the file is one that iobench wrote",
        )
    alignment = storage.alignment
    buffer = private(-(-max(size, 1) // alignment) * alignment, prefault=False).array.data
    if storage.read_into(key, 0, buffer) < size:
        raise ShortObjectError(f"{key} became shorter while it was read")
    return bytes(buffer[:size])


def exists(storage: Storage, key: str) -> bool:
    """Whether the object exists. Raises StorageError where that is not clear, or it is no file."""
    try:
        storage.size(key)
    except MissingObjectError as error:
        if isinstance(error.__cause__, NoFileError):
            raise
        return False
    return True

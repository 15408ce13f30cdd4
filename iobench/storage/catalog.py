"""What lies at a storage's root: objects, and whether they are there."""

from __future__ import annotations

from pathlib import Path

from ..beneath import NoFileError
from ..buffers import private
from ..errors import MissingObjectError, ShortObjectError, StorageError
from ..schema.manifest import MANIFEST, MARKER
from .base import Storage, Wrapping


def innermost(storage: Storage) -> Storage:
    """The storage behind all wrappers."""
    while isinstance(storage, Wrapping):
        storage = storage.inner
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


def read_object(storage: Storage, key: str, *, max_bytes: int | None = None) -> bytes:
    """All of a small object. Raises StorageError, also for one of more than ``max_bytes``."""
    size = storage.size(key)
    if max_bytes is not None and size > max_bytes:
        raise StorageError(
            f"{key} has {size:,} bytes, {max_bytes:,} at most make sense: it is not iobench's"
        )
    alignment = storage.alignment
    buffer = private(-(-max(size, 1) // alignment) * alignment, prefault=False).array.data
    if storage.read_into(key, 0, buffer) < size:
        raise ShortObjectError(f"{key} became shorter while it was read")
    return bytes(buffer[:size])


def exists(storage: Storage, key: str) -> bool:
    """Raises StorageError for anything but a clear answer; what is no file is none."""
    try:
        storage.size(key)
    except MissingObjectError as error:
        if isinstance(error.__cause__, NoFileError):
            raise
        return False
    return True

"""The marker that names a place's dataset; read before anything is overwritten or removed."""

from __future__ import annotations

from typing import Any

from ..documents import MAX_DOCUMENT_BYTES, parse_json
from ..errors import DatasetError, MissingObjectError
from ..schema.manifest import MARKER
from ..storage.base import Storage
from ..storage.catalog import local_root, read_object


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

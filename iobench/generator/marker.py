"""The marker that says whose a place is: read before anything is written over, or removed."""

from __future__ import annotations

from typing import Any

from ..documents import MAX_DOCUMENT_BYTES, parse_json
from ..errors import DatasetError, MissingObjectError
from ..schema.manifest import MARKER
from ..storage.base import Storage
from ..storage.catalog import local_root, read_object


def read_marker(storage: Storage) -> dict[str, Any] | None:
    """The marker's contents; None where there is none, or a symbolic link in its place.

    Raises DatasetError for one that is damaged, StorageError, also for what is no regular file.
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
    """Raises DatasetError."""
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

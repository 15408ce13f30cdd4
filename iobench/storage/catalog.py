"""Read a dataset's manifest: mapped from a local directory, fetched from any other storage.

A manifest is data, and data must not decide where requests are sent. The place of the samples that
a manifest names is followed only inside the manifest's own directory; the user has to name any
other place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..beneath import NoFileError
from ..buffers import private
from ..documents import MAX_HEADER_BYTES
from ..errors import (
    DatasetError,
    MissingObjectError,
    ShortObjectError,
    StorageError,
    UsageError,
)
from ..schema.manifest import (
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
from ..text import printable
from . import is_local, open_storage, rewrapped
from .base import Storage


def find_dataset(
    url: str, options: Mapping[str, str] | None = None, *, origin: str | None = None
) -> tuple[Manifest, str]:
    """The manifest at a path or URL, and the URL to read its shards from.

    The two places differ only for a scanned dataset, whose manifest is kept apart from data that
    iobench did not write. ``origin`` says where that data lies; without it, the place in the
    manifest is used only if it is a local path in the manifest's directory. ``url``'s wrappers are
    applied to the data too. ``options`` are for the data's storage. Raises DatasetError,
    StorageError, UsageError.
    """
    manifest = read_manifest(open_storage(url, options=manifest_options(url, options, origin)))
    return manifest, place_of(manifest, url, origin)


def manifest_options(
    url: str, options: Mapping[str, str] | None, origin: str | None
) -> Mapping[str, str] | None:
    """The part of a dataset's ``options`` that applies to reading its manifest.

    None if the data lies at an ``origin`` and the manifest in a local directory.
    """
    return None if origin is not None and is_local(url) else options


def place_of(manifest: Manifest, url: str, origin: str | None = None) -> str:
    """The URL to read the shards of a manifest at ``url`` from (see find_dataset).

    Raises UsageError.
    """
    said = manifest.header.origin
    if origin is not None:
        if not said:
            raise UsageError(
                f"--origin is for scanned data, but {url} holds its own shards",
                remedy="leave --origin out",
            )
        return rewrapped(url, origin)
    if not said:
        return url
    if manifest.root is None or not _lies_in(said, manifest.root):
        raise UsageError(
            f"the manifest at {url} says that its samples lie at '{printable(said, 100)}', but "
            "iobench does not follow a manifest to another place",
            remedy="if that is your data, add --origin and its URL (in Python: origin=)",
        )
    return rewrapped(url, said)


def _lies_in(place: str, folder: Path) -> bool:
    """Whether a place is a local path in ``folder``, with all symbolic links resolved."""
    if "://" in place or "\0" in place or not place.startswith("/"):
        return False
    try:
        return Path(place).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a loop of symbolic links
        return False


def read_manifest(storage: Storage) -> Manifest:
    """The manifest at a storage's root, read without the storage's wrappers.

    Raises DatasetError if there is none, or if it is damaged or only half generated; StorageError.
    """
    storage = innermost(storage)
    root = local_root(storage)
    if root is not None:
        return load_manifest(root)
    if not exists(storage, MANIFEST):
        if exists(storage, MARKER):
            raise DatasetError(
                f"the dataset at {storage.url} is only half generated",
                remedy="finish it: run the same iobench generate command again",
            )
        raise DatasetError(
            f"no dataset at {storage.url} (no {MANIFEST})",
            remedy=f"generate one: iobench generate NAME --to {storage.url}",
        )
    header = parse_header(
        read_object(storage, MANIFEST, max_bytes=MAX_HEADER_BYTES),
        where=f"{storage.url}/{MANIFEST}",
    )
    tables = {name: read_object(storage, name) for name in (SAMPLES, SHARDS)}
    return assemble(header, tables.__getitem__, lambda name: hash_bytes(tables[name]))


def innermost(storage: Storage) -> Storage:
    """The storage behind all wrappers."""
    while (inner := getattr(storage, "inner", None)) is not None:
        storage = inner
    return storage


def local_root(storage: Storage) -> Path | None:
    """The directory of a storage of local files; None for any other storage."""
    root = getattr(storage, "root", None)
    return root if isinstance(root, Path) else None


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

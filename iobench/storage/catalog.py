"""A dataset's manifest, wherever it lies: mapped from a directory, fetched from anywhere else.

A manifest is data, and data does not decide where requests go. What it says of its samples' origin
is followed within its own directory alone; any other place is for the user to name.
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
    """The manifest at a path or URL, and the URL where its shards are to be read.

    Both places are the same but for a scanned dataset, whose manifest is kept beside data that
    iobench did not write. ``origin`` says where that data lies; without it the manifest's own word
    is taken only for a local path in the manifest's directory. ``url``'s wrappers are put around
    the data. ``options`` are the data's storage's. Raises DatasetError, StorageError, UsageError.
    """
    manifest = read_manifest(open_storage(url, options=manifest_options(url, options, origin)))
    return manifest, place_of(manifest, url, origin)


def manifest_options(
    url: str, options: Mapping[str, str] | None, origin: str | None
) -> Mapping[str, str] | None:
    """Those of a dataset's ``options`` that its manifest is read with.

    Where the data lies at an ``origin``, a manifest in a directory of this host has none of them.
    """
    return None if origin is not None and is_local(url) else options


def place_of(manifest: Manifest, url: str, origin: str | None = None) -> str:
    """Where the shards of a manifest at ``url`` are to be read (see find_dataset).

    Raises UsageError.
    """
    said = manifest.header.origin
    if origin is not None:
        if not said:
            raise UsageError(
                f"--origin is for scanned data, and {url} holds its shards itself",
                remedy="leave --origin out",
            )
        return rewrapped(url, origin)
    if not said:
        return url
    if manifest.root is None or not _lies_in(said, manifest.root):
        raise UsageError(
            f"the manifest at {url} says that its samples lie at '{printable(said, 100)}', and nothing is "
            "read elsewhere because a manifest says so",
            remedy="if that is your data, add --origin and its URL (in Python: origin=)",
        )
    return rewrapped(url, said)


def _lies_in(place: str, folder: Path) -> bool:
    """Whether a place is a plain local path to a folder or below it, after all links."""
    if "://" in place or "\0" in place or not place.startswith("/"):
        return False
    try:
        return Path(place).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a loop of links
        return False


def read_manifest(storage: Storage) -> Manifest:
    """The manifest at a storage's root, read past wrappers.

    Raises DatasetError where there is none, it is damaged, or half generated.
    """
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
            remedy=(
                f"to measure data of yours, take it up first: iobench scan {storage.url} --save "
                f"mine.yaml; or generate data: iobench generate NAME --to {storage.url}"
            ),
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

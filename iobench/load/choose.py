"""Resolve the reader's settings for one dataset on one storage, and make the reader."""

from __future__ import annotations

from ..base.errors import UsageError
from ..data.dataset import read_by_blocks
from ..data.formats import FORMATS
from ..record.manifest import Manifest
from ..settings.workload import ReaderSpec
from ..storage.base import MaybeDirect, Storage
from ..storage.local.mapped import MappedStorage
from ..storage.local.storage import LocalStorage
from ..storage.s3.storage import S3Storage
from ..storage.simulated.memory import MemoryStorage
from .blocks import BlockReader
from .reader import BatchReader


def with_map(spec: ReaderSpec, storage: Storage) -> ReaderSpec:
    """Resolve ``reader.mmap: auto``: map local files, unless other settings issue reads."""
    if spec.mmap != "auto":
        return spec
    issued = spec.direct is True or spec.engine in ("io_uring", "event_loop")
    local = isinstance(storage, MemoryStorage) or (
        isinstance(storage, LocalStorage) and not storage.direct
    )
    return spec.model_copy(update={"mmap": local and not issued})


def use_direct(spec: ReaderSpec, storage: Storage, manifest: Manifest) -> bool:
    """Return whether to read with O_DIRECT.

    ``reader.direct: auto`` means: if the storage supports it and ``reader.mmap`` is off.
    """
    spec = with_map(spec, storage)
    if spec.direct != "auto" or spec.mmap:
        return spec.direct is True
    return isinstance(storage, MaybeDirect) and storage.supports_direct(manifest.key(0))


def is_sequential(spec: ReaderSpec, manifest: Manifest) -> bool:
    """Return whether to read sequentially.

    ``reader.access: auto`` means: if shards hold several samples, unless the format prefers random
    access, as token files do.
    """
    if spec.access != "auto":
        return spec.access == "sequential"
    if FORMATS.open(manifest.spec.format).access == "random":
        return False
    return manifest.sample_count > manifest.shard_count


def reads_ahead(spec: ReaderSpec, manifest: Manifest) -> bool:
    """Return whether the reader issues requests of later batches where a batch has too few."""
    return spec.read_ahead is not False and not read_by_blocks(manifest.spec)


def make_reader(
    manifest: Manifest, storage: Storage, spec: ReaderSpec, *, bytes_only: bool = False
) -> BatchReader:
    """Make the reader for this dataset's format; this reads nothing.

    Raises UsageError for settings that the dataset or its storage does not support.
    """
    spec = with_map(spec, storage)
    # Samples in memory stand for the storage where what it costs is left out.
    if spec.engine == "io_uring" and not isinstance(storage, LocalStorage | MemoryStorage):
        raise UsageError(
            f"reader.engine=io_uring reads local files, and {storage.url} has none",
            remedy="use --set reader.engine=threads",
        )
    if spec.engine == "event_loop" and not isinstance(storage, S3Storage | MemoryStorage):
        raise UsageError(
            f"reader.engine=event_loop reads from S3, and {storage.url} is something else",
            remedy="use --set reader.engine=threads",
        )
    if spec.mmap:
        storage = _mapped(storage, random=not is_sequential(spec, manifest))
    if read_by_blocks(manifest.spec):
        if spec.read_ahead is True:
            raise UsageError(
                f"reader.read_ahead cannot be used: format '{manifest.spec.format}' is read by "
                "whole blocks",
                remedy="use --set reader.read_ahead=auto",
            )
        return BlockReader(manifest, storage, spec, bytes_only=bytes_only)
    if spec.columns is not None:
        raise UsageError(
            f"reader.columns cannot be used: format '{manifest.spec.format}' has no columns",
            remedy="use --set reader.columns=null",
        )
    return BatchReader(manifest, storage, spec, bytes_only=bytes_only)


def _mapped(storage: Storage, *, random: bool) -> Storage:
    if isinstance(storage, MemoryStorage):
        return storage  # memory needs no map
    if not isinstance(storage, LocalStorage) or storage.direct:
        raise UsageError(
            f"reader.mmap needs local files, and {storage.url} cannot be mapped",
            remedy="use --set reader.mmap=false, or a local directory",
        )
    return MappedStorage(storage.root, random=random)

"""Why a process that reads through memory maps died, as far as that can be told afterwards.

Source: mmap(2): SIGBUS is sent for access to a page of the mapping that lies beyond the end of the
mapped file, so also when the file became shorter; and for a page that the device does not deliver.
"""

from __future__ import annotations

from ..errors import BusError, StorageError, WorkerError
from ..units import format_count
from .null import AnyReader
from .reader import BatchReader


def cause_of_death(error: WorkerError, reader: AnyReader | None) -> StorageError | None:
    """The error that names the shard, where a process that read through maps died of one.

    None where the reader maps nothing, and where nothing is known but that the process died.
    torch does not always say which signal ended a worker, so a shard that is too short is enough.
    """
    if not isinstance(reader, BatchReader) or reader.mapped is None:
        return None
    found = _shortened(reader)
    if found is not None or not isinstance(error, BusError):
        return found
    return StorageError(
        "a mapped file of the dataset could not be read (SIGBUS): its device failed, or it was "
        "shorter for a while",
        remedy="see the kernel log; reader.mmap=false reports what the device says",
    )


def _shortened(reader: BatchReader) -> StorageError | None:
    """Of the first shard that ends before the manifest's end of it, or is gone."""
    manifest = reader.manifest
    for key, expected in zip(manifest.keys(), manifest.shards["size"].tolist(), strict=True):
        try:
            size = reader.storage.size(key)
        except StorageError as error:
            return error
        if size < expected:
            return StorageError(
                f"{key} became shorter while it was mapped: it has {format_count(size)} bytes, "
                f"{format_count(expected)} were expected",
                remedy="keep writers away from the data; check it: iobench verify",
            )
    return None

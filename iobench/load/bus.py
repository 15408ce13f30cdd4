"""Find out why a process that reads through memory maps died.

Source: mmap(2). The kernel sends SIGBUS for an access to a page beyond the end of the mapped file,
which includes a file that was truncated after it was mapped. It also sends SIGBUS if the device
cannot read the page.
"""

from __future__ import annotations

from ..base.errors import BusError, StorageError, WorkerError
from ..base.units import format_count
from .null import AnyReader
from .reader import BatchReader


def cause_of_death(error: WorkerError, reader: AnyReader | None) -> StorageError | None:
    """Return an error that explains the death of a process that read through memory maps.

    Returns None if the reader maps nothing, or if no cause is known. torch does not always report
    the signal that ended a worker, so a truncated shard is taken as the cause of any death.
    """
    if not isinstance(reader, BatchReader) or reader.mapped is None:
        return None
    found = _shortened(reader)
    if found is not None or not isinstance(error, BusError):
        return found
    return StorageError(
        "a mapped file of the dataset could not be read (SIGBUS): its device failed, or another "
        "program made it shorter for a moment",
        remedy="see the kernel log; with --set reader.mmap=false the device's error is reported",
    )


def _shortened(reader: BatchReader) -> StorageError | None:
    """Return an error for the first shard that is missing or shorter than in the manifest."""
    manifest = reader.manifest
    for key, expected in zip(manifest.keys(), manifest.shards["size"].tolist(), strict=True):
        try:
            size = reader.storage.size(key)
        except StorageError as error:
            return error
        if size < expected:
            return StorageError(
                f"{key} became shorter while it was mapped: it has {format_count(size)} bytes, "
                f"but {format_count(expected)} were expected",
                remedy="let no other program write to the data, and check it: iobench verify",
            )
    return None

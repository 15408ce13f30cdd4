"""Hold a dataset while it is read: together with other readers, and not with writers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ...documents import MAX_HEADER_BYTES
from ...errors import DatasetError, MissingObjectError
from ...schema.manifest import MANIFEST, Manifest, parse_header
from ..base import Storage
from ..catalog import dataset_marker, innermost, read_object
from .lock import Lease, shared


@contextmanager
def reading(
    home: Storage, manifest: Manifest, *, verb: str, break_dead: bool = False
) -> Iterator[Lease]:
    """Hold the dataset whose ``manifest`` was read from ``home``'s root, to read its shards.

    Raises TargetHeldError if a process writes or removes it, DatasetError if one has done so since
    the manifest was read; StorageError.
    """
    with ExitStack() as stack:
        try:
            marker = dataset_marker(home)
            lease = stack.enter_context(shared(home, marker, verb=verb, break_dead=break_dead))
            text = read_object(innermost(home), MANIFEST, max_bytes=MAX_HEADER_BYTES)
        except MissingObjectError as error:
            raise DatasetError(
                f"the dataset at {home.url} was removed while this command started",
                remedy="generate it again",
            ) from error
        if parse_header(text, where=f"{home.url}/{MANIFEST}") != manifest.header:
            raise DatasetError(
                f"the dataset at {home.url} was replaced while this command started",
                remedy="start the command again",
            )
        yield lease

"""Check with one listing that every shard exists and has the size with which it was written."""

from __future__ import annotations

import numpy as np

from ..dataset import ResolvedSpec
from ..errors import StorageError
from ..schema.dataset import DatasetSpec
from ..schema.manifest import Array
from ..schema.packing import DATA
from ..storage.base import Storage


def first_difference(storage: Storage, spec: DatasetSpec, sizes: Array) -> str:
    """Describe the first shard that is missing or has another size; '' if all are right.

    ``sizes``: int64 [shards], bytes. Needs one byte of memory for each shard. Raises StorageError.
    """
    keys = ResolvedSpec.of(spec).keys
    right = np.zeros(len(sizes), np.bool_)
    other: tuple[int, int] | None = None
    for entry in storage.list(DATA):
        shard = keys.number(entry.key)
        if shard is None or shard >= len(sizes):
            continue
        if entry.size == sizes[shard]:
            right[shard] = True
        elif other is None or shard < other[0]:
            other = (shard, entry.size)
    wrong = int(np.argmin(right)) if not right.all() else None
    if wrong is None:
        return ""
    count = len(right) - int(np.count_nonzero(right))
    more = f" ({count} shards of {len(right)} are wrong)" if count > 1 else ""
    if other is not None and other[0] == wrong:
        return f"{keys(wrong)} has {other[1]} bytes, not {int(sizes[wrong])}{more}"
    return f"{keys(wrong)} is missing{more}"


def require_shards(storage: Storage, spec: DatasetSpec, sizes: Array) -> None:
    """Raise StorageError if a shard that was just written is missing or has another size."""
    if wrong := first_difference(storage, spec, sizes):
        raise StorageError(
            f"the dataset at {storage.url} is not complete after writing it: {wrong}",
            remedy="find out what changes files there, and run the same command again",
        )

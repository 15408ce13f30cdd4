"""What a folder's files are: their format, and the content of one sample."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..storage.base import Entry
from .samples import suffix_of

FORMATS = {
    ".tar": "tar",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".parquet": "parquet",
    ".parq": "parquet",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".lmdb": "lmdb",
}
"""Formats of shards by suffix; all other files are one sample each."""

LMDB_FILE = "data.mdb"
"""The name that LMDB gives its file in a directory, next to ``lock.mdb``."""

CONTENTS = {".jpg": ("jpeg",), ".jpeg": ("jpeg",), ".npz": ("npz", "arrays")}
"""Contents that are decoded, the cheapest first; all others are delivered as raw bytes."""

_PART_OF_MANY = re.compile(r"(.*)[-_.]\d+-of-\d+$")  # for example 'train.tfrecord-00000-of-01024'


class FoundFiles(NamedTuple):
    """The files that are the data, and those that are left out (labels, indices, read-me files)."""

    format: str
    suffix: str
    data: list[Entry]
    left_out: list[Entry]


def shard_suffix(key: str) -> str:
    part = _PART_OF_MANY.match(key)
    return suffix_of(part[1] if part else key)


def _kind(entry: Entry) -> str:
    if entry.key.rpartition("/")[2] == LMDB_FILE:
        return "lmdb"
    suffix = shard_suffix(entry.key)
    return FORMATS.get(suffix) or CONTENTS.get(suffix, ("raw",))[0]


def classify(entries: Sequence[Entry]) -> FoundFiles:
    """Choose the kind of file that holds most of the bytes. Empty and hidden files are left out.

    If that kind is no format of shards, each of its files is one sample.
    """
    visible = [
        entry
        for entry in entries
        if entry.size and not any(part.startswith(".") for part in entry.key.split("/"))
    ]
    weight: dict[str, int] = {}
    for entry in visible:
        name = _kind(entry)
        weight[name] = weight.get(name, 0) + entry.size
    if not weight:
        return FoundFiles("files", "", [], list(entries))
    chosen = max(weight, key=lambda name: weight[name])
    data = [entry for entry in visible if _kind(entry) == chosen]
    taken = {entry.key for entry in data}
    suffixes = [shard_suffix(entry.key) for entry in data]
    suffix = max(set(suffixes), key=suffixes.count)
    return FoundFiles(
        chosen if chosen in FORMATS.values() else "files",
        suffix,
        data,
        [entry for entry in entries if entry.key not in taken],
    )

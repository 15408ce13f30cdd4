"""What a folder's files are; and their samples, read to learn the content and the checksums."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash

from ...base.buffers import Buffer
from ...base.limits import DECODING_MARGIN
from ...base.units import format_count
from ...storage.base import Entry, Storage
from ...storage.files import ReadWindow
from ..codecs import CODECS
from ..contents import CONTENTS
from ..contents.base import Content
from ..formats import FORMATS
from ..formats.base import Blocks
from ..generator.pool import working_on
from .parquet import opened
from .samples import ShardSamples, damaged, suffix_of

FORMAT_OF = {
    ".tar": "tar",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".parquet": "parquet",
    ".parq": "parquet",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".lmdb": "lmdb",
    ".mds": "mds",
}
"""Formats of shards by suffix; all other files are one sample each."""

LMDB_FILE = "data.mdb"
"""The name that LMDB gives its file in a directory, next to ``lock.mdb``."""

CONTENTS_OF = {".jpg": ("jpeg",), ".jpeg": ("jpeg",), ".npz": ("npz", "arrays")}
"""Contents that are decoded, the cheapest first; all others are delivered as raw bytes."""

_TEXT = re.compile(r"\.(csv|html?|jsonl?|log|md|ndjson|py|rst|toml|tsv|txt|xml|ya?ml)")
"""Suffixes of texts: beside more bytes of other files, they are labels and descriptions."""

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


def has_no_type(key: str) -> bool:
    """Whether it is a part of many that does not say what it is, as ``train-00000-of-01024``."""
    return not shard_suffix(key) and _PART_OF_MANY.match(key) is not None


def _kind(entry: Entry) -> str:
    if entry.key.rpartition("/")[2] == LMDB_FILE:
        return "lmdb"
    suffix = shard_suffix(entry.key)
    if has_no_type(entry.key):
        return "parts"
    other = "text" if _TEXT.fullmatch(suffix) else "raw"
    return FORMAT_OF.get(suffix) or CONTENTS_OF.get(suffix, (other,))[0]


def types_of(keys: Sequence[str]) -> str:
    """The suffixes of these files, and how many have each: ``500 .png, 20 .bmp, 1 without any``."""
    counts = Counter(map(shard_suffix, keys)).most_common()
    shown = [f"{format_count(count)} {suffix or 'without a suffix'}" for suffix, count in counts]
    return ", ".join(shown[:_SHOWN] + (["..."] if len(shown) > _SHOWN else []))


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
    ((suffix, _),) = Counter(shard_suffix(entry.key) for entry in data).most_common(1)
    return FoundFiles(
        chosen if chosen in FORMAT_OF.values() else "files",
        suffix,
        data,
        [entry for entry in entries if entry.key not in taken],
    )


_SHOWN = 5

_PROBES = 64
"""Samples that are read to find what they are, and how much decoding expands them."""

_RUN = 64
"""Consecutive samples that one worker reads in a row."""

_TURNS = 16
"""About how many tasks each worker gets."""


class Contents:
    """The contents of a table's samples, by sample number. Not thread-safe.

    Each block is decoded only once if its samples are requested in order.
    """

    def __init__(
        self, storage: Storage, form: str, codec: str, keys: Sequence[str], table: dict[str, Any]
    ) -> None:
        self.storage = storage
        self.keys = keys
        self.table = table
        self.bytes_read = 0
        self._codec = CODECS.open(codec)
        self.blocks = isinstance(FORMATS.open(form), Blocks)
        self._window = ReadWindow(storage, 0, nbytes=1 << 16) if self.blocks else None
        self._shard: tuple[int, Any] = (-1, None)
        self._block: tuple[int, Any] = (-1, None)
        changes = (
            np.flatnonzero((np.diff(table["shard"]) != 0) | (np.diff(table["offset"]) != 0)) + 1
        )
        self.starts = np.concatenate(([0], changes))  # first sample of each block

    def __getitem__(self, index: int) -> Buffer:
        """Return one sample's content. Raises DatasetError naming the shard, StorageError."""
        key = self.keys[int(self.table["shard"][index])]
        working_on(key)
        offset, stored, size = (
            int(self.table[name][index]) for name in ("offset", "stored", "size")
        )
        try:
            if self._window is not None:
                return self._row(self._window, key, index)
            buffer = np.empty(stored, np.uint8).data
            count = self.storage.read_into(key, offset, buffer)
            self.bytes_read += count
            if count < stored:
                raise damaged(key, f"it ends before byte {offset + stored}")
            if self._codec.plain:
                return buffer
            content = np.empty(size, np.uint8).data
            if self._codec.decompress(buffer, content) != size:
                raise ValueError(f"the sample at byte {offset} holds less than {size} bytes")
            return content
        except ValueError as error:
            raise damaged(key, str(error)) from None

    def _row(self, window: ReadWindow, key: str, index: int) -> Buffer:
        block = int(np.searchsorted(self.starts, index, side="right")) - 1
        first = int(self.starts[block])
        if self._block[0] != block:
            shard = int(self.table["shard"][index])
            if self._shard[0] != shard:
                self._shard = shard, opened(window, window.open(key))[0]
            before = int(np.searchsorted(self.starts, np.searchsorted(self.table["shard"], shard)))
            begin, stored = int(self.table["offset"][index]), int(self.table["stored"][index])
            ends = np.append(self.starts[block + 1 : block + 2], len(self.table["size"]))
            sizes = self.table["size"][first : int(ends[0])]
            rows = self._shard[1].decode(
                block - before,
                None,
                [(begin, window.apart(begin, begin + stored))],
                check=True,
                most=int(sizes.sum()),
            )
            count = len(sizes)
            if rows.count != count:
                raise ValueError(
                    f"the row group at byte {begin} has {rows.count} rows, its footer states "
                    f"{count}"
                )
            self._block = block, rows
            self.bytes_read = window.bytes_read
        content: Buffer = self._block[1].content(index - first)
        return content


def content_of(
    contents: Contents, shards: Sequence[ShardSamples], notes: list[str]
) -> tuple[str, float | None]:
    """Return the content of the samples, and an upper limit for how much decoding expands them.

    Decided by the suffixes of their names, and by reading some of them.
    """
    suffixes = frozenset().union(*(found.suffixes for found in shards))
    names = {CONTENTS_OF.get(suffix, ()) for suffix in suffixes}
    if len(names) != 1 or not (candidates := names.pop()):
        return "raw", None
    total = len(contents.table["size"])
    probes = np.sort(
        np.random.default_rng(0).choice(total, min(_PROBES, total), replace=False)
    ).tolist()
    for name in candidates:
        key, why, expansion = _fits(contents, CONTENTS.open(name), probes)
        if not why:
            return name, expansion
    notes.append(f"samples are delivered as raw bytes: {key} cannot be decoded as {name} ({why})")
    return "raw", None


def _fits(
    contents: Contents, content: Content, probes: Sequence[int]
) -> tuple[str, str, float | None]:
    """(shard, what is wrong with the first sample that is not of this content, expansion)."""
    most = 1.0
    for index in probes:
        sample = contents[index]
        try:
            if content.in_place:
                content.locate(sample)
            else:
                most = max(most, content.decoded_bytes(sample) / max(1, len(sample)))
        except ValueError as error:
            return contents.keys[int(contents.table["shard"][index])], str(error), None
    return "", "", None if content.in_place else most * DECODING_MARGIN


def checksums(
    make: Callable[[], Contents], table: dict[str, Any], run: Any, *, workers: int
) -> tuple[Any, int]:
    """Return xxh3 of each sample's content, and the number of bytes that were read.

    ``make`` makes the Contents of each worker; ``run`` is ``run_tasks``.
    """
    count, mine = len(table["size"]), make()
    runs = -(-count // _RUN)
    # If there are many runs, a task consists of several.
    at_once = max(1, runs // (max(1, workers) * _TURNS))
    starts = np.arange(0, count, _RUN * at_once)
    if mine.blocks:  # tasks begin at blocks, so that each block is decoded once
        blocks = np.unique(np.searchsorted(mine.starts, starts))
        starts = mine.starts[blocks[blocks < len(mine.starts)]]
    ends = [*starts[1:].tolist(), count]

    def begin() -> Callable[[int], tuple[int, Any, int]]:
        contents = make()

        def walk(task: int) -> tuple[int, Any, int]:
            before, first = contents.bytes_read, int(starts[task])
            indices = range(first, ends[task])
            digests = [xxhash.xxh3_64_intdigest(contents[index]) for index in indices]
            return first, np.array(digests, np.uint64), contents.bytes_read - before

        return walk

    digests = np.zeros(count, np.uint64)
    bytes_read = 0
    for first, found, nbytes in run(range(len(starts)), begin, workers=workers):
        digests[first : first + len(found)] = found
        bytes_read += nbytes
    return digests, bytes_read

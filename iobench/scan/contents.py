"""A look into samples that were found: what they are, and their checksums."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import local
from typing import Any

import numpy as np
import xxhash

from ..formats.base import Buffer
from ..registry import CODECS, CONTENTS, FORMATS
from ..storage.base import Storage
from ..storage.window import Window
from .classify import CONTENTS as KNOWN
from .found import Found, damaged
from .parquet import opened

_PROBES = 64
"""Samples that are looked into, to find what they are and by how much decoding expands them."""

_MARGIN = 2.0
"""Decoded samples may be this many times larger than the probes', at most."""

_RUN = 64  # samples that are read by one thread, one after the other


class Contents:
    """The samples of a table, by number; each block is decoded once while its samples are asked for in their order. Not thread-safe."""

    def __init__(
        self, storage: Storage, form: str, codec: str, keys: Sequence[str], table: dict[str, Any]
    ) -> None:
        self.storage = storage
        self.keys = keys
        self.table = table
        self.bytes_read = 0
        self._codec = CODECS.load(codec)
        self.blocks = bool(getattr(FORMATS.load(form), "blocks", False))
        self._window = Window(storage, 0, nbytes=1 << 16) if self.blocks else None
        self._shard: tuple[int, Any] = (-1, None)
        self._block: tuple[int, Any] = (-1, None)
        changes = (
            np.flatnonzero((np.diff(table["shard"]) != 0) | (np.diff(table["offset"]) != 0)) + 1
        )
        self.starts = np.concatenate(([0], changes))  # of blocks

    def __getitem__(self, index: int) -> Buffer:
        """One sample's content. Raises DatasetError naming the shard, StorageError."""
        key = self.keys[int(self.table["shard"][index])]
        offset, stored, size = (
            int(self.table[name][index]) for name in ("offset", "stored", "size")
        )
        try:
            if self._window is not None:
                return self._row(self._window, key, index)
            buffer = memoryview(bytearray(stored))
            count = self.storage.read_into(key, offset, buffer)
            self.bytes_read += count
            if count < stored:
                raise damaged(key, f"it ends before byte {offset + stored}")
            if self._codec.name == "none":
                return buffer
            content = memoryview(bytearray(size))
            if self._codec.decompress(buffer, content) != size:
                raise ValueError(f"the sample at byte {offset} holds less than {size} bytes")
            return content
        except ValueError as error:
            raise damaged(key, str(error)) from None

    def _row(self, window: Window, key: str, index: int) -> Buffer:
        block = int(np.searchsorted(self.starts, index, side="right")) - 1
        first = int(self.starts[block])
        if self._block[0] != block:
            shard = int(self.table["shard"][index])
            if self._shard[0] != shard:
                self._shard = shard, opened(window, window.open(key))[0]
            before = int(np.searchsorted(self.starts, np.searchsorted(self.table["shard"], shard)))
            begin, stored = int(self.table["offset"][index]), int(self.table["stored"][index])
            rows = self._shard[1].decode(
                block - before, None, [(begin, window.apart(begin, begin + stored))], check=False
            )
            count = (
                int(
                    self.starts[block + 1]
                    if block + 1 < len(self.starts)
                    else len(self.table["size"])
                )
                - first
            )
            if rows.count != count:
                raise ValueError(
                    f"the row group at byte {begin} has {rows.count} rows, its footer tells of {count}"
                )
            self._block = block, rows
            self.bytes_read = window.bytes_read
        content: Buffer = self._block[1].content(index - first)
        return content


def content_of(
    contents: Contents, shards: Sequence[Found], notes: list[str]
) -> tuple[str, float | None]:
    """What the samples are, by their names and by a look into some of them; and by how much decoding expands them at most."""
    suffixes = frozenset().union(*(found.suffixes for found in shards))
    names = {KNOWN.get(suffix, ()) for suffix in suffixes}
    if len(names) != 1 or not (candidates := names.pop()):
        return "raw", None
    total = len(contents.table["size"])
    probes = np.sort(
        np.random.default_rng(0).choice(total, min(_PROBES, total), replace=False)
    ).tolist()
    for name in candidates:
        key, why, expansion = _fits(contents, CONTENTS.load(name), probes)
        if not why:
            return name, expansion
    notes.append(
        f"samples are delivered as raw bytes: {key} is no {name} that can be decoded ({why})"
    )
    return "raw", None


def _fits(contents: Contents, content: Any, probes: Sequence[int]) -> tuple[str, str, float | None]:
    """(shard, what is wrong with the first sample that is no such content, expansion)."""
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
    return "", "", None if content.in_place else most * _MARGIN


def checksums(make: Any, table: dict[str, Any], *, workers: int) -> tuple[Any, int]:
    """xxh3 of each sample's content, and the bytes that were read. ``make`` gives each thread its Contents."""
    mine = local()
    made: list[Contents] = []
    digests = np.zeros(len(table["size"]), np.uint64)

    def walk(run: tuple[int, int]) -> None:
        if not hasattr(mine, "contents"):
            mine.contents = make()
            made.append(mine.contents)
        for index in range(*run):
            digests[index] = xxhash.xxh3_64_intdigest(mine.contents[index])

    probe: Contents = make()
    starts = probe.starts if probe.blocks else np.arange(0, len(digests), _RUN)
    with ThreadPoolExecutor(workers) as threads:
        list(
            threads.map(
                walk, zip(starts.tolist(), [*starts[1:].tolist(), len(digests)], strict=True)
            )
        )
    return digests, sum(contents.bytes_read for contents in made)

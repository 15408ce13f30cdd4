"""Readers of single samples, each for a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..base import buffers
from ..data.dataset import ResolvedSpec
from ..load.choose import make_reader
from ..load.engines.base import ends_early
from ..load.reader import BatchReader
from ..record.manifest import Manifest
from ..settings.workload import ReaderSpec
from ..storage.base import OwnReader, ReadByThreads, Storage
from .arrivals import Instants
from .client import Issued, Read, Sequel, issue

Key = Callable[[int], str]

_KEYS = 1 << 16
"""Keys of shards that are kept."""


class SampleReaders:
    """As many readers of single samples as requests may be in flight.

    A sample whose stored bytes are all that is wanted is read by one request, or by several of
    ``spec.block_size``, without what a reader of batches does around it: that costs more than a
    small read. Any other sample is read, decompressed and decoded by such a reader. Memory is
    touched before the first request. Raises UsageError for settings that the dataset does not
    support.
    """

    reads = None  # each request is one sample

    def __init__(
        self, manifest: Manifest, storage: Storage, spec: ReaderSpec, count: int, largest: int
    ) -> None:
        """``largest``: bytes of the largest sample that will be read, as stored."""
        step = storage.alignment
        room = -(-largest // step) * step + 2 * step
        spec = spec.model_copy(update={"block_size": max(4096, step, min(spec.block_size, room))})
        first = make_reader(manifest, storage, spec)
        self._batches: list[BatchReader] = [first]
        self._own: list[OwnReader] = []
        if first.prepares or ResolvedSpec.of(manifest).blocks:
            self._batches += [first.clone() for _ in range(1, count)]
            for reader in self._batches:
                reader.reserve(largest, into_output=False)
            self.readers: list[Read] = [_prepared(reader) for reader in self._batches]
            return
        once = ResolvedSpec.of(manifest).format.one_sample_per_shard
        key = lru_cache(_KEYS)(manifest.key)
        if isinstance(storage, ReadByThreads):
            self._own = [storage.own_reader() for _ in range(count)]
        reads = [one.read_into for one in self._own] or [storage.read_into] * count
        self.readers = [
            _plain(manifest, read, step, key, spec.block_size // step * step, once=once)
            for read in reads
        ]

    def issue(
        self,
        instants: Instants,
        samples: npt.NDArray[np.int64],
        *,
        drain_s: float,
        prepare: Callable[[], None] = lambda: None,
        sequel: Sequel | None = None,
    ) -> Issued:
        """Read ``samples[i]`` at ``instants[i]``; as ``client.issue``."""
        return issue(
            instants,
            samples.tolist(),
            self.readers,
            drain_s=drain_s,
            prepare=prepare,
            sequel=sequel,
        )

    def close(self) -> None:
        for reader in reversed(self._batches):
            reader.close()
        for one in self._own:
            one.close()


def _prepared(reader: BatchReader) -> Read:
    return lambda sample: reader.read(np.array([sample]), None).stats.bytes_read


def _plain(
    manifest: Manifest,
    read_into: Callable[..., int],
    step: int,
    key: Key,
    block_size: int,
    *,
    once: bool,
) -> Read:
    """Reads the stored bytes of a sample, in steps of so many, into memory of its own."""
    shards, offsets, sizes = (manifest.samples[name] for name in ("shard", "offset", "stored"))
    memory = buffers.private(block_size).array.data

    def read(sample: int) -> int:
        name, offset = key(int(shards[sample])), int(offsets[sample])
        end = offset + int(sizes[sample])
        at = offset // step * step
        total = 0
        while at < end:
            length = min(block_size, -(-(end - at) // step) * step)
            whole = not total and at + length >= end
            count = read_into(name, at, memory[:length], once=once and whole)
            if at + count < min(end, at + length):
                raise ends_early(name, at + count, end)
            total += count
            at += length
        return total

    return read

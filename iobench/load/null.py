"""Readers that leave a part of their work out, to measure what the rest can do.

One reads nothing, another one reads but prepares nothing. Also: how many bytes each sample has in
storage and when it reaches the training process.
"""

from __future__ import annotations

import os
import time

import numpy as np
import numpy.typing as npt

from ..data.dataset import ResolvedSpec
from ..data.formats.base import Blocks
from ..record.manifest import Manifest
from ..settings.workload import ReaderSpec
from ..storage.base import Mapped, Storage
from .choose import make_reader
from .reader import BatchReader, BegunBatch
from .requests import Extents, Indices, Stats, too_small


class NullReader:
    """Returns batches of the right size at once; it reads and prepares nothing.

    What remains is the cost of the loader. ``delivered`` holds the bytes that each sample has when
    it reaches the training process.
    """

    def __init__(self, manifest: Manifest, delivered: Indices) -> None:
        self.manifest = manifest
        self._delivered = delivered
        self._stored = stored_bytes(manifest, delivered)
        self._cpu_before: int | None = None
        self.in_place = self.reads_ahead = False
        self.mapped: Mapped | None = None

    def clone(self) -> NullReader:
        return self

    def close(self) -> None:
        return

    def restrict(self, shards: Indices) -> None:
        return

    def reserve(self, largest_batch: int, *, into_output: bool, ahead: int = 0) -> None:
        return

    def settle(self) -> None:
        return

    def room(self, indices: Indices | None = None) -> npt.NDArray[np.int64]:
        return self._delivered if indices is None else self._delivered[indices]

    def read(self, indices: Indices, output: memoryview | None) -> Extents:
        stored = int(self._stored[indices].sum())
        cpu = time.process_time_ns()
        if self._cpu_before is None:
            self._cpu_before = cpu
        stats = Stats(
            len(indices), 0, stored, time.monotonic_ns(), 0, 0, cpu - self._cpu_before, os.getpid()
        )
        return _ready(self._delivered[indices], output, stats)


class ReadyReader:
    """Really reads the stored bytes, and hands over ready samples instead of preparing them.

    ``fetching`` reads them (see ``BatchReader``, ``bytes_only``). What is handed over has the right
    sizes, but is whatever the slot holds. ``delivered`` is that of NullReader.
    """

    def __init__(self, fetching: BatchReader, delivered: Indices) -> None:
        self.manifest = fetching.manifest
        self.in_place = False
        self.reads_ahead = fetching.reads_ahead
        self.mapped: Mapped | None = fetching.mapped
        self._fetching, self._delivered = fetching, delivered

    def clone(self) -> ReadyReader:
        """Return another reader of the same data, as ``BatchReader.clone`` does."""
        return ReadyReader(self._fetching.clone(), self._delivered)

    def close(self) -> None:
        self._fetching.close()

    def restrict(self, shards: Indices) -> None:
        """Be told which shards will be read, as ``BatchReader.restrict``."""
        self._fetching.restrict(shards)

    def reserve(self, largest_batch: int, *, into_output: bool, ahead: int = 0) -> None:
        """Allocate and touch the memory for the stored bytes before the first read."""
        self._fetching.reserve(largest_batch, into_output=False, ahead=ahead)

    def room(self, indices: Indices | None = None) -> npt.NDArray[np.int64]:
        return self._delivered if indices is None else self._delivered[indices]

    def read(self, indices: Indices, output: memoryview | None) -> Extents:
        """Read samples ``indices``; raises as ``BatchReader.read`` does."""
        stats = self._fetching.read(indices, None).stats
        return _ready(self._delivered[indices], output, stats)

    def begin(self, indices: Indices, output: memoryview | None) -> BegunBatch:
        """Issue the requests of a batch, as ``BatchReader.begin`` does."""
        return self._fetching.begin(indices, None)

    def finish(self, begun: BegunBatch, indices: Indices, output: memoryview | None) -> Extents:
        """Wait for a batch that was begun."""
        stats = self._fetching.finish(begun, indices, None).stats
        return _ready(self._delivered[indices], output, stats)

    def settle(self) -> None:
        """Give up all batches that were begun."""
        self._fetching.settle()

    def offers(self, indices: Indices) -> tuple[int, float]:
        """Return the requests of a batch, as ``BatchReader.offers`` does."""
        return self._fetching.offers(indices)


def _ready(lengths: Indices, output: memoryview | None, stats: Stats) -> Extents:
    """Samples of these lengths, one after the other; raises an error where they do not fit."""
    ends = np.cumsum(lengths)
    if output is not None and len(ends) and ends[-1] > len(output):
        raise too_small(int(ends[-1]), len(output))
    return Extents(ends - lengths, lengths, stats)


AnyReader = BatchReader | NullReader | ReadyReader


def stored_bytes(manifest: Manifest, delivered: Indices) -> Indices:
    """Return the stored bytes of each sample.

    For a format that is read by blocks, this is the sample's part of the stored bytes of all
    blocks, in proportion to its size (or to the columns that are read).
    """
    dataset = ResolvedSpec.of(manifest)
    if not dataset.blocks:
        return np.asarray(manifest.samples["stored"])
    ratio = manifest.header.stored_bytes / max(1, manifest.header.sample_bytes)
    sizes = manifest.samples["size"]
    raw = dataset.content.plain  # a sample that is decoded was read as a whole
    return np.asarray((np.minimum(sizes, delivered) if raw else sizes) * ratio).astype(np.int64)


def delivered_bytes(manifest: Manifest, storage: Storage, spec: ReaderSpec) -> Indices:
    """Return how many bytes of each sample reach the training process.

    If the samples are decoded to another size, the first four are decoded, and the ratio of their
    sizes is used for all.
    """
    sizes, dataset = manifest.samples["size"], ResolvedSpec.of(manifest)
    content = dataset.content
    if spec.columns is not None and isinstance(dataset.format, Blocks):
        of = manifest.spec.columns or 1
        sizes = dataset.format.prefix(sizes, columns=spec.columns, of=of)
    if spec.decode and not content.in_place:
        few = np.arange(min(4, manifest.sample_count))
        reader = make_reader(manifest, storage, spec.model_copy(update={"crop": None}))
        try:
            ratio = float(reader.read(few, None).lengths.sum() / sizes[few].sum())
        finally:
            reader.close()
        sizes = np.ceil(sizes * ratio).astype(np.int64)
    return np.asarray(sizes if spec.crop is None else np.minimum(sizes, spec.crop))

"""mosaicml-streaming: reads MDS shards in place, and shuffles samples within and across shards."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import streaming
from streaming.base.constant import TICK

from ...data.dataset import ResolvedSpec
from ...storage.base import local_root
from . import mosaic_compat
from .base import Library, Packed, Source
from .building_blocks import Decoder, Workers, collate

_ALONE = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}

_PATIENCE_S = 10
"""Time for other processes to choose names for their shared memory; ranks do so at one moment."""


class Mosaic(Library):
    """``StreamingDataset(local=...)`` in torch's DataLoader, with its own shuffle and partition.

    The partition is that of one node with all ranks. If the number of samples is not a multiple of
    the number of ranks, it repeats some samples, fewer than there are ranks. In a training, the
    ranks meet at the start of each epoch and share one order; here each rank computes that order
    itself. A killed rank leaves two empty lock files in the temporary folder.
    """

    package = "mosaicml-streaming"
    formats = ("mds",)
    local = True

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        source.check_index()  # it could name files elsewhere, or encodings that run code
        for shard in range(source.manifest.shard_count):
            # Without a shard its threads would wait forever for a download.
            os.stat(source.path(shard) or "")
        self._dataset = _open(source)
        self._loader = Workers(
            self._dataset,
            source.loading,
            batch_size=source.batch_size,
            collate_fn=collate,
            drop_last=source.drop_last,
        )

    def epoch(self, epoch: int) -> Iterator[Packed]:
        self._dataset.next_epoch = epoch  # in shared memory, where persistent workers see it
        return iter(self._loader)

    def close(self) -> None:
        self._loader.stop()
        self._dataset.end()


def _open(source: Source) -> _MdsSamples:
    """Open the dataset, again if another process took the same name.

    Names of shared memory start with the next free number, and two processes may find the same one.
    Raises FileExistsError.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return _MdsSamples(source)
        except FileExistsError:
            if time.monotonic() > deadline:
                raise
            time.sleep(TICK)


class _MdsSamples(streaming.StreamingDataset):  # type: ignore[misc]
    """Adds the decoding to each sample, in the documented way: a subclass with ``__getitem__``."""

    def __init__(self, source: Source) -> None:
        root, index = local_root(source.storage), ResolvedSpec.of(source.manifest).packing.index_key
        assert root is not None
        assert index is not None
        self.decoder = Decoder(source)
        try:
            # With more ranks it would meet them through torch.distributed.
            with _environment(_ALONE):
                super().__init__(
                    local=str((root / index).parent),
                    batch_size=source.batch_size,
                    shuffle=source.reading.shuffle,
                    shuffle_seed=source.seed,
                )
        except BaseException:
            self.end()
            raise
        mosaic_compat.divide_samples(self, rank=source.rank, world=source.world)

    def __getitem__(self, at: Any) -> Any:
        started = time.monotonic_ns()
        row = super().__getitem__(at)
        return self.decoder(row["content"], int(at), started, time.monotonic_ns() - started)

    def end(self) -> None:
        """End its threads, and remove its lock files and shared memory."""
        mosaic_compat.end(self)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

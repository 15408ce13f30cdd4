"""An iterable torch Dataset: each worker streams whole shards through a shuffle buffer."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from .base import Library, Packed, Source
from .building_blocks import SHUFFLE_BUFFER, Collate, Decoder, Sample, Timed, Workers, shared_number


class TorchIterable(Library):
    """``DataLoader(iterable_dataset)``.

    Each epoch has its own order of shards, which is divided among ranks and then workers.
    """

    package = "torch"
    shards_each = True

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._dataset = _Shards(source)
        self._loader = Workers(
            self._dataset,
            source.loading,
            batch_size=source.batch_size,
            collate_fn=Collate(source),
            drop_last=source.drop_last,
        )

    def epoch(self, epoch: int) -> Iterator[Packed]:
        self._dataset.epoch.fill_(epoch)
        return iter(self._loader)

    def close(self) -> None:
        self._loader.stop()


class _Shards(IterableDataset[Sample]):
    def __init__(self, source: Source) -> None:
        self.source = source
        self.decoder = Decoder(source)
        self.epoch = shared_number()  # persistent workers read the next epoch's number here

    def __iter__(self) -> Iterator[Sample]:
        source, epoch = self.source, int(self.epoch)
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        shards = np.arange(source.manifest.shard_count)
        if source.reading.shuffle:
            np.random.default_rng([source.seed, epoch]).shuffle(shards)
        mine = shards[source.rank :: source.world][worker::workers].tolist()
        items: Iterable[Any] = Timed(itertools.chain.from_iterable(map(self._stream, mine)))
        if source.reading.shuffle:
            items = shuffled(items, random.Random(f"{source.seed} {epoch} {source.rank} {worker}"))
        for (index, stored), started, took in items:
            yield self.decoder(stored, index, started, took)

    def _stream(self, shard: int) -> Iterator[tuple[int, bytes]]:
        manifest = self.source.manifest
        first, count = int(manifest.shards["first"][shard]), int(manifest.shards["samples"][shard])
        with self.source.open(shard) as file:
            for index in range(first, first + count):
                file.seek(int(manifest.samples["offset"][index]))
                stored = file.read(int(manifest.samples["stored"][index]))
                yield index, self.source.whole(index, stored)


def shuffled(
    items: Iterable[Any], random_: random.Random, size: int = SHUFFLE_BUFFER
) -> Iterator[Any]:
    """The items in random order: each one is drawn from a buffer of ``size`` items."""
    held: list[Any] = []
    for item in items:
        if len(held) < size:
            held.append(item)
            continue
        place = random_.randrange(size)
        held[place], item = item, held[place]
        yield item
    random_.shuffle(held)
    yield from held

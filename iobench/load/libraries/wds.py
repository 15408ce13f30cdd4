"""webdataset: streams tar shards front to back.

The shards of an epoch are in shuffled order, and samples go through a shuffle buffer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import webdataset

from .base import Library, Packed, Source
from .building_blocks import SHUFFLE_BUFFER, Collate, Decoder, Sample, Timed, Workers


class WebDataset(Library):
    """``webdataset.WebDataset(urls, ...)`` with detshuffle, in torch's DataLoader.

    webdataset itself opens local shards.
    """

    package = "webdataset"
    formats = ("tar",)
    shards_each = True

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._loader: Workers | None = None

    def epoch(self, epoch: int) -> Iterator[Packed]:
        if (
            self._loader is None
            or not self.source.loading.persistent_workers
            or not self.source.loading.workers
        ):
            self.close()
            self._loader = self._build(epoch)
        return iter(self._loader)

    def _build(self, epoch: int) -> Workers:
        """A loader whose pipeline starts at ``epoch``.

        Each iteration of a pipeline is the next epoch of its detshuffle stages, also within a
        persistent worker.
        """
        source = self.source
        shards = source.manifest.shard_count
        pipeline = webdataset.WebDataset(
            [source.path(shard) or f"iobench:{shard}" for shard in range(shards)],
            shardshuffle=shards if source.reading.shuffle else False,
            detshuffle=True,
            seed=source.seed,
            nodesplitter=_Share(source),
            empty_check=False,
        )
        if source.reading.shuffle:
            pipeline = pipeline.compose(
                webdataset.detshuffle(SHUFFLE_BUFFER, SHUFFLE_BUFFER, seed=source.seed)
            )
        for stage in pipeline.pipeline:
            if isinstance(stage, webdataset.detshuffle):
                stage.epoch = epoch - 1
        return Workers(
            pipeline.compose(_Members(source)),
            source.loading,
            batch_size=source.batch_size,
            collate_fn=Collate(source),
            drop_last=source.drop_last,
        )

    def close(self) -> None:
        if self._loader is not None:
            self._loader.stop()


class _Share:
    """Every world-th shard, from the rank's own on. It runs in the process that opens them."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __call__(self, urls: Iterable[Any]) -> Iterator[Any]:
        webdataset.gopen_schemes["iobench"] = _Opener(self.source)
        return itertools.islice(urls, self.source.rank, None, self.source.world)


class _Opener:
    """Opens 'iobench:7', a shard of a storage whose objects are not local files."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __call__(self, url: str, *_: Any, **__: Any) -> BinaryIO:
        return self.source.open(int(url.partition(":")[2]))


class _Members:
    """Samples from webdataset's dictionaries; of several members of a sample, the largest."""

    def __init__(self, source: Source) -> None:
        self.decoder = Decoder(source)
        # iobench's own shards name each member by the number of its sample.
        self.numbered = not source.manifest.header.origin
        numbers = source.manifest.numbers
        self.places = (
            None
            if numbers is None
            else {number: place for place, number in enumerate(numbers.tolist())}
        )

    def __call__(self, stream: Iterable[dict[str, Any]]) -> Iterator[Sample]:
        for found, started, took in Timed(stream):
            members = [value for name, value in found.items() if not name.startswith("__")]
            yield self.decoder(max(members, key=len), self._index(found["__key__"]), started, took)

    def _index(self, key: str) -> int | None:
        if not self.numbered:
            return None
        return int(key) if self.places is None else self.places[int(key)]

"""torchdata.nodes: a pool of threads reads samples, which are batched and prefetched.

It has no worker processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torchdata.nodes as tn

from .base import Library, Packed, Source
from .building_blocks import ByIndex, Collate


class TorchDataNodes(Library):
    """``ParallelMapper(method="thread")`` -> ``Batcher`` -> ``Mapper`` -> ``Prefetcher``.

    ``loader.workers`` are threads.
    """

    package = "torchdata"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._samples = ByIndex(source)
        self._loader: Any = None

    def epoch(self, epoch: int) -> Iterator[Packed]:
        source = self.source
        node = tn.IterableWrapper(source.order(epoch))
        node = tn.ParallelMapper(
            node, self._samples.__getitem__, num_workers=source.loading.workers, method="thread"
        )
        node = tn.Mapper(
            tn.Batcher(node, source.batch_size, drop_last=source.drop_last), Collate(source)
        )
        self.close()
        self._loader = tn.Loader(
            tn.Prefetcher(node, prefetch_factor=source.loading.prefetch_factor)
        )
        return iter(self._loader)

    def close(self) -> None:
        """Release the nodes; they end their threads when they are collected."""
        self._loader = None

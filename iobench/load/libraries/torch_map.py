"""A map-style torch Dataset: each worker opens, reads and decodes one sample at a time.

Most trainings on files do so.
"""

from __future__ import annotations

from collections.abc import Iterator

from .base import Library, Packed, Source
from .building_blocks import ByIndex, Collate, Order, Workers


class TorchMap(Library):
    """``DataLoader(dataset, sampler=shuffled_order)``."""

    package = "torch"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._order = Order(source)
        self._loader = Workers(
            ByIndex(source),
            source.loading,
            batch_size=source.batch_size,
            sampler=self._order,
            collate_fn=Collate(source),
            drop_last=source.drop_last,
        )

    def epoch(self, epoch: int) -> Iterator[Packed]:
        self._order.epoch = epoch
        return iter(self._loader)

    def close(self) -> None:
        self._loader.stop()

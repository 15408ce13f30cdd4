"""grain: a shuffled map of random reads, batched and prefetched by a pool of threads.

The threads end with the iterator.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

# grain warns that JAX is missing, which is not needed here.
logging.getLogger("absl").setLevel(logging.ERROR)
import grain  # noqa: E402

from .base import Library, Packed, Source  # noqa: E402
from .building_blocks import ByIndex, Collate  # noqa: E402


class Grain(Library):
    """``MapDataset.source(...).shuffle(...).batch(...).to_iter_dataset(ReadOptions(...))``.

    ``loader.workers`` are threads.
    """

    package = "grain"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._samples = ByIndex(source)

    def epoch(self, epoch: int) -> Iterator[Packed]:
        source, loading = self.source, self.source.loading
        samples = grain.MapDataset.source(self._samples)
        if source.reading.shuffle:
            samples = samples.shuffle(seed=source.seed + epoch)
        samples = samples[source.rank :: source.world]
        batches = samples.batch(
            source.batch_size, drop_remainder=source.drop_last, batch_fn=Collate(source)
        )
        options = grain.ReadOptions(
            num_threads=loading.workers,
            prefetch_buffer_size=max(1, loading.workers * loading.prefetch_factor),
        )
        return iter(batches.to_iter_dataset(options))

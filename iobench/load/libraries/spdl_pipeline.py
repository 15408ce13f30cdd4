"""SPDL: an asyncio pipeline with a pool of threads.

One stage reads a whole batch of samples, as SPDL's documentation advises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spdl.pipeline import PipelineBuilder

from .base import Library, Packed, Source
from .building_blocks import ByIndex, Collate


class Spdl(Library):
    """``PipelineBuilder().add_source(batches).pipe(read, concurrency=workers).add_sink(...)``.

    ``loader.workers`` are threads.
    """

    package = "spdl"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._samples = ByIndex(source)
        self._collate = Collate(source)

    def epoch(self, epoch: int) -> Iterator[Packed]:
        threads, ahead = max(1, self.source.loading.workers), self.source.loading.prefetch_factor
        builder: Any = PipelineBuilder()  # the type changes with each stage
        pipeline = (
            builder.add_source(self.source.batches(epoch))
            .pipe(self._read, concurrency=threads, output_order="input")
            .add_sink(threads * ahead)
            .build(num_threads=threads)
        )
        with pipeline.auto_stop():
            for batch in pipeline:
                if isinstance(batch, Exception):
                    raise batch
                yield batch

    def _read(self, batch: list[int]) -> Packed | Exception:
        """Read a batch. An error is returned: SPDL drops the batch of a stage that raises."""
        try:
            return self._collate([self._samples[index] for index in batch])
        except Exception as error:
            return error

"""SPDL: an asyncio pipeline with a pool of threads; a stage takes a whole batch of samples, as its documentation advises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spdl.pipeline import PipelineBuilder

from .base import Library, Packed, Source
from .pieces import ByIndex, collate


class Spdl(Library):
    """``PipelineBuilder().add_source(batches).pipe(read, concurrency=workers).add_sink(...)``; ``loader.workers`` are threads."""

    package = "spdl"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._samples = ByIndex(source)

    def epoch(self, epoch: int) -> Iterator[Packed]:
        threads, ahead = max(1, self.source.loading.workers), self.source.loading.prefetch_factor
        builder: Any = PipelineBuilder()  # its types are of each stage's own
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
        """A stage that raises has its batch left out in silence, so what goes wrong is handed on."""
        try:
            return collate([self._samples[index] for index in batch])
        except Exception as error:
            return error

"""Hugging Face datasets, streaming: reads Parquet shards by row group.

Rows go through a shuffle buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import datasets
from datasets.distributed import split_dataset_by_node
from torch.utils.data import IterableDataset

from ...storage.scratch import scratch
from .base import Library, Packed, Source
from .building_blocks import SHUFFLE_BUFFER, Collate, Decoder, Sample, Timed, Workers


class HFDatasets(Library):
    """``load_dataset("parquet", streaming=True)`` in torch's DataLoader.

    With ``shuffle`` and ``split_dataset_by_node``.
    """

    package = "datasets"
    formats = ("parquet",)
    shards_each = True
    local = True

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        library: Any = datasets
        library.disable_progress_bars()
        library.utils.logging.set_verbosity_error()
        paths = [source.path(shard) for shard in range(source.manifest.shard_count)]
        self._held = ExitStack()
        cache = self._held.enter_context(scratch("hf"))  # for its own bookkeeping, never for data
        try:
            rows = library.load_dataset(
                "parquet",
                data_files=paths,
                split="train",
                streaming=True,
                cache_dir=str(cache),
            )
        except BaseException:
            self._held.close()
            raise
        if source.reading.shuffle:
            rows = rows.shuffle(seed=source.seed, buffer_size=SHUFFLE_BUFFER)
        self._rows = split_dataset_by_node(rows, rank=source.rank, world_size=source.world)
        self._loader = Workers(
            _Samples(source, self._rows),
            source.loading,
            batch_size=source.batch_size,
            collate_fn=Collate(source),
            drop_last=source.drop_last,
        )  # fmt: skip

    def epoch(self, epoch: int) -> Iterator[Packed]:
        self._rows.set_epoch(epoch)  # in shared memory, where persistent workers see it
        return iter(self._loader)

    def close(self) -> None:
        self._loader.stop()
        self._held.close()


class _Samples(IterableDataset[Sample]):
    def __init__(self, source: Source, rows: Iterable[dict[str, Any]]) -> None:
        self.decoder = Decoder(source)
        self.rows = rows

    def __iter__(self) -> Iterator[Sample]:
        for row, started, took in Timed(self.rows):
            parts = [value for value in row.values() if isinstance(value, bytes)]
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            yield self.decoder(data, None, started, took)

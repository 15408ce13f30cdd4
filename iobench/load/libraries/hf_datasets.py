"""Hugging Face datasets, streaming: Parquet shards read row group by row group, rows through a shuffle buffer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import datasets
from datasets.distributed import split_dataset_by_node
from torch.utils.data import IterableDataset

from ...storage.scratch import scratch
from .base import Library, Packed, Source
from .pieces import SHUFFLE_BUFFER, Collate, Sample, Timed, Undo, Workers


class HFDatasets(Library):
    """``load_dataset("parquet", streaming=True)`` with ``shuffle`` and ``split_dataset_by_node``, in torch's DataLoader."""

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
        cache = self._held.enter_context(scratch("hf"))  # its own bookkeeping, never data
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
        self._rows.set_epoch(epoch)  # a number in shared memory: workers that last see it, too
        return iter(self._loader)

    def close(self) -> None:
        self._loader.stop()
        self._held.close()


class _Samples(IterableDataset[Sample]):
    def __init__(self, source: Source, rows: Iterable[dict[str, Any]]) -> None:
        self.undo = Undo(source)
        self.rows = rows

    def __iter__(self) -> Iterator[Sample]:
        for row, started, took in Timed(self.rows):
            parts = [value for value in row.values() if isinstance(value, bytes)]
            yield self.undo(parts[0] if len(parts) == 1 else b"".join(parts), None, started, took)

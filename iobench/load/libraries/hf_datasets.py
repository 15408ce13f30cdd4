"""Hugging Face datasets, streaming: reads Parquet shards by row group.

Rows go through a shuffle buffer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import datasets
import tqdm
from datasets.distributed import split_dataset_by_node
from torch.utils.data import IterableDataset

from ...storage.scratch import scratch
from .base import Library, Packed, Source
from .building_blocks import SHUFFLE_BUFFER, Collate, Decoder, Sample, Timed, Workers


def _in_child() -> None:
    """Give a forked worker a lock of tqdm that nobody holds.

    datasets takes it in the worker, even where no bar is shown. A thread of tqdm takes it every ten
    seconds: if it held the lock when the worker was forked, nobody in the worker releases it, and
    the worker would wait for ever.
    """
    tqdm.tqdm.set_lock(threading.RLock())


os.register_at_fork(after_in_child=_in_child)


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
            _Rows(source, self._rows),
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


class _Rows(IterableDataset[Sample]):
    def __init__(self, source: Source, rows: Iterable[dict[str, Any]]) -> None:
        self.decoder = Decoder(source)
        self.rows = rows

    def __iter__(self) -> Iterator[Sample]:
        for row, started, took in Timed(self.rows):
            parts = [value for value in row.values() if isinstance(value, bytes)]
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            yield self.decoder(data, None, started, took)

"""litdata: samples in chunks of its own layout, read in an order that it shuffles within and across chunks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

# litdata can ask PyPI whether there is a newer litdata, and reads once whether it may. iobench sends
# requests to the storage alone.
os.environ.setdefault("LITDATA_DISABLE_VERSION_CHECK", "1")

import litdata
from litdata.streaming.writer import BinaryWriter
from litdata.utilities.env import _DistributedEnv

from ...documents import MAX_DOCUMENT_BYTES, parse_json, read_regular
from .base import Converts, Packed, Source
from .pieces import Sample, Undo, collate, end_workers, worker_arguments

CHUNK_BYTES = "64MB"
"""Of a chunk: what litdata's own documentation and benchmarks use."""

INDEX = "index.json"

_CHUNK = re.compile(r"chunk-[0-9]+-[0-9]+\.bin")

_CONFIG = {
    "compression": None,
    "encryption": None,
    "data_format": ["bytes"],
    "data_spec": '[1, {"type": null, "context": null, "children_spec": []}]',
    "item_loader": "PyTreeLoader",
}
"""What litdata writes of items that are bytes; versions differ in what else they write."""


class LitData(Converts):
    """``StreamingDataset`` and ``StreamingDataLoader`` over chunks that were written once.

    Workers map chunks for as long as they live, and mapped pages can't be evicted; so each epoch has workers of its own, whatever
    ``loader.persistent_workers`` says, or no epoch after the first one would be cold.
    """

    package = "litdata"
    writes = ("chunk-*.bin", "*.index.json", "index.json", "index.json.tmp")

    @classmethod
    def convert(cls, source: Source, folder: Path) -> None:
        """Chunks of the samples' contents, without their codec: litdata has its own."""
        undo = Undo(source)
        writer = BinaryWriter(str(folder), chunk_bytes=CHUNK_BYTES)
        for index in range(source.manifest.sample_count):
            writer[index] = undo(source.stored(index), index, 0, 0).data.tobytes()
        writer.done()
        writer.merge(1)

    @classmethod
    def check(cls, folder: Path, files: Collection[str]) -> None:
        """litdata unpickles items where its index says so, and opens whatever file that names."""
        index = parse_json(read_regular(folder / INDEX, MAX_DOCUMENT_BYTES))
        config = {name: index["config"].get(name) for name in _CONFIG}
        if config != _CONFIG:
            raise ValueError(f"{INDEX} tells of other items than bytes")
        for chunk in index["chunks"]:
            if not _CHUNK.fullmatch(chunk["filename"]) or chunk["filename"] not in files:
                raise ValueError(f"{INDEX} names a file that iobench did not write")

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        assert source.layout is not None
        dataset = litdata.StreamingDataset(
            str(source.layout),
            shuffle=source.reading.shuffle,
            drop_last=source.drop_last,
            seed=source.seed,
            transform=_Samples(source),
        )
        dataset.distributed_env = _DistributedEnv(
            world_size=source.world, global_rank=source.rank, num_nodes=1
        )
        arguments = worker_arguments(
            source.loading.model_copy(update={"persistent_workers": False})
        )
        self._dataset = dataset
        self._loader = litdata.StreamingDataLoader(
            dataset, batch_size=source.batch_size, collate_fn=collate, **arguments
        )

    def epoch(self, epoch: int) -> Iterator[Packed]:
        self._dataset.current_epoch = self._loader.current_epoch = (
            epoch  # the loader counts on from here
        )
        return iter(self._loader)

    def close(self) -> None:
        end_workers(self._loader)


class _Samples:
    """What litdata calls with each item that it has read; how long it took to read, it does not say."""

    def __init__(self, source: Source) -> None:
        self.undo = Undo(source)

    def __call__(self, item: Any) -> Sample:
        return self.undo(item, None, time.monotonic_ns(), 0)

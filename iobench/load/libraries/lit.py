"""litdata: samples in chunks of its own layout, shuffled within and across chunks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

# litdata can ask PyPI whether there is a newer version, and reads this variable once, when it is
# imported. iobench sends requests to the storage only.
os.environ.setdefault("LITDATA_DISABLE_VERSION_CHECK", "1")

import litdata
from litdata.streaming.writer import BinaryWriter

from ...base.documents import MAX_DOCUMENT_BYTES, parse_json, read_regular
from ..torch_compat import end_workers
from . import litdata_compat
from .base import Converts, Packed, Source
from .building_blocks import Decoder, Sample, collate, worker_arguments

CHUNK_BYTES = "64MB"
"""The size of a chunk in litdata's documentation and benchmarks."""

INDEX = "index.json"

_CHUNK = re.compile(r"chunk-[0-9]+-[0-9]+\.bin")

_CONFIG = {
    "compression": None,
    "encryption": None,
    "data_format": ["bytes"],
    "data_spec": '[1, {"type": null, "context": null, "children_spec": []}]',
    "item_loader": "PyTreeLoader",
}
"""What litdata writes for items of bytes. Versions differ in their other entries."""


class LitData(Converts):
    """``StreamingDataset`` and ``StreamingDataLoader`` over chunks that were written once.

    Workers map chunks as long as they live, and mapped pages can't be evicted. So each epoch has
    new workers, whatever ``loader.persistent_workers`` says: otherwise no epoch after the first
    would be cold.
    """

    package = "litdata"
    writes = ("chunk-*.bin", "*.index.json", "index.json", "index.json.tmp")

    @classmethod
    def convert(cls, source: Source, folder: Path) -> None:
        """Write chunks of the decoded samples, without the dataset's codec: litdata has its own."""
        decoder = Decoder(source)
        writer = BinaryWriter(str(folder), chunk_bytes=CHUNK_BYTES)
        for index in range(source.manifest.sample_count):
            writer[index] = decoder(source.stored(index), index, 0, 0).data.tobytes()
        writer.done()
        writer.merge(1)

    @classmethod
    def check(cls, folder: Path, files: Collection[str]) -> None:
        """Check the index: it can make litdata unpickle items, and names the files to open."""
        index = parse_json(read_regular(folder / INDEX, MAX_DOCUMENT_BYTES))
        config = {name: index["config"].get(name) for name in _CONFIG}
        if config != _CONFIG:
            raise ValueError(f"{INDEX} describes items that are not bytes")
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
            transform=_Items(source),
        )
        litdata_compat.set_rank(dataset, rank=source.rank, world=source.world)
        arguments = worker_arguments(
            source.loading.model_copy(update={"persistent_workers": False})
        )
        self._dataset = dataset
        self._loader = litdata.StreamingDataLoader(
            dataset, batch_size=source.batch_size, collate_fn=collate, **arguments
        )

    def epoch(self, epoch: int) -> Iterator[Packed]:
        # The loader counts on from here.
        self._dataset.current_epoch = self._loader.current_epoch = epoch
        return iter(self._loader)

    def close(self) -> None:
        end_workers(self._loader)


class _Items:
    """litdata calls this with each item it has read; it does not say how long the read took."""

    def __init__(self, source: Source) -> None:
        self.decoder = Decoder(source)

    def __call__(self, item: Any) -> Sample:
        return self.decoder(item, None, time.monotonic_ns(), 0)

"""``eager``: safetensors reads whole files at once, as a script does that calls ``load_file``.

``load_file`` returns maps of a local file, so each page is touched before a tensor counts as
loaded. From other storages the object is fetched into memory first, and ``load`` copies out of it.
"""

from __future__ import annotations

import time
from typing import ClassVar

from safetensors.torch import load, load_file

from ...base.buffers import private
from ...load.engines.base import Extent
from ...storage.base import Files
from ..weights import WeightShard, require_memory
from .base import Loaded, Stage
from .common import (
    LoadClock,
    Prepared,
    PreparedLoader,
    concurrency_option,
    library_errors,
    size_option,
    touch,
)
from .direct import CONCURRENCY, OBJECT_BLOCK, engine_for


class EagerLoader(PreparedLoader):
    """``block_size`` and ``concurrency`` are those of the requests that fetch an object."""

    name = "eager"
    library = "safetensors"
    can_leave_out: ClassVar = frozenset({"device"})

    def __init__(
        self, *, block_size: int | str = OBJECT_BLOCK, concurrency: int | str = CONCURRENCY
    ) -> None:
        self._block_size = size_option("block_size", block_size)
        self._concurrency = concurrency_option(concurrency)

    def take_memory(self, prepared: Prepared) -> None:
        """Check that there is room; an object is fetched whole, and copied once for ``load``."""
        largest = max(shard.size for shard in prepared.weights.shards)
        fetched = 0 if isinstance(prepared.storage, Files) else 2 * largest
        require_memory(prepared.weights.nbytes + fetched, "the model's weights")

    def run(self, prepared: Prepared, clock: LoadClock, leave_out: Stage | None) -> Loaded:
        total: int | None = None
        for shard in prepared.weights.shards:
            where = f"{prepared.storage.url}/{shard.key}"
            if isinstance(prepared.storage, Files):
                path = prepared.storage.local_path(shard.key)
                with library_errors(where):
                    tensors = load_file(path)
            else:
                data = self._fetch(prepared, shard)
                total = (total or 0) + shard.size
                with library_errors(where):
                    tensors = load(data)
            for name, tensor in tensors.items():
                began = time.perf_counter_ns()
                touch(tensor)
                clock.add(name, tensor.nbytes, tensor, began)
        return clock.ended(bytes_read=total)

    def _fetch(self, prepared: Prepared, shard: WeightShard) -> bytes:
        """The whole object; ``load`` takes nothing else than bytes."""
        storage = prepared.storage
        engine = engine_for(storage, self._concurrency, self._block_size)
        try:
            room = shard.size + -shard.size % storage.alignment
            memory = private(room, prefault=False).array.data
            engine.read([Extent(shard.key, 0, room, 0, shard.size)], memory)
            return bytes(memory[: shard.size])
        finally:
            engine.close()

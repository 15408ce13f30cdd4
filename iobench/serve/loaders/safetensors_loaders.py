"""The loaders of safetensors' own library.

``mmap`` and ``prefetch``: it maps the files, and each tensor is copied out of its map. So do most
engines: a page that is not in the page cache is read when the copy gets there, by one thread.
``prefetch`` fills the page cache with large reads meanwhile.

``eager``: it reads whole files at once, as a script does that calls ``load_file``, which returns
maps of a local file, so each page is touched before a tensor counts as loaded. From other storages
the object is fetched into memory first, and ``load`` copies out of it.
"""

from __future__ import annotations

import mmap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file

from ...base.buffers import Buffer, private
from ...load.engines.base import Extent
from ...load.engines.threads import ThreadEngine
from ...storage.base import Files
from ..weights import WeightShard, ranges_to_read, require_memory
from .base import Loaded, Stage
from .common import (
    LoadClock,
    OwnTensor,
    Prepared,
    PreparedLoader,
    block_size_option,
    concurrency_option,
    library_errors,
    memory_for,
    tensors_of_files,
    touch,
    view,
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
        self._block_size = block_size_option(block_size)
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


class MmapLoader(PreparedLoader):
    """File after file, tensor after tensor in the order of the offsets."""

    name = "mmap"
    library = "safetensors"
    local_only = True
    sharing: ClassVar = frozenset({"all", "sliced"})
    can_leave_out: ClassVar = frozenset({"assembly", "device"})

    def __init__(self) -> None:
        self._memory: Buffer = memoryview(b"")

    def take_memory(self, prepared: Prepared) -> None:
        """Places for all tensors, as an engine has its parameters before it loads."""
        if not prepared.on_device:
            room = sum(own.room for own in prepared.tensors)
            self._memory = memory_for(room, "the model's weights").data

    def run(self, prepared: Prepared, clock: LoadClock, leave_out: Stage | None) -> Loaded:
        end, files = 0, tensors_of_files(prepared)
        for path, tensors in files:
            if leave_out == "assembly":
                _touch_file(path)
                continue
            with library_errors(str(path)), safe_open(path, framework="pt") as file:
                for own in tensors:
                    began = time.perf_counter_ns()
                    tensor = _mapped(file, own)
                    if not prepared.on_device:
                        place = view(self._memory, end, own.stored.dtype, own.shape)
                        tensor = place.copy_(tensor)
                        end += own.room
                    elif leave_out == "device":
                        touch(tensor)
                    clock.add(own.stored.name, own.nbytes, tensor, began)
        return clock.ended()

    def close(self) -> None:
        self._memory = memoryview(b"")
        super().close()


class PrefetchLoader(MmapLoader):
    """As mmap, with ``concurrency`` threads that read ``block_size`` bytes at a time."""

    name = "prefetch"

    def __init__(self, *, block_size: int | str = 16 << 20, concurrency: int | str = 8) -> None:
        super().__init__()
        self._block_size = block_size_option(block_size)
        self._concurrency = concurrency_option(concurrency)
        self._engine: ThreadEngine | None = None

    def take_memory(self, prepared: Prepared) -> None:
        super().take_memory(prepared)
        self._engine = ThreadEngine(
            prepared.storage, concurrency=self._concurrency, block_size=self._block_size
        )
        self._engine.reserve()

    def run(self, prepared: Prepared, clock: LoadClock, leave_out: Stage | None) -> Loaded:
        engine = self._engine
        assert engine is not None
        ranges = ranges_to_read(prepared.weights, prepared.share)
        wanted = [Extent(key, start, end - start, 0, end - start) for key, start, end in ranges]
        try:
            reading = engine.begin(wanted, None)
            loaded = super().run(prepared, clock, leave_out)
            return replace(loaded, bytes_read=engine.wait(reading))
        except BaseException:
            engine.settle()
            raise

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        super().close()


def _mapped(file: Any, own: OwnTensor) -> torch.Tensor:
    """A view of the map, or of a few pages of it; ``safe_open`` has no types."""
    name, part = own.stored.name, own.part
    if part is None:
        tensor: torch.Tensor = file.get_tensor(name)
        return tensor
    wanted, rows = slice(part.start, part.stop), file.get_slice(name)
    cut: torch.Tensor = rows[wanted] if part.axis == 0 else rows[:, wanted]
    return cut


def _touch_file(path: Path) -> None:
    with (
        library_errors(str(path)),
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as area,
    ):
        pages = np.frombuffer(area, np.uint8)[:: mmap.PAGESIZE]
        pages.sum()
        del pages  # the map can't be closed before

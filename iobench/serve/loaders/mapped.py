"""``mmap`` and ``prefetch``: safetensors maps the files, and each tensor is copied out of its map.

So do most engines: a page that is not in the page cache is read when the copy gets there, by one
thread. ``prefetch`` fills the page cache with large reads meanwhile.
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

from ...base.buffers import Buffer
from ...load.engines.base import Extent
from ...load.engines.threads import ThreadEngine
from ..share import ranges_to_read
from .base import Loaded, Stage
from .common import (
    LoadClock,
    OwnTensor,
    Prepared,
    PreparedLoader,
    concurrency_option,
    library_errors,
    memory_for,
    size_option,
    tensors_of_files,
    touch,
    view,
)


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
        self._block_size = size_option("block_size", block_size)
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

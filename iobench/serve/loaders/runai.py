"""``runai``: Run:ai Model Streamer, whose threads read all files and yield tensors as they come."""

from __future__ import annotations

import os
import time
from typing import ClassVar

from runai_model_streamer import SafetensorsStreamer

from .base import Loaded, Stage
from .common import (
    LoadClock,
    Prepared,
    PreparedLoader,
    block_size_option,
    concurrency_option,
    library_errors,
    tensors_of_files,
)


class RunaiLoader(PreparedLoader):
    """``block_size`` and ``concurrency`` as the library's environment variables have them."""

    name = "runai"
    library = "runai-model-streamer"
    local_only = True
    can_leave_out: ClassVar = frozenset({"device"})

    def __init__(self, *, block_size: int | str = 2 << 20, concurrency: int | str = 16) -> None:
        self._settings = {
            "RUNAI_STREAMER_CHUNK_BYTESIZE": str(block_size_option(block_size)),
            "RUNAI_STREAMER_CONCURRENCY": str(concurrency_option(concurrency)),
        }

    def run(self, prepared: Prepared, clock: LoadClock, leave_out: Stage | None) -> Loaded:
        paths = [str(path) for path, _ in tensors_of_files(prepared)]
        os.environ.update(self._settings)  # read when a streamer is made
        with library_errors(prepared.storage.url), SafetensorsStreamer() as streamer:
            streamer.stream_files(paths)
            began = time.perf_counter_ns()
            for name, tensor in streamer.get_tensors():
                clock.add(name, tensor.nbytes, tensor, began)
                began = time.perf_counter_ns()
        return clock.ended()

"""``fastsafetensors``: whole files into memory by threads with bounce buffers, tensors as views."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from fastsafetensors import SafeTensorsFileLoader, SingleGroup

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


class FastsafetensorsLoader(PreparedLoader):
    """``block_size``: of a bounce buffer; ``concurrency``: the library's threads.

    It reads into host memory, without GPUDirect Storage.
    """

    name = "fastsafetensors"
    library = "fastsafetensors"
    local_only = True
    can_leave_out: ClassVar = frozenset({"assembly", "device"})
    _files: Any = None  # the memory that the tensors are views of

    def __init__(self, *, block_size: int | str = 16 << 20, concurrency: int | str = 16) -> None:
        self._block_kib = block_size_option(block_size) >> 10
        self._threads = concurrency_option(concurrency)

    def run(self, prepared: Prepared, clock: LoadClock, leave_out: Stage | None) -> Loaded:
        self._release()
        paths = [str(path) for path, _ in tensors_of_files(prepared)]
        with library_errors(prepared.storage.url):
            loader = SafeTensorsFileLoader(
                SingleGroup(),
                "cpu",
                bbuf_size_kb=self._block_kib,
                max_threads=self._threads,
                nogds=True,
                set_numa=False,
            )
            try:
                loader.add_filenames({0: paths})
                self._files = loader.copy_files_to_device()
                fetch_s = clock.seconds()
                for own in prepared.tensors if leave_out != "assembly" else ():
                    began = time.perf_counter_ns()
                    tensor = self._files.get_tensor(own.stored.name)
                    clock.add(own.stored.name, own.nbytes, tensor, began)
            finally:
                loader.close()
        return clock.ended(fetch_s=fetch_s)

    def _release(self) -> None:
        if self._files is not None:
            self._files.close()
            self._files = None

    def close(self) -> None:
        self._release()
        super().close()

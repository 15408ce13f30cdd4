"""Both read engines behind one interface, so that a test can ask the same of each of them."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from typing import Any

from iobench.buffers import Buffer
from iobench.load.ahead import Ahead, ReadAhead
from iobench.load.engine import Columns, Extent, ReadEngine, Then
from iobench.load.uring import UringEngine
from iobench.storage.local.storage import LocalStorage


class Reads:
    """What a reader asks of an engine: reads, and reads of several batches at the same time."""

    def __init__(
        self,
        engine: str,
        storage: LocalStorage,
        *,
        concurrency: int = 4,
        block_size: int = 4096,
        once: bool = False,
    ) -> None:
        self.storage = storage
        self.engine: ReadEngine
        self.ahead: Ahead
        made = {"concurrency": concurrency, "block_size": block_size, "once": once}
        if engine == "io_uring":
            self.engine = self.ahead = UringEngine(storage, **made)
        else:
            self.engine = ReadEngine(storage, **made)
            self.ahead = ReadAhead(self.engine)

    def read(
        self, extents: Sequence[Extent] | Columns, memory: Buffer | None, then: Then | None = None
    ) -> int:
        return self.engine.read(extents, memory, then)

    def begin(
        self, extents: Sequence[Extent] | Columns, memory: Buffer | None, then: Then | None = None
    ) -> Any:
        return self.ahead.begin(extents, memory, then)

    def wait(self, reading: Any) -> int:
        return self.ahead.wait(reading)

    def settle(self) -> None:
        self.ahead.settle()

    def register(self, memory: Buffer) -> None:
        self.engine.register(memory)

    def reserve(self) -> None:
        self.engine.reserve()

    def close(self) -> None:
        """As a reader closes them, and the storage as well."""
        self.ahead.settle()
        self.engine.close()
        self.storage.close()


def descriptors() -> int:
    """How many descriptors this process has open."""
    gc.collect()  # those of earlier tests may go at any time
    return len(os.listdir("/proc/self/fd"))

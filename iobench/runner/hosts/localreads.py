"""What one host reads of a storage curve that several hosts measure together."""

from __future__ import annotations

import time
from pathlib import Path

from ...storage.base import Storage
from ..agent import CacheState, HostAgent
from ..curve.reader import HostReader
from .words import EmptyCacheOf, HaveRead, ReadNow


class LocalReads:
    """The reads of this host, which may be a part of those of all. ``run_dir``: for fio's files."""

    def __init__(self, storage: Storage, run_dir: Path) -> None:
        self.storage, self.run_dir = storage, run_dir
        self._readers: dict[tuple[str, int, bool], HostReader] = {}

    def read(self, order: ReadNow) -> HaveRead:
        """Do what is ordered, from its instant on. Raises StorageError, NoMemoryError."""
        known = (order.curve, order.max_bytes, order.once)
        if known not in self._readers:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            self._readers[known] = HostReader(
                self.storage, max_bytes=order.max_bytes, once=order.once, run_dir=self.run_dir
            )
        reader = self._readers[known]
        time.sleep(max(0.0, (order.at_ns - time.monotonic_ns()) / 1e9))
        depth = reader.read(
            order.places, in_flight=order.in_flight, seconds=order.seconds, most=order.most
        )
        return HaveRead(depth, reader.by, reader.program, tuple(reader.notes))

    def empty(self, order: EmptyCacheOf) -> CacheState:
        return HostAgent(self.storage).empty_cache(order.keys)

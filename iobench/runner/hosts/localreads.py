"""What one host reads of a storage curve that several hosts measure together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt

from ...host.depth import Depth
from ...host.nfs import MountStats
from ...host.resources import Snapshot
from ...record.curve import MeasuredWith
from ...record.host import Host
from ...record.typed import ArrayText
from ...storage.base import Storage
from ..agent import CacheState, Change, HostAgent, Used, change_cache
from ..curve.places import Place
from ..curve.reader import HostReader
from .meeting import Meeting
from .serving import Serving
from .words import deed


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadNow:
    """Read these places from the instant ``at_ns`` of your clock on.

    ``rows``: of each place the number of its key in ``keys``, its offset, its length, and how many
    of its bytes are needed. ``curve``: which curve this point is of; ``max_bytes`` and ``once`` as
    in ``curve.reader``.
    """

    curve: str
    keys: tuple[str, ...]
    rows: Annotated[npt.NDArray[np.int64], ArrayText()]
    in_flight: int
    seconds: float
    most: int
    at_ns: int
    max_bytes: int
    once: bool

    def __post_init__(self) -> None:
        """Raises ValueError for rows that are no places."""
        rows, count = self.rows, len(self.keys)
        if rows.ndim != 2 or rows.shape[1] != 4 or (rows < 0).any() or (rows[:, 0] >= count).any():
            raise ValueError("they are no places")

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(Place(self.keys[key], *rest) for key, *rest in self.rows.tolist())


def rows_of(places: Sequence[Place]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """The ``keys`` and ``rows`` of ``ReadNow``."""
    numbers: dict[str, int] = {}
    rows = [(numbers.setdefault(key, len(numbers)), *rest) for key, *rest in places]
    return tuple(numbers), np.array(rows, dtype=np.int64).reshape(-1, 4)


@dataclass(frozen=True, slots=True)
class HaveRead:
    """What was read, and with what program."""

    depth: Depth
    by: MeasuredWith
    program: str
    notes: tuple[str, ...]


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


class ReadingHost(Serving):
    """A host that reads what the controller says, and tells what is known of it."""

    def __init__(self, meeting: Meeting, reads: LocalReads) -> None:
        super().__init__(meeting)
        self.reads, self.agent = reads, HostAgent(reads.storage)
        self._before: Snapshot | None = None

    def keys(self) -> Sequence[str]:
        """The objects that are meant where none are named."""
        return ()

    @deed
    def read(self, order: ReadNow) -> HaveRead:
        return self.reads.read(order)

    @deed
    def cache(self, what: Change, keys: tuple[str, ...]) -> CacheState:
        """Bring the page cache into a state for these objects."""
        return change_cache(self.agent, what, keys or self.keys())

    @deed
    def describe(self) -> Host:
        return self.agent.describe()

    @deed
    def mount(self) -> MountStats | None:
        return self.agent.mount_counters()

    @deed
    def snapshot(self) -> None:
        """Take one, and keep it."""
        self._before = self.agent.snapshot()

    @deed
    def used(self) -> Used | None:
        """What this host did since the last snapshot."""
        return self.agent.used_since(self._before) if self._before is not None else None

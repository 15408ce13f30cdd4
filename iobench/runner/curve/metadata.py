"""What a storage answers about its objects: opens, stats and listings a second.

Each is a curve over the number in flight, measured as that of reads is, by threads that read
nothing: an operation takes the place of a read, and an entry of a listing that of a byte.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...base.buffers import Buffer
from ...judge.figures.curve import conclude_curve, highest
from ...record.curve import Operation, StorageCurve
from ...storage import open_storage
from ...storage.base import Entry, OpensFiles, Storage, StorageTraits, innermost, local_root
from ...storage.simulated.memory import Wrapper
from .curve import CurveMeasurement, Limits
from .places import MAX_SMALL_OBJECTS, Places
from .reader import ThreadReader

MAX_ENTRIES = 10_000
"""Entries of one listing that are counted; an object store lists 1,000 in a request."""

REMEMBERED = (
    "names and inodes may be answered from this host's memory, which is not emptied: the first "
    "epoch after a start may be slower"
)

IN_MEMORY = Path("/dev/shm")

MEMORY_FILES = 256
MEMORY_S = 0.1
MOST = 100_000
MEMORY_SHARE = 0.5
"""A storage that answers this share of what the same number of threads get of so many files in
memory, or more, is limited by this program, and not by itself.
"""


class MetadataStorage(Wrapper):
    """A storage whose reads are opens, stats or listings. They deliver no bytes."""

    scheme = "metadata"
    traits: ClassVar[StorageTraits] = StorageTraits(page_cache=False)

    def __init__(self, inner: Storage, operation: Operation) -> None:
        super().__init__(inner)
        self.alignment = 1
        asked: dict[Operation, Callable[[str], object]] = {
            "open": self.open_and_close,
            "stat": inner.size,
            "list": self._listed,
        }
        self._ask = asked[operation]

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        self._ask(key)
        return len(buffer)

    def _listed(self, folder: str) -> None:
        for _ in islice(self.inner.list(folder), MAX_ENTRIES):
            pass


def operations(storage: Storage) -> tuple[Operation, ...]:
    """What can be asked of a storage: object stores have no opens."""
    return (
        ("open", "stat", "list") if isinstance(innermost(storage), OpensFiles) else ("stat", "list")
    )


def curve_of(
    operation: Operation,
    storage: Storage,
    objects: Sequence[Entry],
    limits: Limits,
    *,
    run_dir: Path,
    seed: int,
    tell: Callable[[int], None] = lambda in_flight: None,
) -> StorageCurve:
    """The curve of one operation on the objects, or on their folders, in random order."""
    places = _places(operation, objects, seed)
    found = CurveMeasurement(
        MetadataStorage(storage, operation), places, limits, run_dir=run_dir, tell=tell
    ).run()
    local = local_root(innermost(storage)) is not None
    if local and (best := highest(found.points)) is not None:
        least = MEMORY_SHARE * of_memory(operation, best.in_flight)
        spent = [point.client or 0 < least <= point.bytes_per_s.value for point in found.points]
        points = [
            point.model_copy(update={"client": client})
            for point, client in zip(found.points, spent, strict=True)
        ]
        found = found.model_copy(update={"points": points})
    found = found.model_copy(
        update={
            "operation": operation,
            "how": "threads of this process",
            "notes": [REMEMBERED] if local else [],
        }
    )
    return conclude_curve(found)


def of_memory(operation: Operation, in_flight: int) -> float:
    """The operations/s, or entries/s, that this program gets of files in memory; 0: not known."""
    if not os.access(IN_MEMORY, os.W_OK):
        return 0.0
    with tempfile.TemporaryDirectory(prefix="iobench-probe-", dir=IN_MEMORY) as folder:
        names = [f"{number:03}" for number in range(MEMORY_FILES)]
        for name in names:
            (Path(folder) / name).touch()
        places = _places(operation, [Entry(name, 0) for name in names], seed=0)
        taken = places.take(len(places), enough=1).places
        storage = open_storage(folder)
        try:
            asking = MetadataStorage(storage, operation)
            reader = ThreadReader(asking, max_bytes=places.max_bytes, once=True)
            found = reader.read(taken, in_flight=in_flight, seconds=MEMORY_S, most=MOST)
        finally:
            storage.close()
    return found.bytes_per_s


def _places(operation: Operation, objects: Sequence[Entry], seed: int) -> Places:
    chance = np.random.default_rng(seed)
    if operation == "list":
        folders = Counter(entry.key.rpartition("/")[0] for entry in objects)
        keys = list(folders)
        lengths = np.minimum(np.fromiter(folders.values(), np.int64), MAX_ENTRIES)
    else:
        keys = [entry.key for entry in objects]
        lengths = np.ones(len(keys), np.int64)
    chosen = chance.permutation(len(keys))[:MAX_SMALL_OBJECTS]
    none = np.zeros(len(chosen), np.int64)
    return Places(keys, chosen, none, lengths[chosen], none, order="random", once=True)


def requests_opened(storage: Storage, places: Places) -> bool:
    """Whether each request of these places opens a file of its own."""
    return places.once and isinstance(innermost(storage), OpensFiles)

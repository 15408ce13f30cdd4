"""One storage curve: point after point, until more reads in flight bring nothing.

Opens, stats and listings a second are curves over the number in flight, too, measured by threads
that read nothing: an operation takes the place of a read, and an entry of a listing that of a byte.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...base import memory
from ...base.buffers import Buffer
from ...base.errors import NoMemoryError, StorageError
from ...base.units import counted, format_bytes, format_percent
from ...host import fio
from ...host.fio_depth import OVERHEAD_S, Depth
from ...judge.figures.curve import FLATTENED, conclude_curve, has_flattened, highest, rate_of
from ...record.curve import CurvePoint, Operation, StorageCurve
from ...storage import open_storage
from ...storage.base import Entry, Files, OpensFiles, Storage, StorageTraits, innermost, local_root
from ...storage.scratch import scratch
from ...storage.wrapper import Wrapper
from ..agent import CacheState
from ..budget import Budget
from .places import MAX_SMALL_OBJECTS, Place, Places
from .reader import HostReader, PlaceReader, ThreadReader

log = logging.getLogger(__name__)

FIRST_READS_PER_S, MAX_BYTES_PER_S = 50_000, 16e9
"""What one read in flight may reach, and any number of them; places are handed out by it."""

MIN_POINT_S, MAX_POINT_S = 0.1, 1.0

MARGIN = 2.5
"""Twice as many reads in flight bring at most twice the rate, with some room."""

ENOUGH = 8
"""Reads of each reader that a point needs; with fewer left, places are read again."""

PROPORTIONAL = 0.9
"""More reads in flight that bring this share of as many times the rate meet no limit yet."""

CLIENT_SPENT = 0.85
"""Above this share of its CPU the measuring program may be what limits the rate."""

CACHED = 0.01
"""A larger share of a point's bytes in the page cache is said."""

MEMORY_SHARE = 4
"""Buffers take at most the free memory over this."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """``point_s``: time of the reads of one point. ``budget``: the time of all points.

    ``first``: reads in flight of the first point. ``reach``: reads in flight that the curve has to
    reach. ``time_option``: the command-line option that allows more time.
    """

    max_in_flight: int
    point_s: float
    budget: Budget
    first: int = 1
    reach: int = 1
    time_option: str = "--budget"


def overhead_s(storage: Storage) -> float:
    """The time that one point takes beside its reads."""
    return OVERHEAD_S if isinstance(storage, Files) and fio.available() else 0.1


class CurveMeasurement:
    """Measures the curve of some places of one storage.

    ``direct``: the storage is open for O_DIRECT. Reads through the page cache are preceded by its
    eviction, and each point reads a byte at most once; others may read a byte again if there are
    too few bytes. ``tell`` is called with the number in flight before each point.
    ``reader``: who reads; by default this host.
    """

    def __init__(
        self,
        storage: Storage,
        places: Places,
        limits: Limits,
        *,
        run_dir: Path,
        tell: Callable[[int], None] = lambda in_flight: None,
        reader: PlaceReader | None = None,
    ) -> None:
        self.storage, self.places, self.limits = storage, places, limits
        self.tell = tell
        self.whole_s = limits.point_s + overhead_s(storage)  # that a point takes
        self.uncached = storage.traits.uncached
        self.points: list[CurvePoint] = []
        self.notes: list[str] = [places.note] if places.note else []
        self.reader: PlaceReader = reader or HostReader(
            storage, max_bytes=places.max_bytes, once=places.once, run_dir=run_dir
        )

    def run(self) -> StorageCurve:
        """Measure the points. A failure ends the curve there.

        If not even one read at a time was possible, ``not_measured`` has the error.
        """
        return self.so_far(self.points_until())

    def so_far(self, stopped: str) -> StorageCurve:
        """The curve of the points that were measured. ``stopped``: why there are no more."""
        again = sum(not point.disjoint for point in self.points)
        if again:
            self.notes.append(
                f"the data is too small: {counted(again, 'point')} of {len(self.points)} read "
                "bytes that had been read before, so that a cache of the storage may have helped"
            )
        kind = "O_DIRECT" if self.storage.traits.direct else "without a page cache"
        if not self.uncached:
            kind = "buffered, evicted from the page cache before"
        return StorageCurve(
            request_bytes=self.places.median_bytes,
            request_bytes_min=self.places.min_bytes,
            request_bytes_max=self.places.max_bytes,
            order=self.places.order,
            by=self.reader.by,
            how=f"{self.reader.program}, {kind}",
            direct=self.storage.traits.direct,
            points=self.points,
            stopped=stopped,
            not_measured="" if self.points else stopped,
            notes=[*self.notes, *self.reader.notes],
        )

    def points_until(self) -> str:
        """Measure point after point; return why there are no more."""
        limits, in_flight = self.limits, self.limits.first
        while True:
            took = self.points[-1].seconds if self.points else 0.0
            needed = max(took, self.whole_s)
            if self.points and not limits.budget.fits(needed):
                return f"the time was used up; a longer {limits.time_option} allows more points"
            if why := self._no_room(in_flight):
                return why
            self.tell(in_flight)
            try:
                point = self._point(in_flight)
            except (StorageError, NoMemoryError) as error:
                return f"{counted(in_flight, 'read')} in flight failed: {error.what}"
            self.points.append(point)
            if point.throttled:
                return (
                    f"with {counted(in_flight, 'read')} in flight the server asked to slow down "
                    f"({counted(point.throttled, 'request')} sent again)"
                )
            if has_flattened(self.points):
                return FLATTENED
            if in_flight >= limits.max_in_flight:
                return f"the limit was {counted(limits.max_in_flight, 'read')} in flight"
            in_flight = min(self._step(in_flight, needed) * in_flight, limits.max_in_flight)

    def _step(self, in_flight: int, point_s: float) -> int:
        """By what factor the next point has more reads in flight.

        Where the time does not suffice for doublings up to twice ``reach``, it is 4. So it is where
        they do not suffice up to the end, as long as latency alone is the limit: a point in between
        would tell nothing.
        """
        limits, points = self.limits, self.points
        doublings = math.log2(max(1.0, 2 * limits.reach / in_flight))
        if not limits.budget.fits(doublings * point_s):
            return 4
        if len(points) < 2:
            return 2
        brought = points[-1].reads_per_s.value / max(points[-2].reads_per_s.value, 1e-9)
        latency = brought >= PROPORTIONAL * in_flight / points[-2].in_flight
        doublings = math.log2(max(1.0, limits.max_in_flight / in_flight))
        return 4 if latency and not limits.budget.fits(doublings * point_s) else 2

    def _no_room(self, in_flight: int) -> str:
        here = in_flight // self.reader.hosts
        free, needed = memory.available_bytes(), here * self.places.max_bytes
        if in_flight == 1 or free is None or needed <= free / MEMORY_SHARE:
            return ""
        return (
            f"{counted(in_flight, 'read')} in flight need {format_bytes(needed)} of memory, more "
            f"than a quarter of the {format_bytes(free)} that are free"
        )

    def _point(self, in_flight: int) -> CurvePoint:
        limits = self.limits
        before = self.points[-1].reads_per_s.value * MARGIN if self.points else FIRST_READS_PER_S
        rate = min(before, MAX_BYTES_PER_S / self.places.median_bytes)
        wanted = max(int(rate * limits.point_s), ENOUGH * in_flight)
        taken = self.places.take(wanted, enough=max(int(wanted / MARGIN), ENOUGH * in_flight))
        given = len(taken.places)
        state: CacheState | None = None
        if not self.uncached:
            state = self.reader.agent.empty_cache(list({place.key for place in taken.places}))
            self._say_cached(in_flight, state)
        found = self._read(taken.places, in_flight, wanted if self.uncached else given)
        self.places.give_back(given - found.used)
        share = found.client_cpu_share
        return CurvePoint(
            in_flight=in_flight,
            reads_per_s=rate_of(found.reads_per_s, found.window_reads_per_s),
            bytes_per_s=rate_of(found.bytes_per_s, found.window_bytes_per_s),
            latency_mean_s=found.latency_mean_s,
            latency_p50_s=found.latency_p50_s,
            latency_p99_s=found.latency_p99_s,
            latency_p999_s=found.latency_p999_s,
            reads=found.reads,
            seconds=found.seconds,
            disjoint=taken.fresh and not found.again,
            cached_before=state.ratio if state else None,
            client_cpu_share=share,
            client=share is not None and share >= CLIENT_SPENT,
            retries=found.retries,
            throttled=found.throttled,
        )

    def _seconds(self, in_flight: int) -> float:
        """How long a point lasts: longer where reads are slow.

        What is in flight at its ends, and what a limit has saved up before, then matter less.
        """
        shortest, rate = self.limits.point_s, 0.0
        if self.points:
            rate = self.points[-1].reads_per_s.value
        if rate <= 0:
            return shortest
        left_s = self.limits.budget.left_s - overhead_s(self.storage)
        return max(shortest, min(MAX_POINT_S, ENOUGH * in_flight / rate, left_s))

    def _read(self, places: list[Place], in_flight: int, most: int) -> Depth:
        seconds = self._seconds(in_flight)
        return self.reader.read(places, in_flight=in_flight, seconds=seconds, most=most)

    def _say_cached(self, in_flight: int, state: CacheState) -> None:
        if state.ratio is not None and state.ratio > CACHED:
            self.notes.append(
                f"{format_percent(state.ratio)} of the bytes for {in_flight} in flight were in the "
                "page cache and could not be evicted"
            )


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
AS_IN_MEMORY = 0.5
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
        least = AS_IN_MEMORY * of_memory(operation, best.in_flight)
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
    with scratch("probe", within=IN_MEMORY) as folder:
        names = [f"{number:03}" for number in range(MEMORY_FILES)]
        for name in names:
            (folder / name).touch()
        places = _places(operation, [Entry(name, 0) for name in names], seed=0)
        taken = places.take(len(places), enough=1).places
        storage = open_storage(str(folder))
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

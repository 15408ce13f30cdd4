"""Which bytes a curve reads: places in objects, in an order, handed out to one point after another.

No place is handed out twice before all have been handed out once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...record.curve import Order
from ...record.manifest import Manifest
from ...storage.base import Entry

MAX_PLACES = 1 << 20
"""Places of one curve that are known at a time: some tens of MB."""

MAX_OBJECTS = 512
"""Large objects of one curve: they stay open, and many systems allow 1,024 open files."""

MAX_SMALL_OBJECTS = 1 << 16
_LARGE = 8
"""From this number of places on an object is large: it stays open between reads."""

Integers = npt.NDArray[np.int64]


class Place(NamedTuple):
    """``length`` bytes of an object from ``offset``, of which at least ``needed`` exist."""

    key: str
    offset: int
    length: int
    needed: int


class Taken(NamedTuple):
    """``fresh``: none of these places was handed out before."""

    places: list[Place]
    fresh: bool


class Places:
    """The places of a curve. ``once``: each object is one place, so it need not stay open."""

    def __init__(
        self,
        keys: Sequence[str],
        which: Integers,
        offsets: Integers,
        lengths: Integers,
        needed: Integers,
        *,
        order: Order,
        once: bool,
        note: str = "",
    ) -> None:
        """``which`` of the ``keys`` holds each place; offsets and lengths in bytes."""
        self.order: Order = order
        self.once = once
        self.note = note
        self._keys = keys
        self._columns = (which, offsets, lengths, needed)
        self._lengths = lengths
        self._next = 0

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def median_bytes(self) -> int:
        return int(np.median(self._lengths))

    @property
    def mean_bytes(self) -> float:
        return float(np.mean(self._lengths))

    @property
    def min_bytes(self) -> int:
        return int(self._lengths.min())

    @property
    def max_bytes(self) -> int:
        return int(self._lengths.max())

    def take(self, wanted: int, *, enough: int) -> Taken:
        """Hand out the next ``wanted`` places, at most all of them.

        Where fewer are left that were not handed out before, but ``enough``, these are all.
        """
        left = len(self) - self._next
        count = min(wanted, len(self))
        if enough <= left < count:
            count = left
        at = (self._next + np.arange(count)) % len(self)
        which, offsets, lengths, needed = (column[at].tolist() for column in self._columns)
        places = [
            Place(self._keys[key], *rest)
            for key, *rest in zip(which, offsets, lengths, needed, strict=True)
        ]
        fresh = self._next + count <= len(self)
        self._next += count
        return Taken(places, fresh)

    def give_back(self, count: int) -> None:
        """The last ``count`` places that were handed out were not read."""
        self._next -= count


def blocks(objects: Sequence[Entry], size: int, *, order: Order, seed: int) -> Places:
    """Blocks of ``size`` bytes, each at a multiple of it, in objects of at least that size.

    Sequential places are one object after another, front to back; the objects are in random order.
    """
    chance = np.random.default_rng(seed)
    usable = [entry for entry in objects if entry.size >= size]
    there = sum(entry.size // size for entry in usable)
    most = MAX_OBJECTS if there >= _LARGE * len(usable) else MAX_SMALL_OBJECTS
    chosen = [usable[at] for at in chance.permutation(len(usable))[:most].tolist()]
    counts = np.array([entry.size // size for entry in chosen], dtype=np.int64)
    total = int(counts.sum())
    if order == "sequential":
        slots = np.arange(min(total, MAX_PLACES), dtype=np.int64)
    else:
        slots = _some(total, chance)
    ends = np.cumsum(counts)
    which = np.searchsorted(ends, slots, side="right")
    offsets = (slots - (ends - counts)[which]) * size
    lengths = np.full(len(slots), size, dtype=np.int64)
    note = ""
    if len(chosen) < len(usable):
        note = f"{len(chosen):,} of {len(usable):,} objects were read, chosen at random"
    keys = [entry.key for entry in chosen]
    once = bool((counts == 1).all()) and all(entry.size < 2 * size for entry in chosen)
    return Places(keys, which, offsets, lengths, lengths, order=order, once=once, note=note)


def _some(total: int, chance: np.random.Generator) -> Integers:
    """Numbers below ``total`` in random order: all, or as many as are known at a time."""
    if total <= MAX_PLACES:
        return chance.permutation(total)
    return chance.permutation(np.unique(chance.integers(total, size=MAX_PLACES)))


def samples(
    manifest: Manifest, *, max_bytes: int, alignment: int, seed: int, share: float = 1.0
) -> Places:
    """The samples of a dataset in random order, as a reader requests them one by one.

    A sample of more than ``max_bytes`` is several places. Samples that lie in the same bytes (rows
    of one row group) are one place. Offsets and lengths are multiples of ``alignment`` bytes.
    ``share``: of each sample's bytes, from the first one on, that is read (above 0, at most 1).
    """
    chance = np.random.default_rng(seed)
    single = manifest.sample_count <= manifest.shard_count
    note = ""
    known = chance.permutation(manifest.shard_count)[: MAX_SMALL_OBJECTS if single else MAX_OBJECTS]
    if len(known) < manifest.shard_count:
        note = f"{len(known):,} of {manifest.shard_count:,} shards were read, chosen at random"
    counts = np.asarray(manifest.shards["samples"], dtype=np.int64)[known]
    behind = np.cumsum(counts)
    picked = _some(int(behind[-1]), chance)
    where = np.searchsorted(behind, picked, side="right")
    chosen = manifest.shards["first"][known[where]] + picked - (behind - counts)[where]
    offsets = np.asarray(manifest.samples["offset"][chosen], dtype=np.int64)
    stored = np.asarray(manifest.samples["stored"][chosen], dtype=np.int64)
    ends = offsets + (stored if share >= 1 else np.ceil(stored * share).astype(np.int64))
    rows = np.stack([known[where], offsets // alignment * alignment, ends], axis=1)
    rows = rows[np.sort(np.unique(rows[:, :2], axis=0, return_index=True)[1])]
    which, first, end = rows[rows[:, 2] > rows[:, 1]].T
    step = max(max_bytes // alignment, 1) * alignment
    pieces = -(-(end - first) // step)
    piece = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts = np.repeat(first, pieces) + piece * step
    needed = np.minimum(np.repeat(end, pieces) - starts, step)
    lengths = -(-needed // alignment) * alignment
    which = np.repeat(which, pieces)
    used, which = np.unique(which, return_inverse=True)
    keys = [manifest.key(shard) for shard in used.tolist()]
    once = single and len(which) == len(keys)
    return Places(keys, which, starts, lengths, needed, order="random", once=once, note=note)

"""Byte ranges of shards that hold a batch's samples, and what a reader returns with a batch.

A request has the positions in memory at which samples will lie. This module only computes with the
manifest's columns; it reads nothing.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.errors import UsageError
from ..storage.base import Retries, Retrying, Storage, retried

Indices = npt.NDArray[np.int64]

_GAP = 8 << 10
"""Samples of a shard with at most this many bytes between them are read in one request.

To read the framing between them costs less than another request. It also takes memory, for which
``BatchReader.room`` makes allowance.
"""


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a batch, in the order of its samples: one number in each array for each.

    Request ``r`` has the samples ``starts[r]`` to ``starts[r + 1]`` of the batch, and the last one
    all that are left. It reads ``length[r]`` bytes of shard ``shard[r]`` from ``offset[r]``; both
    are aligned. ``needed[r]`` bytes of these must exist: up to the last sample's end.
    ``landing[r]``: position in memory, counted from that of the first request. ``moves[s]`` is
    what to add to the offset in its shard of the batch's sample ``s``, to get its position in
    memory. ``nbytes``: of memory that the requests fill.
    """

    starts: Indices
    shard: Indices
    offset: Indices
    length: Indices
    needed: Indices
    landing: Indices
    moves: Indices
    nbytes: int

    def __len__(self) -> int:
        return len(self.starts)

    def samples(self) -> list[tuple[int, int]]:
        """Return the first sample of each request, and the sample behind its last one."""
        stops = np.append(self.starts[1:], len(self.moves))
        return list(zip(self.starts.tolist(), stops.tolist(), strict=True))


def plan_requests(
    shards: Indices,
    offsets: Indices,
    stored: Indices,
    margins: tuple[Indices, Indices] | None,
    *,
    step: int,
    most: int | None,
) -> Requests:
    """Return the requests for these samples.

    The samples keep their order. Neighbours in one shard are merged into one request, of at most
    ``most`` bytes if it is given. ``margins`` are the bytes of framing to read before and after
    each sample. Offsets and lengths are aligned to ``step`` bytes.
    """
    begin, end = offsets, offsets + stored
    if margins is not None:
        begin, end = begin - margins[0], end + margins[1]
    gap = begin[1:] - end[:-1]
    splits = np.ones(len(shards), bool)
    splits[1:] = (shards[1:] != shards[:-1]) | (gap < 0) | (gap > _GAP)
    if most is not None:
        _split_long(splits, begin, end, step, most)
    starts = np.flatnonzero(splits)
    first = begin[starts] // step * step
    stop = end[np.append(starts[1:], len(shards)) - 1] if len(starts) else first
    length = -(-stop // step) * step - first
    landing = np.cumsum(length) - length
    moves = np.repeat(landing - first, np.diff(starts, append=len(shards)))
    return Requests(
        starts, shards[starts], first, length, stop - first, landing, moves, int(length.sum())
    )


def _split_long(
    splits: npt.NDArray[np.bool_], begin: Indices, end: Indices, step: int, most: int
) -> None:
    """Split requests of more than ``most`` bytes before the first sample that is too much."""
    first = 0
    bounds = zip(splits.tolist(), begin.tolist(), end.tolist(), strict=True)
    for position, (split, start, stop) in enumerate(bounds):
        if split or -(-stop // step) * step - first > most:
            splits[position] = True
            first = start // step * step


class Stats(NamedTuple):
    """What one batch cost, counted by the worker that made it.

    Times are in nanoseconds of the system-wide monotonic clock.
    """

    samples: int
    bytes_read: int
    sample_bytes: int  # stored bytes of these samples
    started_ns: int
    read_ns: int
    prep_ns: int
    cpu_ns: int  # CPU time of all threads of this process since its first read
    process: int  # process id
    retries: int = 0  # requests that were sent again
    throttled: int = 0  # of these: sent again because the server asked to slow down
    requests: int = 0  # reads and opens that the worker asked for, ``ReadEngine.issued``
    worker: int = 0  # the system's number of the thread that made it; of a process, its first one

    def columns(self) -> dict[str, int]:
        """The columns of a step's event that its batch tells."""
        return {
            "samples": self.samples,
            "bytes_read": self.bytes_read,
            "sample_bytes": self.sample_bytes,
            "read_ns": self.read_ns,
            "prep_ns": self.prep_ns,
            "retries": self.retries,
            "throttled": self.throttled,
        }


def own_stats(
    *, samples: int, stored: int, started_ns: int, read_ns: int, prep_ns: int, again: Retries
) -> Stats:
    """Return the statistics of a batch of this process whose reads nobody counts.

    ``bytes_read`` is set to the stored bytes of its samples, whatever was really read. ``cpu_ns``
    is the CPU time of this process since it started.
    """
    return Stats(
        samples,
        stored,
        stored,
        started_ns,
        read_ns,
        prep_ns,
        time.process_time_ns(),
        os.getpid(),
        *again,
        worker=threading.get_native_id(),
    )


_COUNTING = threading.Lock()


class RetryCount:
    """What a storage has retried in this process, as far as no batch has told it yet.

    Readers in threads that share the storage share this, so that each retry is told once.
    """

    def __init__(self, storage: Storage) -> None:
        # Checked once, since isinstance with a protocol takes microseconds.
        self._storage = storage if isinstance(storage, Retrying) else None
        self._pid, self._told = os.getpid(), retried(storage)

    def take(self) -> Retries:
        """The retries since the last call."""
        if self._storage is None:
            return Retries()
        with _COUNTING:
            before, self._told = self._told, self._storage.retried()
            if self._pid != os.getpid():  # a forked process counts anew
                self._pid, before = os.getpid(), Retries()
            return self._told.since(before)


@dataclass(slots=True)
class Extents:
    """Byte offset and length of each sample of a batch in the output memory."""

    offsets: Indices
    lengths: Indices
    stats: Stats


def too_small(needed: int, room: int) -> UsageError:
    return UsageError(
        f"a batch of {needed} bytes does not fit a slot of {room} bytes",
        remedy=f"raise it: --set loader.slot_size={-(-needed // (1 << 20))}MiB, "
        "or use a smaller batch_size",
    )

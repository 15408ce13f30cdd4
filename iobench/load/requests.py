"""Byte ranges of shards that hold a batch's samples, and their positions in memory.

This module only computes with the manifest's columns; it reads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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

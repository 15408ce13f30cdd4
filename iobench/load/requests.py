"""Byte ranges of shards that hold a batch's samples, and their positions in memory.

This module only computes with the manifest's columns; it reads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

_GAP = 8 << 10
"""Samples of a shard with at most this many bytes between them are read in one request.

To read the framing between them costs less than another request. It also takes memory, for which
``BatchReader.room`` makes allowance.
"""


class Request(NamedTuple):
    """Samples ``[start, stop)`` of a batch: ``length`` bytes of a shard from ``offset``.

    Both ``offset`` and ``length`` are aligned.
    """

    start: int
    stop: int
    shard: int
    offset: int
    length: int
    needed: int  # bytes of these that must exist: up to the last sample's end, before alignment
    landing: int  # position in memory, counted from that of the first request


def plan_requests(
    shards: Sequence[int],
    offsets: Sequence[int],
    stored: Sequence[int],
    margins: Sequence[tuple[int, int]] | None,
    *,
    step: int,
    most: int,
) -> tuple[list[Request], int]:
    """Return the requests for these samples, and the bytes of memory that they fill.

    The samples keep their order. Neighbours in one shard are merged into one request of at most
    ``most`` bytes. ``margins`` are the bytes of framing to read before and after each sample.
    Offsets and lengths are aligned to ``step`` bytes.
    """
    requests: list[Request] = []
    landing = position = 0
    while position < len(shards):
        start, shard = position, shards[position]
        head, tail = margins[position] if margins else (0, 0)
        first = (offsets[position] - head) // step * step
        end = offsets[position] + stored[position] + tail
        position += 1
        while position < len(shards) and shards[position] == shard:
            head, tail = margins[position] if margins else (0, 0)
            begin, stop = offsets[position] - head, offsets[position] + stored[position] + tail
            if not 0 <= begin - end <= _GAP or -(-stop // step) * step - first > most:
                break
            end = stop
            position += 1
        length = -(-end // step) * step - first
        requests.append(Request(start, position, shard, first, length, end - first, landing))
        landing += length
    return requests, landing


def starts(requests: Sequence[Request], offsets: Indices, base: int) -> Indices:
    """Return where each sample's stored bytes begin in memory that is filled from ``base`` on."""
    begin = np.empty(len(offsets), dtype=np.int64)
    for request in requests:
        inside = slice(request.start, request.stop)
        begin[inside] = offsets[inside] - request.offset + request.landing + base
    return begin

"""Which ranges of which shards hold a batch's samples, and where they land: pure arithmetic over the manifest's columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

_GAP = 8 << 10
"""Two samples of a shard that lie closer than this are read in one request: framing costs less than another request. A reader's ``room``
counts on it: what lies between samples takes memory, too."""


class Request(NamedTuple):
    """Samples ``[start, stop)`` of a batch, which lie in ``length`` bytes of a shard from ``offset``, both aligned."""

    start: int
    stop: int
    shard: int
    offset: int
    length: int
    needed: int  # bytes of these that must exist: the last sample's end, before it was aligned
    landing: int  # where they go, counted from the first request's


def plan_requests(
    shards: Sequence[int],
    offsets: Sequence[int],
    stored: Sequence[int],
    margins: Sequence[tuple[int, int]] | None,
    *,
    step: int,
    most: int,
) -> tuple[list[Request], int]:
    """Requests for the samples in this order, neighbours in one shard merged up to ``most`` bytes; and the memory that they take.

    ``margins``: bytes of framing to read before and after each sample. ``step``: what offsets and lengths are aligned to.
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
    """Where each sample's stored bytes begin in the memory that the requests filled from ``base`` on."""
    begin = np.empty(len(offsets), dtype=np.int64)
    for request in requests:
        inside = slice(request.start, request.stop)
        begin[inside] = offsets[inside] - request.offset + request.landing + base
    return begin

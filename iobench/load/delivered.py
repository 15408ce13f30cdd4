"""What a reader hands over with each batch: where its samples lie, and what they cost."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import UsageError
from ..storage.base import Retries
from .requests import Indices


class Stats(NamedTuple):
    """What one batch cost, counted by the worker that made it. Times are on the system-wide monotonic clock."""

    samples: int
    bytes_read: int
    sample_bytes: int  # as stored
    started_ns: int
    read_ns: int
    prep_ns: int
    cpu_ns: int  # of this process since its first read, all threads
    process: int
    retries: int = 0  # requests that were sent again
    throttled: int = 0  # of these: because the server asked to slow down


def own_stats(
    *, samples: int, stored: int, started_ns: int, read_ns: int, prep_ns: int, again: Retries
) -> Stats:
    """What a batch cost this process, where nobody counts its reads: ``bytes_read`` is its samples' stored bytes, whatever was read."""
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
    )


@dataclass(slots=True)
class Delivered:
    """Where each sample of a batch lies in the output memory."""

    offsets: Indices
    lengths: Indices
    stats: Stats


def too_small(needed: int, room: int) -> UsageError:
    return UsageError(
        f"a batch of {needed} bytes does not fit a slot of {room} bytes",
        remedy=f"raise it: --set loader.slot_size={-(-needed // (1 << 20))}MiB, or use a smaller batch_size",
    )

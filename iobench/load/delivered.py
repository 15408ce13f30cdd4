"""What a reader returns with each batch: the positions of its samples, and what it cost."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import NamedTuple

from ..base.errors import UsageError
from ..storage.base import Retries
from .requests import Indices


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
    worker: int = 0  # the system's number of the thread that made it; of a process, its first one


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
        threading.get_native_id(),
    )


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

"""What ranks and their workers have done, and when ranks stood still.

A rank adds to its own counters at the end of each step, in memory that is shared with the parent,
without a lock and without a system call, and whoever shows the progress reads them whenever it
likes. These counters are for watching a run alone: all figures of the record come from the events.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..accelerate.emulated import MADE_UP_NS
from ..base.processes import stat_fields
from ..host.timeline import Columns
from ..load.requests import Stats
from ..record.training import MAX_WORKERS, WorkerLoad

STEPS, BYTES, BUSY_NS, WALL_NS, SYNC_NS, RETRIES = range(6)
"""Columns of ``Counters.read``.

Steps done; stored bytes of their batches; time in which the accelerator was busy; time from the
request for a batch to the next request; time at the barrier for other ranks; requests that were
repeated.
"""

_WIDTH = 8
"""Places for each rank: 64 bytes, so that no two ranks write to one cache line."""


class Counters:
    """Made before the ranks are forked, which share its memory."""

    def __init__(self, ranks: int) -> None:
        fork = multiprocessing.get_context("fork")
        self.ranks = ranks
        self._state = memoryview(fork.RawArray("q", ranks * _WIDTH)).cast("B").cast("q")

    def add(
        self, rank: int, *, read: int, busy_ns: int, wall_ns: int, sync_ns: int, retries: int
    ) -> None:
        """A rank has ended a step; ``read`` are the stored bytes of its batch."""
        state, own = self._state, rank * _WIDTH
        state[own + BYTES] += read
        state[own + BUSY_NS] += busy_ns
        state[own + WALL_NS] += wall_ns
        state[own + SYNC_NS] += sync_ns
        state[own + RETRIES] += retries
        state[own + STEPS] += 1

    def put(self, rank: int, row: npt.NDArray[np.int64]) -> None:
        """What a rank of another host has done so far: a row of what ``read`` returned there."""
        own = rank * _WIDTH
        for place, value in enumerate(row.tolist()[:_WIDTH]):
            self._state[own + place] = value

    def read(self) -> npt.NDArray[np.int64]:
        """A copy of all counters: a row for each rank, and the columns that are named above."""
        return np.array(self._state, dtype=np.int64).reshape(self.ranks, _WIDTH)

    def steps(self) -> int:
        """Number of steps of all ranks so far."""
        return sum(self._each(STEPS))

    def _each(self, column: int) -> Iterator[int]:
        return (self._state[place] for place in range(column, len(self._state), _WIDTH))


MAX_PAUSES = 64
"""Times that are kept of each rank."""

_LOOK_NS = 100_000_000
"""From one look at the ranks' processes to the next, at least."""

_MIN_PAUSE_NS = 1_000_000_000
"""A wait of the parent that ends later than this tells that nothing on this host went on."""

_SLACK_NS = 500_000_000
"""By so much, the times that the parent saw may exceed those in which a rank stood still."""


class Pauses:
    """When the processes of ranks stood still; made before they are forked, and they read it.

    A process can't see that itself: to one that waits for a batch, the wait is only longer. The
    parent sees a process that is stopped (SIGSTOP), and that its own waits last far too long, as
    when a container or a virtual machine is paused.
    """

    def __init__(self, ranks: int) -> None:
        fork = multiprocessing.get_context("fork")
        self._used = fork.RawArray(ctypes.c_int64, ranks)
        self._times = [fork.RawArray(ctypes.c_int64, 2 * MAX_PAUSES) for _ in range(ranks)]
        self._looked_ns = 0

    def of(self, rank: int) -> list[tuple[int, int]]:
        """From when until when a rank stood still, in nanoseconds of the monotonic clock."""
        times = self._times[rank]
        return [(times[2 * each], times[2 * each + 1]) for each in range(self._used[rank])]

    def waited(self, processes: Mapping[int, int], began_ns: int, timeout_s: float) -> None:
        """The parent of these ranks (their process ids) has waited since then for a message."""
        now = time.monotonic_ns()
        if now - began_ns > timeout_s * 1e9 + _MIN_PAUSE_NS:
            for rank in processes:
                self._add(rank, began_ns, now)
        elif now - self._looked_ns < _LOOK_NS:
            return
        for rank, pid in processes.items():
            if stat_fields(pid)[:1] in (["T"], ["t"]):
                self._add(rank, max(self._looked_ns, now - 3 * _LOOK_NS), now)
        self._looked_ns = now

    def _add(self, rank: int, began_ns: int, ended_ns: int) -> None:
        times, used = self._times[rank], self._used[rank]
        if used and times[2 * used - 1] >= began_ns:
            times[2 * used - 1] = ended_ns
        elif used < MAX_PAUSES:
            times[2 * used], times[2 * used + 1] = began_ns, ended_ns
            self._used[rank] += 1


def lost_in_waits(
    events: Columns, starts: Mapping[int, int], pauses: list[tuple[int, int]]
) -> None:
    """Take the time in which a rank stood still out of its waits for batches: it is lost.

    ``events``: of the rank, and changed; ``starts``: of each epoch; ``pauses``: as ``Pauses.of``.
    A rank that took a batch meanwhile did not stand still. What is lost in steps is known already.
    """
    epochs = events["epoch"]
    begin = events["start_ns"] + np.array([starts[each] for each in epochs.tolist()], np.int64)
    # How the wait lies within several steps that share a row is not known.
    later = np.append(begin[1:], np.iinfo(np.int64).max)[: len(begin)]
    end = np.where(events["steps"] == 1, begin + events["wait_ns"], later)
    for began, ended in pauses:
        if ended - began < MADE_UP_NS:
            continue
        both = np.minimum(ended, end) - np.maximum(began, begin)
        enough = both >= max(1, ended - began - _SLACK_NS)
        lost = np.where(enough, np.minimum(both, events["wait_ns"]), 0)
        events["wait_ns"] -= lost
        events["lost_ns"] += lost


@dataclass(slots=True)
class _Done:
    batches: int = 0
    samples: int = 0
    bytes_read: int = 0
    requests: int = 0
    sample_bytes: int = 0
    read_ns: int = 0
    prep_ns: int = 0
    cpu_ns: dict[int, int] = field(default_factory=dict)  # by process, the newest count


class WorkerBook:
    """Counts the batches of each worker of one rank.

    Workers that do not last longer than an epoch are other processes or threads in the next one:
    those with the same number count as one worker.
    """

    def __init__(self) -> None:
        self._done: list[_Done] = []
        self._number: dict[int, int] = {}  # by thread
        self._new = 0

    def begin(self, *, lasting: bool) -> None:
        """An epoch begins; ``lasting``: its workers are those of the epoch before."""
        if not lasting:
            self._number, self._new = {}, 0

    def add(self, stats: Stats) -> None:
        """Add a batch."""
        number = self._number.get(stats.worker)
        if number is None:
            number = self._number[stats.worker] = self._new
            self._new += 1
            if number == len(self._done):
                self._done.append(_Done())
        done = self._done[number]
        done.batches += 1
        done.samples += stats.samples
        done.bytes_read += stats.bytes_read
        done.requests += stats.requests
        done.sample_bytes += stats.sample_bytes
        done.read_ns += stats.read_ns
        done.prep_ns += stats.prep_ns
        done.cpu_ns[stats.process] = stats.cpu_ns

    def loads(self, rank: int) -> list[WorkerLoad]:
        """What each worker did."""
        users = Counter(process for done in self._done for process in done.cpu_ns)
        return [
            WorkerLoad(
                rank=rank,
                worker=number,
                batches=done.batches,
                samples=done.samples,
                bytes_read=done.bytes_read,
                requests=done.requests,
                sample_bytes=done.sample_bytes,
                read_s=done.read_ns / 1e9,
                prep_s=done.prep_ns / 1e9,
                cpu_s=(
                    sum(done.cpu_ns.values()) / 1e9
                    if all(users[process] == 1 for process in done.cpu_ns)
                    else None
                ),
            )
            for number, done in enumerate(self._done)
        ]


def slowest(loads: Iterable[WorkerLoad]) -> tuple[list[WorkerLoad], int]:
    """The slowest MAX_WORKERS by the time for a batch, and the number of the others."""
    ordered = sorted(loads, key=lambda each: (-each.s_per_batch, each.rank, each.worker))
    return ordered[:MAX_WORKERS], max(0, len(ordered) - MAX_WORKERS)

"""The work of each worker of a rank, added up as its batches arrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...load.delivered import Stats
from ...schema.training import MAX_WORKERS, WorkerLoad


@dataclass(slots=True)
class _Done:
    batches: int = 0
    samples: int = 0
    bytes_read: int = 0
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

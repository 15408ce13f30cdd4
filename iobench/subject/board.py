"""What the processes of a loader count, in memory that they share with their rank.

The counts go home through shared memory, so that nothing is added to what the loader sends.
``tools/bench/user_loader.py`` measures what a batch costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

from ..load.torch_compat import is_map_style

NAMES_BYTES = 2048
"""Room for the names of files outside the dataset that a worker opened."""

(
    PID,
    FETCHES,
    WALL_NS,
    CPU_NS,
    PROCESS_CPU_NS,
    READ_CALLS_BYTES,
    DEVICE_BYTES,
    INSIDE,
    OUTSIDE,
    PRIVATE_GROWN,
    READY_NS,
    FIRST_FETCH_NS,
    NAMES_LENGTH,
    IO_KNOWN,
    QUEUED_NS,
    COLLATE_NS,
) = range(16)
"""The columns of a worker's counts, int64."""

RING = 64
"""Batches of a worker whose times of completion are kept: more than it may be ahead of its rank."""

_COLUMNS = 16
_NAMES_AT = (_COLUMNS + RING) * 8

Counts = npt.NDArray[np.int64]
Row = memoryview
"""A row of counts, whose single numbers a memoryview reads and writes faster than numpy does."""


class Board:
    """Counts in shared memory, one row for each worker: [workers, 16] int64, times, names of files.

    ``names_bytes``: room for the names of each worker, a multiple of 8.
    """

    def __init__(self, workers: int, names_bytes: int = NAMES_BYTES) -> None:
        self.workers, self.names_bytes = workers, names_bytes
        self.shared = torch.zeros(workers * (_NAMES_AT + names_bytes), dtype=torch.uint8)
        self.shared.share_memory_()  # type: ignore[no-untyped-call]

    def counts(self) -> Counts:
        """The counts of all workers; what a worker writes later changes them."""
        return self._bytes()[:, : _COLUMNS * 8].view(np.int64)

    def rows(self) -> list[tuple[Row, Row]]:
        """Of each worker its counts and its ``done_ns``, as int64."""
        return [
            (memoryview(counts), memoryview(done))
            for counts, done in zip(self.counts(), self.done_ns(), strict=True)
        ]

    def _bytes(self) -> npt.NDArray[np.uint8]:
        rows: npt.NDArray[np.uint8] = self.shared.numpy().reshape(self.workers, -1)
        return rows

    def done_ns(self) -> Counts:
        """[workers, RING] int64: when each worker had made its batches, number N at N % RING."""
        return self._bytes()[:, _COLUMNS * 8 : _NAMES_AT].view(np.int64)

    def names(self, worker: int) -> list[str]:
        """Some files outside the dataset that a worker opened."""
        row = self._bytes()[worker]
        length = min(int(self.counts()[worker, NAMES_LENGTH]), self.names_bytes)
        text = bytes(row[_NAMES_AT : _NAMES_AT + length]).decode("utf-8", "replace")
        return [name for name in text.split("\0") if name]

    def add_name(self, worker: int, path: str) -> None:
        """Keep the name of a file outside the dataset, if there is room."""
        row = self._bytes()[worker]
        counts = self.counts()[worker]
        raw, start = path.encode("utf-8", "surrogateescape") + b"\0", int(counts[NAMES_LENGTH])
        if start + len(raw) <= self.names_bytes:
            begin = _NAMES_AT + start
            row[begin : begin + len(raw)] = np.frombuffer(raw, np.uint8)
            counts[NAMES_LENGTH] = start + len(raw)


def walls_and_work(rows: list[Row]) -> tuple[int, int]:
    """Of all fetches so far, in nanoseconds: their durations, and what is no part of storage's.

    That is their CPU time and their waits for a core.
    """
    wall = work = 0
    for row in rows:
        wall += row[WALL_NS]
        work += row[CPU_NS] + row[QUEUED_NS]
    return wall, work


def add_cpu_times(rows: list[Row], cpu_ns: dict[int, int]) -> None:
    """Note the CPU time of each worker process so far, by its process id."""
    for row in rows:
        if pid := row[PID]:
            cpu_ns[pid] = row[PROCESS_CPU_NS]


def why_no_turns(made: Iterable[Any], *, workers: int, unseen: str) -> str:
    """Why it is not known which worker makes which batch; empty if it is.

    ``unseen``: why the workers of the loader are not seen; empty if they are.
    """
    if not workers:
        return "the loader has no worker processes"
    if unseen:
        return unseen
    if not isinstance(made, DataLoader):
        return "the loader has a DataLoader inside, and may regroup its batches"
    if not made.in_order:
        return "the loader delivers its batches in any order"
    return "" if is_map_style(made) else "the loader's dataset is an iterable"


class Turns:
    """The waits of one iteration over a map-style DataLoader with workers.

    Make it before the iteration begins. Times are in nanoseconds of the monotonic clock.
    """

    def __init__(self, board: Board) -> None:
        self.rows, self.workers = board.rows(), board.workers
        self.base = [counts[FETCHES] for counts, _ in self.rows]
        self.number = 0  # of the next batch

    def arrived(self, asked_ns: int, arrived_ns: int) -> tuple[int, int]:
        """Of the wait for the next batch: (while a later one was ready, after it was made)."""
        number = self.number
        self.number += 1
        made = self._made(number)
        made_ns = min(arrived_ns, made if made is not None else arrived_ns)
        handed_over = arrived_ns - max(asked_ns, made_ns)
        if made_ns <= asked_ns or self.workers < 2:
            return 0, handed_over
        later = [self._made(number + ahead) for ahead in range(1, self.workers)]
        ready = [each for each in later if each is not None]
        held_back = made_ns - max(asked_ns, min(ready)) if ready else 0
        return max(0, held_back), handed_over

    def _made(self, number: int) -> int | None:
        """When a batch was made; None if it is not there yet."""
        place, turn = number % self.workers, number // self.workers
        count = self.base[place] + turn
        counts, done = self.rows[place]
        return int(done[count % RING]) if counts[FETCHES] > count else None

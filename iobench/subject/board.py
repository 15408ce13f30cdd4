"""What the processes of a loader count, in memory that they share with their rank.

A process is a worker, or the rank itself. The counts go home through shared memory, so that nothing
is added to what the loader sends. ``tools/bench/user_loader.py`` measures what a batch costs.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

from ..load.torch_compat import is_map_style, wrap_fetches
from .process import KernelCounters, leave, listen, private_bytes, tell

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
"""Batches of a worker whose times are kept: more than it may be ahead of its rank."""

_COLUMNS = 16
_NAMES_AT = (_COLUMNS + 2 * RING) * 8

Counts = npt.NDArray[np.int64]
Row = memoryview
"""A row of counts, whose single numbers a memoryview reads and writes faster than numpy does."""


class Board:
    """Counts in shared memory, one row for each worker: [workers, 16] int64, times, names of files.

    ``names_bytes``: room for the names of each worker, a multiple of 8.
    """

    def __init__(self, workers: int, names_bytes: int = NAMES_BYTES) -> None:
        self.workers, self.names_bytes = workers, names_bytes
        # The kernel gives pages of zeros. To fill them, torch would start threads, after which
        # workers that are forked, and have torch use several threads themselves, hang for ever.
        size = workers * (_NAMES_AT + names_bytes)
        memory = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
        self.shared = torch.empty(0, dtype=torch.uint8).set_(memory)

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
        return self._rings()[:, :RING]

    def sample_ns(self) -> Counts:
        """[workers, RING] int64: what each worker took for a sample of these batches."""
        return self._rings()[:, RING:]

    def _rings(self) -> Counts:
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


MAX_FILES = 100_000
"""Different files that a process tells apart; more are not counted."""

_PRIVATE_EVERY_NS = 1_000_000_000
"""Time between two looks at a worker's private memory, each of which takes about a millisecond."""

_FIRST_LOOK = (80 << 20) // resource.getpagesize()
"""Page faults since the worker was ready after which its memory is looked at first."""


class BeginWorker:
    """``worker_init_fn``: the user's own one, after counters were set up in the worker.

    ``root``: the dataset's directory. ``prepare``: what comes before all that; a worker of a
    training that is watched keeps its own signals, threads and hooks.
    """

    def __init__(
        self,
        board: Board,
        root: str,
        theirs: Callable[[int], Any] | None,
        prepare: Callable[[int], Any] | None = None,
    ) -> None:
        self.board, self.root, self.theirs, self.prepare = board, root, theirs, prepare

    def __call__(self, number: int) -> None:
        if self.prepare is not None:
            self.prepare(number)
        gauge = Gauge(self.board, number, self.root)
        wrap_fetches(gauge.wrap)
        listen(gauge)
        if self.theirs is not None:
            self.theirs(number)
        gauge.ready()


class Gauge:
    """The counters of one process: a worker, or the rank itself.

    ``root``: the dataset's directory, or empty.
    """

    def __init__(self, board: Board, number: int, root: str) -> None:
        self.board, self.number, self.place = board, number, root
        self.row, self.done = board.rows()[number]
        self.sample = memoryview(board.sample_ns()[number])
        self.root = os.path.realpath(root) + os.sep if root else ""
        self.roots = (self.root, os.path.abspath(root) + os.sep)  # most names need no look-up
        self.seen: set[str] = set()
        self.kernel = KernelCounters()
        self.base = self.kernel.io_bytes()
        self.before = (int(self.row[READ_CALLS_BYTES]), int(self.row[DEVICE_BYTES]))
        self.cpu_base = time.process_time_ns()
        self.looked_ns = 0
        self.faults = 0
        self.next_look = _FIRST_LOOK
        self.private: int | None = None  # when it was ready
        self.closed = False
        self.row[PID] = os.getpid()
        self.row[PROCESS_CPU_NS] = 0
        self.row[IO_KNOWN] = self.base is not None

    def ready(self) -> None:
        tell()
        self.row[READY_NS] = time.monotonic_ns()
        self.private = private_bytes()
        self.faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    def wrap(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        """A fetcher's ``fetch`` with the time and the CPU time of this thread counted."""
        monotonic, thread_time = time.monotonic_ns, time.thread_time_ns
        queued_ns = self.kernel.queued_ns

        def timed(fetcher: Any, indices: Any) -> Any:
            self.watch_collate(fetcher)
            queued, began, cpu = queued_ns(), monotonic(), thread_time()
            try:
                return fetch(fetcher, indices)
            finally:
                wall, cpu = monotonic() - began, thread_time() - cpu
                samples = len(indices) if isinstance(indices, list) else 1
                self.fetched(began, wall, cpu, queued_ns() - queued, samples)
                self._look_at_process(began + wall)

        return timed

    def watch_collate(self, fetcher: Any) -> None:
        """Count the time of the function with which a fetcher makes samples a batch."""
        if not isinstance(fetcher.collate_fn, _Collate):
            fetcher.collate_fn = _Collate(fetcher.collate_fn, self.row)

    def fetched(
        self, began_ns: int, wall_ns: int, cpu_ns: int, queued_ns: int, samples: int = 1
    ) -> None:
        """Add a fetch of a batch to the counts. ``queued_ns``: it waited for a core to be free."""
        row = self.row
        if not row[FIRST_FETCH_NS]:
            row[FIRST_FETCH_NS] = began_ns
        self.sample[int(row[FETCHES]) % RING] = wall_ns // max(1, samples)
        self.done[int(row[FETCHES]) % RING] = began_ns + wall_ns
        row[FETCHES] += 1
        row[WALL_NS] += wall_ns
        row[CPU_NS] += min(cpu_ns, wall_ns)
        row[QUEUED_NS] += max(0, min(queued_ns, wall_ns - cpu_ns))
        if self.base is not None and (now := self.kernel.io_bytes()) is not None:
            row[READ_CALLS_BYTES] = self.before[0] + now.calls - self.base.calls
            row[DEVICE_BYTES] = self.before[1] + now.device - self.base.device
        tell()

    def _look_at_process(self, now_ns: int) -> None:
        """CPU time of this process, and private memory that it has written.

        Private is what it does not share with its parent. A page that is copied is a page fault,
        which costs little to count. A look at the memory takes milliseconds, so there is one where
        faults could explain a growth that matters, and again when they have doubled.
        """
        used = resource.getrusage(resource.RUSAGE_SELF)  # one call, since the kernel takes a lock
        self.row[PROCESS_CPU_NS] = round((used.ru_utime + used.ru_stime) * 1e9) - self.cpu_base
        faults = used.ru_minflt - self.faults
        late = now_ns - self.looked_ns >= _PRIVATE_EVERY_NS and faults >= _FIRST_LOOK
        if self.private is None or not (late or faults >= self.next_look):
            return
        self.looked_ns = now_ns
        self.next_look = max(self.next_look, 2 * faults)
        now = private_bytes()
        if now is not None:
            self.row[PRIVATE_GROWN] = max(self.row[PRIVATE_GROWN], now - self.private)

    def opened(self, names: set[str]) -> bool:
        """Count files that this process opened, each the first time."""
        if self.closed:
            return False
        new = names - self.seen if len(self.seen) < MAX_FILES else set()
        self.seen |= new
        inside, outside = 0, []
        for name in new:
            if self.root and name.startswith(self.roots) and "/." not in name:
                inside += 1
                continue
            full = os.path.abspath(name)
            if self.root and (
                full.startswith(self.roots) or os.path.realpath(full).startswith(self.root)
            ):
                inside += 1
            elif not (full.startswith(_NO_DATA) or full.endswith(_CODE) or "/pymp-" in full):
                outside.append(full)
        self.row[INSIDE] += inside
        self.row[OUTSIDE] += len(outside)
        for full in sorted(outside):
            self.board.add_name(self.number, full)
        return True

    def close(self) -> None:
        """Count no more files, and close those of the kernel's counters."""
        leave(self)
        self.closed = True
        self.kernel.close()


class _Collate:
    """The user's ``collate_fn``, whose time is added to a row of counts."""

    __slots__ = ("function", "row")

    def __init__(self, function: Callable[[Any], Any], row: Row) -> None:
        self.function, self.row = function, row

    def __call__(self, samples: Any) -> Any:
        began = time.monotonic_ns()
        try:
            return self.function(samples)
        finally:
            self.row[COLLATE_NS] += time.monotonic_ns() - began


_NO_DATA = (
    *("/proc/", "/sys/", "/dev/", "/usr/", "/lib/", "/etc/"),
    *(place.rstrip("/") + "/" for place in (sys.prefix, sys.base_prefix)),
)
"""Where Python and the kernel have their own files."""

# "/pymp-": multiprocessing's own folder of temporary files.
_CODE = (".py", ".pyc", ".so", ".pth")

"""What a process of a loader does, counted there: a worker, or the rank itself."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from ..load.torch_compat import wrap_fetches
from .board import (
    COLLATE_NS,
    CPU_NS,
    DEVICE_BYTES,
    FETCHES,
    FIRST_FETCH_NS,
    INSIDE,
    IO_KNOWN,
    OUTSIDE,
    PID,
    PRIVATE_GROWN,
    PROCESS_CPU_NS,
    QUEUED_NS,
    READ_CALLS_BYTES,
    READY_NS,
    RING,
    WALL_NS,
    Board,
    Row,
)
from .process import KernelCounters, leave, listen, private_bytes, tell

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
                self.fetched(began, wall, cpu, queued_ns() - queued)
                self._look_at_process(began + wall)

        return timed

    def watch_collate(self, fetcher: Any) -> None:
        """Count the time of the function with which a fetcher makes samples a batch."""
        if not isinstance(fetcher.collate_fn, _Collate):
            fetcher.collate_fn = _Collate(fetcher.collate_fn, self.row)

    def fetched(self, began_ns: int, wall_ns: int, cpu_ns: int, queued_ns: int) -> None:
        """Add a fetch of a batch to the counts. ``queued_ns``: it waited for a core to be free."""
        row = self.row
        if not row[FIRST_FETCH_NS]:
            row[FIRST_FETCH_NS] = began_ns
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

    def opened(self, name: str) -> bool:
        """Count a file that this process opened, the first time."""
        if self.closed:
            return False
        if name in self.seen or len(self.seen) >= MAX_FILES:
            return True
        self.seen.add(name)
        if self.root and name.startswith(self.roots) and "/." not in name:
            self.row[INSIDE] += 1
            return True
        full = os.path.abspath(name)
        if self.root and (
            full.startswith(self.roots) or os.path.realpath(full).startswith(self.root)
        ):
            self.row[INSIDE] += 1
        elif not (full.startswith(_NO_DATA) or full.endswith(_CODE) or "/pymp-" in full):
            self.row[OUTSIDE] += 1
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

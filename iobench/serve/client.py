"""The client of an open loop: it issues each request at its instant, by threads.

Each thread takes the next request in the order of arrival, waits for its instant and reads. So
there is no queue to hand requests over: a request whose instant has come waits for a free thread,
and that wait is part of its latency. How late a thread wakes up that was free in time is what the
client itself adds; it is recorded apart (``Issued.taken_ns``).
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..base.errors import IobenchError
from ..base.interrupts import defer_interrupts
from .arrivals import Instants

Read = Callable[[int], int]
"""Read the sample of this number, and return its bytes. Raises IobenchError."""

HEAD_START_NS = 20_000_000
"""From the call to the begin of the window, so that all threads wait by then."""

_NAP_NS = 50_000_000
"""A thread that waits looks as often whether it should end."""

_SWITCH_S = 0.0005
"""How long a thread may keep the interpreter while others want it. Python's 5 ms would be a
latency that no storage has."""


class Sequel(Protocol):
    """What goes on with a request whose sample was read: a log, for example."""

    def begin(self, begin_ns: int) -> None:
        """The window begins at this instant of the monotonic clock."""

    def ready(self, request: int, at_ns: int) -> None:
        """The sample of a request is there, so long after the begin."""


@dataclass(frozen=True, kw_only=True)
class Issued:
    """What became of the requests of a window, in the order of arrival.

    Times are in nanoseconds from the begin of the window; -1: it did not come to that. ``taken_ns``
    is when a thread was free for the request, before its instant or after it. ``failure``: the
    first error of a read.
    """

    intended_ns: Instants
    taken_ns: Instants
    issued_ns: Instants
    ready_ns: Instants
    failed: npt.NDArray[np.uint8]
    bytes: int
    cpu_s: float
    wall_s: float
    failure: IobenchError | None = None

    @property
    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """What became of each request, by the names of a record's columns."""
        names = ("intended_ns", "taken_ns", "issued_ns", "ready_ns", "failed")
        return {name: getattr(self, name) for name in names}


def issue(
    instants: Instants,
    samples: Sequence[int],
    readers: Sequence[Read],
    *,
    drain_s: float,
    prepare: Callable[[], None] = lambda: None,
    sequel: Sequel | None = None,
) -> Issued:
    """Issue request ``i`` at ``instants[i]`` for ``samples[i]``; one thread for each reader.

    Each thread reads a sample before, off the clock, so that connections are open. Then ``prepare``
    is called, which may empty a cache, and the window begins. Requests that no thread has taken
    ``drain_s`` seconds after the last instant are left out: the reads can't keep up, and would go
    on for long. A failed read is a failed request. Raises what a read raises that is no
    IobenchError, and KeyboardInterrupt when no read is in flight any more.
    """
    number = len(instants)
    window = _Window(instants.tolist(), samples, sequel, drain_ns=int(drain_s * 1e9))
    threads = [
        threading.Thread(target=window.work, args=(read,), name="iobench-request", daemon=True)
        for read in readers[: max(1, number)]
    ]
    with steady():
        began_s, cpu_s = time.monotonic(), time.process_time()
        try:
            with defer_interrupts():
                for thread in threads:
                    thread.start()
            for _ in threads:
                window.warm.acquire()
            prepare()
            gc.collect()
            began_s, cpu_s = time.monotonic(), time.process_time()
            window.begin()
            for thread in threads:
                thread.join()
        finally:
            window.end()
            for thread in threads:
                thread.join()
        cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - began_s
    if window.broken is not None:
        raise window.broken
    return Issued(
        intended_ns=instants,
        taken_ns=window.taken,
        issued_ns=window.issued,
        ready_ns=window.ready,
        failed=window.failed,
        bytes=sum(window.bytes),
        cpu_s=cpu_s,
        wall_s=wall_s,
        failure=window.failure,
    )


class _Window:
    """What the threads of one window share. Each row of a column is written by one thread."""

    def __init__(
        self,
        instants: list[int],
        samples: Sequence[int],
        sequel: Sequel | None,
        *,
        drain_ns: int,
    ) -> None:
        self.instants, self.samples, self.sequel = instants, samples, sequel
        self.end_ns = (instants[-1] if instants else 0) + drain_ns
        self.taken, self.issued, self.ready = (
            np.full(len(instants), -1, np.int64) for _ in range(3)
        )
        self.failed = np.zeros(len(instants), np.uint8)
        self.bytes: list[int] = []
        self.failure: IobenchError | None = None
        self.broken: BaseException | None = None
        self.stop = threading.Event()
        self.next = count()  # the interpreter gives each number to one thread alone
        self.warm, self.go = threading.Semaphore(0), threading.Event()
        self.begin_ns = 0

    def begin(self) -> None:
        self.begin_ns = time.monotonic_ns() + HEAD_START_NS
        if self.sequel is not None:
            self.sequel.begin(self.begin_ns)
        self.go.set()

    def end(self) -> None:
        self.stop.set()
        self.go.set()

    def work(self, read: Read) -> None:
        try:
            if self.samples:
                with suppress(IobenchError):  # the request for this sample tells
                    read(self.samples[0])
        except BaseException as error:
            self._break(error)
        self.warm.release()
        self.go.wait()
        self._requests(read)

    def _break(self, error: BaseException) -> None:
        """End the window: this is no failure of a request."""
        self.broken = error
        self.stop.set()

    def _requests(self, read: Read) -> None:
        total, begin, now_ns, sleep = 0, self.begin_ns, time.monotonic_ns, time.sleep
        instants, taken, issued, ready = self.instants, self.taken, self.issued, self.ready
        number, stopped, sequel = len(instants), self.stop.is_set, self.sequel
        try:
            while (request := next(self.next)) < number and not stopped():
                at, now = instants[request], now_ns() - begin
                if now > self.end_ns:
                    break
                taken[request] = now
                while now < at:
                    sleep(min(at - now, _NAP_NS) / 1e9)
                    if stopped():
                        return
                    now = now_ns() - begin
                issued[request] = now
                try:
                    total += read(self.samples[request])
                except IobenchError as error:
                    self.failed[request] = 1
                    self.failure = self.failure or error
                ready[request] = now = now_ns() - begin
                if sequel is not None and not self.failed[request]:
                    sequel.ready(request, now)
        except BaseException as error:
            self._break(error)
        finally:
            self.bytes.append(total)


@contextmanager
def steady() -> Iterator[None]:
    """Keep the interpreter from standing still for its own purposes."""
    switch, collects = sys.getswitchinterval(), gc.isenabled()
    gc.disable()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(switch)
        if collects:
            gc.enable()

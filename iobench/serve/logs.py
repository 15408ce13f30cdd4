"""The log of what was asked and answered, which is written while requests are served.

A log must do its work when an answer is ready, which an emulated accelerator decides. So it is
emulated here while the window goes on (``_emulate``), and each record is handed to a writer at the
end of its step. When an open loop has no log, nobody needs to know that so early.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..base.errors import IobenchError, StorageError
from ..base.interrupts import defer_interrupts
from ..base.pagecache import PAGE, unwritten_bytes
from ..record.training import RankLog
from ..settings.workload import LogSpec
from ..storage import open_storage
from ..storage.base import Sink, Storage, Syncing, delete, innermost, local_root
from ..storage.locks.held import Held
from ..storage.locks.lock import Lease
from ..storage.markers import Marked
from .arrivals import Instants

Floats = npt.NDArray[np.float64]

_FILE = re.compile(r"window-\d{5,}-\d{4}-\d{8}\.log(\.part)?")

LOGS = Marked(".iobench-logs", "logs", lambda key: _FILE.fullmatch(key) is not None)
"""Places of logs, which hold their files or objects only while a window goes on."""

LOOKS = 20
"""How often a window is asked what a crash would lose at that instant."""

_NAP_S = 0.05

_CONTENT = 4 << 20
"""Random bytes of which records are made: more than what file systems compress together."""

_KEPT = 1000
"""Times of requests whose step has begun that are kept before they are removed together."""


class Batching(Protocol):
    """Accelerators that take requests in batches, in nanoseconds."""

    step: float

    def next_begin(self, ready: Sequence[float], first: int = 0) -> float: ...

    def begin(self, ready: Sequence[float], first: int = 0) -> tuple[float, int]: ...


@dataclass(frozen=True, kw_only=True)
class Logged:
    """What became of the records of a window.

    ``logged_ns``: when each was committed, from the begin of the window; -1: it was not.
    ``at_risk``: the most records of answers that a crash of the host would have lost, at one of
    ``LOOKS`` instants, and ``volatile``, of these, those that had been committed; None: that can't
    be seen.
    """

    logged_ns: Instants
    bytes: int
    commits: int
    objects: int
    at_risk: int | None
    volatile: int | None


class Log:
    """Writes the records of one window, by threads of its own."""

    def __init__(
        self,
        spec: LogSpec,
        storage: Storage,
        *,
        window: int,
        sizes: Sequence[int],
        seconds: float,
        steps: Batching | None = None,
    ) -> None:
        """``window``: its number, in the names of the files. ``sizes``: bytes of each record.

        ``seconds``: for which requests arrive. ``steps``: the accelerators; None: whoever steps
        says what is ``answered``.
        """
        self.spec, self.storage, self.window, self.sizes = spec, storage, window, sizes
        self.seconds, self.grows = seconds, storage.traits.syncs
        self.logged = np.full(len(sizes), -1, np.int64)
        self.failure: Exception | None = None
        self._steps, self._begin_ns = steps, 0
        self._step = max(sizes, default=1)
        self._content = memoryview(os.urandom(max(_CONTENT, 2 * self._step)))
        self._ready: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self._answered: SimpleQueue[int | None] = SimpleQueue()
        self.counting = threading.Lock()  # of records that are written or committed
        self._stop, self._late = threading.Event(), threading.Event()
        self._over = threading.Event()  # all records are committed
        self._writers = [_Writer(self, number) for number in range(spec.writers)]
        self._answers = 0
        self._lost: tuple[int, int] | None = None if sizes else (0, 0)
        works = (self._hand_over, self._look, *(writer.work for writer in self._writers))
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name="iobench-log", daemon=True)
            for work in works
        ]

    def begin(self, begin_ns: int) -> None:
        """The window begins at this instant of the monotonic clock."""
        self._begin_ns = begin_ns
        with defer_interrupts():
            for thread in self._threads:
                thread.start()

    def ready(self, request: int, at_ns: int) -> None:
        """The sample of a request is there. Raises what the log can't be written for."""
        if self.failure is not None:
            raise self.failure
        self._ready.put((at_ns, request))

    def answered(self, request: int) -> None:
        """The step of a request has ended, which nothing emulates. Raises as ``ready``."""
        if self.failure is not None:
            raise self.failure
        self._answers += 1
        self._answered.put(request)

    def end(self, drain_s: float) -> Logged:
        """Wait for the records of all answers, but not longer than this.

        Raises what the log can't be written for.
        """
        self._ready.put(None)
        deadline = time.monotonic() + drain_s
        for thread in self._threads[:1] + self._threads[2:]:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._over.set()
        self._late.set()  # what has not been written is left out
        for thread in self._threads:
            thread.join()
        if self.failure is not None:
            raise self.failure
        return Logged(
            logged_ns=self.logged,
            bytes=sum(each.bytes for each in self._writers),
            commits=sum(each.commits for each in self._writers),
            objects=sum(len(each.keys) for each in self._writers),
            at_risk=self._lost[0] if self._lost else None,
            volatile=self._lost[1] if self._lost else None,
        )

    def remove(self, held: Callable[[], None]) -> None:
        """End the log, if it has not ended, and remove what was written.

        ``held`` is called before each deletion, and raises where the place is another process's.
        """
        self.give_up()
        for writer in self._writers:
            while writer.keys:
                delete(self.storage, writer.keys.pop(), held)

    def give_up(self) -> None:
        """End the log, if it has not ended, and leave what was written."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    @property
    def committed(self) -> int:
        """Records that are committed."""
        return sum(each.records for each in self._writers)

    @property
    def held(self) -> int:
        """Records that are written, and not committed."""
        return sum(len(each.group) for each in self._writers)

    def now_ns(self) -> int:
        return time.monotonic_ns() - self._begin_ns

    def record(self, request: int) -> memoryview:
        """The bytes of a record, which no storage can compress: they are repeated after 4 MiB."""
        size = self.sizes[request]
        at = self._step * request % (len(self._content) - size + 1)
        return self._content[at : at + size]

    def next_answer(self, until_ns: float) -> int | None:
        """The next request that was answered; None: there was none until then.

        Raises _EndedError after the last one.
        """
        while not self._stop.is_set() and not self._late.is_set():
            left_s = min((until_ns - self.now_ns()) / 1e9, _NAP_S)
            try:
                found = self._answered.get(timeout=max(0.0, left_s))
            except Empty:
                if self.now_ns() >= until_ns:
                    return None
                continue
            if found is None:
                break
            return found
        if self._stop.is_set():
            raise _GivenUpError
        raise _EndedError

    def _guarded(self, work: Callable[[], None]) -> None:
        """A failure is kept for whoever hands over records, and ends all threads."""
        try:
            work()
        except _GivenUpError:
            pass
        except Exception as error:
            self.failure = self.failure or error
            self._stop.set()

    def _hand_over(self) -> None:
        """Let the writers end after the last answer."""
        if self._steps is None:
            self._await_end()
        else:
            self._emulate()
        for _ in self._writers:
            self._answered.put(None)

    def _await_end(self) -> None:
        """Wait until all records have been handed over; nothing is emulated."""
        more = True
        while more:
            if self._stop.is_set():
                raise _GivenUpError
            with suppress(Empty):
                more = self._ready.get(timeout=_NAP_S) is not None

    def _emulate(self) -> None:
        """Hand each record over when the step of its request ends."""
        times, requests, first = list[float](), list[int](), 0  # that wait, from ``first`` on
        steps: deque[tuple[float, list[int]]] = deque()
        accelerators, more = self._steps, True
        assert accelerators is not None
        while (more or first < len(times) or steps) and not self._late.is_set():
            now = self.now_ns()
            while first < len(times) and accelerators.next_begin(times, first) <= now:
                begin, stop = accelerators.begin(times, first)
                steps.append((begin + accelerators.step, requests[first:stop]))
                first = stop
            while steps and steps[0][0] <= now:
                for request in steps.popleft()[1]:
                    self._answers += 1
                    self._answered.put(request)
            due = min(steps[0][0] if steps else math.inf, now + _NAP_S * 1e9)
            if first < len(times):
                due = min(due, accelerators.next_begin(times, first))
            if first > _KEPT:
                del times[:first], requests[:first]
                first = 0
            wait_s = max(0.0, due - self.now_ns()) / 1e9
            if self._stop.is_set():
                raise _GivenUpError
            if not more:
                time.sleep(wait_s)
                continue
            with suppress(Empty):
                found = self._ready.get(timeout=wait_s)
                while found is not None:
                    at = bisect_right(times, found[0], first)
                    times.insert(at, found[0])
                    requests.insert(at, found[1])
                    found = self._ready.get_nowait()
                more = False

    def _look(self) -> None:
        """Ask, again and again, how many records of answers a crash would lose now."""
        for look in range(1, LOOKS + 1 if self.sizes else 0):
            while (left_s := self.seconds * look / LOOKS - self.now_ns() / 1e9) > 0:
                if self._stop.wait(min(left_s, _NAP_S)) or self._over.is_set():
                    return
            found, before = self.lost_now(), self._lost or (0, 0)
            if found is None:
                self._lost = None
                return
            self._lost = max(before[0], found[0]), max(before[1], found[1])

    def lost_now(self) -> tuple[int, int] | None:
        """Records of answers that are not on the storage, and the committed ones among them.

        Records that no writer has written, and those in pages that are dirty: not committed yet, or
        committed by a sync that does not write. What is committed to another machine is there.
        None: that can't be seen here.
        """
        with self.counting:
            held, waiting = self.held, max(0, self._answers - self.committed - self.held)
            safe = sum(each.safe_bytes for each in self._writers)
        if not self.storage.traits.page_cache:
            return 0 if self.spec.waits else waiting + held, 0
        if local_root(innermost(self.storage)) is None:
            return None
        paths = [path for each in self._writers if (path := each.path()) is not None]
        try:
            dirty = unwritten_bytes(paths)
        except StorageError:  # a file that was closed at this very moment
            dirty = 0
        if dirty is None:
            return None
        mean = sum(self.sizes) / len(self.sizes)
        # What was written until now, and not committed before, may be dirty.
        may_be = sum(each.bytes for each in self._writers) - safe
        clean_pages = dirty // PAGE - math.ceil(may_be / PAGE) - 2 * len(paths)
        lost = math.ceil(max(0, clean_pages) * PAGE / mean)
        if self.spec.waits:  # the others have no answer yet
            return lost, lost
        return waiting + (min(held, math.ceil(dirty / mean) + 1) if dirty else 0) + lost, lost


class _Writer:
    """One thread that writes records, into one file or object after the other."""

    def __init__(self, log: Log, number: int) -> None:
        self.log, self.number = log, number
        self.group: list[int] = []  # written, and not committed
        self.keys: list[str] = []  # of the files or objects that are complete
        self.bytes = self.safe_bytes = 0  # written, and of these, committed
        self.records = self.commits = 0
        self._since_ns = 0  # the first of them was written
        self._key = ""

    def path(self) -> str | None:
        """The file that is being written."""
        root = local_root(innermost(self.log.storage))
        return f"{root}/{self._key}" if root is not None and self._key else None

    def work(self) -> None:
        try:
            for number in count():
                first = None
                while first is None:
                    first = self.log.next_answer(math.inf)
                self._object(number, first)
        except _EndedError:
            return

    def _object(self, number: int, first: int) -> None:
        """Write one file or object, from its first record to its rotation."""
        log, spec = self.log, self.log.spec
        key = f"window-{log.window:05d}-{self.number:04d}-{number:08d}.log"
        began, size, ended = log.now_ns(), 0, False
        request: int | None = first
        with log.storage.create(key, durable=not log.grows) as sink:
            self._key = key if log.grows else ""
            while not ended:
                now = log.now_ns()
                if request is not None:
                    size += self._write(sink, request, now)
                rotate_ns = began + int(spec.rotate_delay * 1e9)
                if size >= spec.rotate_bytes or now >= rotate_ns:
                    break
                due_ns = self._due_ns()
                if due_ns <= now and log.grows:
                    self._commit(sink)
                    due_ns = math.inf
                if due_ns <= now:
                    break
                try:
                    request = log.next_answer(min(rotate_ns, due_ns))
                except _EndedError:
                    ended = True
            if log.grows:
                self._commit(sink)
        self._key = ""
        self._commit(None)
        self.keys.append(key)
        if ended:
            raise _EndedError

    def _write(self, sink: Sink, request: int, now_ns: int) -> int:
        record = self.log.record(request)
        if not self.group:
            self._since_ns = now_ns
        self.bytes += len(record)
        self.group.append(request)
        sink.write(record)
        return len(record)

    def _due_ns(self) -> float:
        """When the records are to be committed that are not yet."""
        spec = self.log.spec
        if not self.group or spec.commit == "rotation":
            return math.inf
        full = 1 if spec.commit == "record" else spec.group_records
        delay_ns = 0 if len(self.group) >= full else int(spec.group_delay * 1e9)
        return self._since_ns + delay_ns

    def _commit(self, sink: Sink | None) -> None:
        """Make the records durable; without a sink its object just has become so."""
        if not self.group:
            return
        if sink is not None:
            assert isinstance(sink, Syncing)
            sink.sync()
        self.log.logged[self.group] = self.log.now_ns()
        with self.log.counting:
            self.records += len(self.group)
            self.safe_bytes = self.bytes
            self.group = []
        self.commits += 1


class LogPlace(NamedTuple):
    """Where logs are written, which this process holds."""

    storage: Storage
    lease: Lease
    held: Held

    def clear(self) -> None:
        """Remove all files and objects of logs. Raises StorageError."""
        for entry in [each for each in self.storage.list() if _FILE.fullmatch(each.key)]:
            delete(self.storage, entry.key, self.held)


@contextmanager
def log_place(spec: LogSpec, verb: str, *, break_lock: bool) -> Iterator[LogPlace | None]:
    """Hold the place of a log, if there is to be one, and leave nothing there.

    Raises TargetHeldError, TargetRefusedError. A failure to remove what is left is raised unless
    the body has failed.
    """
    if spec.to is None:
        yield None
        return
    storage = open_storage(spec.to)
    with LOGS.held(storage, verb, break_lock=break_lock) as lease:
        place = LogPlace(storage, lease, Held(lease))
        try:
            yield place
        except BaseException:
            with suppress(IobenchError):
                LOGS.clean(storage, held=place.held)
            raise
        LOGS.clean(storage, held=place.held)


_NUMBERS = 1 << 18
"""Records whose times are known; those before them have been counted."""

DRAIN_S = 10.0
"""How long a pass waits for the rest of its log."""


class StepLog:
    """The log of a pass of one rank: when a step ends, a record of each of its samples is due.

    ``window``: its number, in the names of the files. ``record_bytes``: of each record.
    ``seconds``: how long the pass takes at least, in which it is asked what a crash would lose.
    Made once the rank forks no more processes: it has threads.
    """

    def __init__(self, spec: LogSpec, *, window: int, record_bytes: int, seconds: float) -> None:
        self.spec, self._storage = spec, open_storage(str(spec.to))
        self._log = Log(
            spec,
            self._storage,
            window=window,
            sizes=[record_bytes] * _NUMBERS,
            seconds=seconds,
        )
        self._handed = self._backlog = 0
        self._waited_ns = 0
        self._ended_ns = np.zeros(_NUMBERS, np.int64)
        self._log.begin(time.monotonic_ns())

    def step(self, samples: int, given_up: Callable[[], bool]) -> int:
        """A step has ended. Where answers wait, so does this, unless it is ``given_up``.

        Returns the nanoseconds of the wait. Raises what the log can't be written for.
        """
        log, now_ns = self._log, self._log.now_ns()
        for number in range(self._handed, self._handed + samples):
            self._ended_ns[number % _NUMBERS] = now_ns
            log.answered(number % _NUMBERS)
        self._handed += samples
        self._backlog = max(self._backlog, self._handed - log.committed)
        while self.spec.waits and log.committed < self._handed and not given_up():
            if log.failure is not None:
                raise log.failure
            time.sleep(_POLL_S)
        waited_ns = log.now_ns() - now_ns if self.spec.waits else 0
        self._waited_ns += waited_ns
        return waited_ns

    def end(self) -> tuple[RankLog, Floats]:
        """Wait for the rest; also return the mean time to the commit of each step's records.

        Raises as ``step``.
        """
        log = self._log
        at_end, seconds = self._handed - log.committed, log.now_ns() / 1e9
        done = log.end(DRAIN_S)
        known = min(self._handed, _NUMBERS)
        logged = np.roll(done.logged_ns, -(self._handed % _NUMBERS) if known < self._handed else 0)
        ended = np.roll(self._ended_ns, -(self._handed % _NUMBERS) if known < self._handed else 0)
        logged, ended = logged[:known], ended[:known]
        there = logged >= ended
        waits, ended = (logged - ended)[there] / 1e9, ended[there]
        first = np.flatnonzero(np.diff(ended, prepend=-1))  # of each step
        means = np.add.reduceat(waits, first) / np.diff(first, append=len(waits))
        last_s = max(seconds, float(logged.max()) / 1e9 if known else 0.0)
        found = RankLog(
            seconds=last_s,
            records=log.committed,
            left=self._handed - log.committed,
            bytes=done.bytes,
            commits=done.commits,
            objects=done.objects,
            waited_s=self._waited_ns / 1e9,
            commit_p50_s=float(np.quantile(waits, 0.5)) if len(waits) else None,
            commit_p99_s=float(np.quantile(waits, 0.99)) if len(waits) else None,
            backlog_max=self._backlog,
            backlog_end=at_end,
            at_risk=done.at_risk,
            volatile=done.volatile,
        )
        return found, means

    def close(self) -> None:
        """End its threads; what was written is removed by whoever holds the place."""
        self._log.give_up()
        self._storage.close()


_POLL_S = 0.0002


class _EndedError(Exception):
    """There are no more answers."""


class _GivenUpError(Exception):
    """The log was given up."""

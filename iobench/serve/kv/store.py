"""The chunks of a KV cache on storage: loaded by requests, written and deleted behind them.

A request waits until its chunks are written, looks
for them, and loads them by several reads at a time. What it computes is written by threads of the
store, when its prefill would have ended: an emulated engine takes the prompts in the order in which
their loads have ended.
"""

from __future__ import annotations

import heapq
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Literal

import numpy as np

from ...base import buffers
from ...base.buffers import Memory
from ...base.errors import IobenchError, StorageError
from ...base.interrupts import defer_interrupts
from ...load.engines.base import Extent, ReadEngine
from ...load.reader import make_engine, reads_by
from ...settings.kv_cache import KvScenario
from ...settings.workload import Engine
from ...storage.base import Cached, Storage
from ...storage.local.storage import ALIGNMENT
from ...storage.markers import Marked
from ..arrivals import Instants
from ..client import Read
from .layouts import ChunkFiles, layout_of
from .tiers import Planned, WindowPlan

_PIECE = re.compile(r"window-\d{5}(-\d{9}-\d{4}\.kv|\.extents)(\.part)?")

KV_CHUNKS = Marked(".iobench-kv", "kv", lambda key: _PIECE.fullmatch(key) is not None)
"""Places of KV caches, which hold their chunks only while a window goes on."""

LeftOut = Literal["reads", "writes", "lookups"]
"""What a window is measured without."""

_AGAIN_NS = 5_000_000
"""A deletion that has to wait for a load, or for the write of its chunk, is tried so much later."""

_NAP_S = 0.05

_PENDING, _WRITTEN, _FAILED, _DELETED = range(4)


@dataclass(kw_only=True)
class Written:
    """What became of the chunks that were written and deleted behind the requests of a window.

    ``write_s``: of each chunk, without what it waited for a thread; that is in ``behind_s``.
    ``left``: writes that were not begun in time. ``flush_s``: until all were on the storage, after
    the last one; None where each of them is durable when it ends. ``failure``: the first error.
    """

    chunks: int = 0
    bytes: int = 0
    failed: int = 0
    left: int = 0
    deleted: int = 0
    write_s: list[float] = field(default_factory=list)
    behind_s: list[float] = field(default_factory=list)
    delete_s: list[float] = field(default_factory=list)
    end_s: float = 0.0  # of the last write, from the begin of the window
    flush_s: float | None = None
    failure: IobenchError | None = None


def slot_of(spec: KvScenario) -> int:
    """Bytes of a chunk in memory, whose pieces are aligned."""
    return -(-spec.piece_bytes // ALIGNMENT) * ALIGNMENT * spec.pieces


def memory_bytes(spec: KvScenario, plan: WindowPlan) -> int:
    """Bytes that the tier in memory takes in this window, if it is real."""
    readers = min(spec.reader.concurrency, max(1, len(plan.requests)))
    return (plan.slots + readers) * slot_of(spec) if spec.memory == "real" else 0


def engine_of(spec: KvScenario, storage: Storage) -> Engine:
    """What keeps the reads of a request in flight on this storage.

    Threads open a file for one read as fast as a ring does, with half the CPU time.
    """
    asked, stays_open = spec.reader.engine, spec.piece_bytes > spec.reader.block_size
    wanted: list[Engine] = [asked] if asked != "auto" else ["event_loop"]
    if asked == "auto" and (stays_open or spec.layout == "extents"):
        wanted.append("io_uring")
    return next((engine for engine in wanted if reads_by(engine, storage)), "threads")


class ChunkStore:
    """The chunks of one window.

    ``waited``, ``looked`` and ``copied`` are columns of its requests, in ns.
    """

    def __init__(
        self,
        spec: KvScenario,
        storage: Storage,
        plan: WindowPlan,
        *,
        window: int,
        held: Callable[[], None],
        without: LeftOut | None = None,
    ) -> None:
        """``held`` is called before each deletion: it raises where the place is another's now."""
        self.layout = layout_of(spec, storage, window, held)
        self.spec, self.storage, self.plan, self.without = spec, storage, plan, without
        number = len(plan.requests)
        self.waited: Instants = np.full(number, -1, np.int64)
        self.looked: Instants = np.full(number, -1, np.int64)
        self.copied: Instants = np.full(number, -1, np.int64)
        self.written = Written()
        self._state = bytearray(plan.chunks)
        self._loads_left = np.zeros(plan.chunks, np.int64)
        for each in plan.requests:
            np.add.at(self._loads_left, list(each.loads), 1)
        self._changed = threading.Condition()
        self._free = [0] * spec.prefill.engines
        self._prefills = [
            int(1e9 * spec.prefill_s(each.tokens, each.in_memory + each.loaded))
            for each in plan.requests
        ]
        self._begin_ns = 0
        self._began = self._closing = False
        self._broken: BaseException | None = None  # what ended a thread, and is no failed write
        self._looks_up = spec.looks_up and without != "lookups"
        self._tasks: list[tuple[int, int, int, bool]] = []  # due, order, chunk, whether a deletion
        self._order = 0
        self._writers: list[threading.Thread] = []
        self._engines = [
            make_engine(
                engine_of(spec, storage),
                storage,
                concurrency=spec.reader.depth,
                block_size=min(spec.reader.block_size, 2 * spec.piece_bytes),
                # A file that is read by one request is closed again: it may be deleted soon.
                once=spec.layout == "files",
            )
            for _ in range(min(spec.reader.concurrency, max(1, number)))
        ]
        # The slots of the tier in memory, and for each reader one to which it copies.
        self._slots: Memory | None = None
        if spec.memory == "real":
            self._slots = buffers.private(memory_bytes(spec, plan)).array.reshape(-1, slot_of(spec))
            self._slots[:] = np.frombuffer(os.urandom(slot_of(spec)), np.uint8)

    # Before the window

    def prepare(self) -> int:
        """Write what must be there when the window begins; its bytes. Raises StorageError."""
        first = self.plan.only_loaded if self.without == "writes" else self.plan.before
        self.layout.reserve(max(len(first), self.plan.most))
        with ThreadPoolExecutor(self.spec.writers) as pool:
            for _ in pool.map(self.layout.put, first):
                pass
        for chunk in first:
            self._state[chunk] = _WRITTEN
        self.storage.flush()
        if isinstance(self.storage, Cached):
            self.storage.evict(self.layout.keys(first))
        return len(first) * self.spec.chunk_bytes

    def readers(self) -> list[Read]:
        """As many readers of requests as may load at a time, each for a thread of its own."""
        for engine in self._engines:
            engine.reserve()
        return [
            partial(self._load, engine=engine, own=self.plan.slots + number)
            for number, engine in enumerate(self._engines)
        ]

    def blocks(self) -> list[Extent]:
        """All reads of the chunks that are loaded in the window and still lie there."""
        there = [chunk for chunk in self.plan.only_loaded if self._state[chunk] == _WRITTEN]
        return self._engines[0].blocks(
            [extent for chunk in there for extent in self.layout.extents(chunk)]
        )

    # Requests

    def begin(self, begin_ns: int) -> None:
        """The window begins at this instant of the monotonic clock."""
        self._begin_ns, self._began = begin_ns, True
        if self.without == "writes":
            return
        self._writers = [
            threading.Thread(target=self._write_behind, name="iobench-kv-write", daemon=True)
            for _ in range(self.spec.writers)
        ]
        with defer_interrupts():
            for thread in self._writers:
                thread.start()

    def ready(self, request: int, at_ns: int) -> None:
        """The loads of a request have ended, well or not: what is new is written later."""
        planned = self.plan.requests[request]
        with self._changed:
            ended = max(at_ns, self._free[0]) + self._prefills[request]
            heapq.heapreplace(self._free, ended)
            if self.without != "writes":
                for chunk in planned.writes:
                    self._add(ended, chunk, deletes=False)
                for chunk in planned.deletes:
                    self._add(ended, chunk, deletes=True)
            self._changed.notify_all()

    def _add(self, due_ns: int, chunk: int, *, deletes: bool) -> None:
        self._order += 1
        heapq.heappush(self._tasks, (due_ns, self._order, chunk, deletes))

    def now_ns(self) -> int:
        return time.monotonic_ns() - self._begin_ns

    def _load(self, number: int, engine: ReadEngine, own: int) -> int:
        """Load the chunks of a request; before the window, open what loads need.

        ``own``: the slot of memory to which this reader copies.
        """
        if not self._began:
            step = self.storage.alignment
            few = [Extent(key, 0, step, 0, 0) for key in self.layout.keys(self.plan.before[:1])[:1]]
            return engine.read(few * engine.concurrency, None)
        planned = self.plan.requests[number]
        try:
            self._wait_for(planned.loads)
            self.waited[number] = self.now_ns()
            if isinstance(self.layout, ChunkFiles) and self._looks_up:
                missing = planned.lookups > len(planned.loads)
                self.layout.look_up(planned.loads, self.plan.chunks if missing else None)
            self.looked[number] = self.copied[number] = self.now_ns()
            if self._slots is not None:
                for slot in planned.copies:
                    self._slots[own] = self._slots[slot]
                self.copied[number] = self.now_ns()
            return self._read(planned, engine, own)
        except IobenchError:
            self.ready(number, self.now_ns())
            raise
        finally:
            with self._changed:
                np.subtract.at(self._loads_left, list(planned.loads), 1)

    def _wait_for(self, chunks: Sequence[int]) -> None:
        """Wait until the chunks are written. Raises StorageError if one will never be."""
        if self.without == "writes":
            return
        state = self._state
        for chunk in chunks:
            if state[chunk] == _WRITTEN:
                continue
            with self._changed:
                while state[chunk] == _PENDING and not self._closing:
                    self._changed.wait(_NAP_S)
            if state[chunk] != _WRITTEN:
                raise StorageError(
                    f"cannot load {self.layout.name(chunk)}: its write "
                    + ("failed" if state[chunk] == _FAILED else "has not begun in time")
                )

    def _read(self, planned: Planned, engine: ReadEngine, own: int) -> int:
        if not planned.loads or self.without == "reads":
            return 0
        extents = [self.layout.extents(chunk) for chunk in planned.loads]
        if self._slots is None:
            return engine.read(list(chain.from_iterable(extents)), None)
        slot, piece = slot_of(self.spec), slot_of(self.spec) // self.spec.pieces
        landing = [(into if into >= 0 else own) * slot for into in planned.into]
        landed = [
            each._replace(landing=at + place * piece)
            for at, chunk in zip(landing, extents, strict=True)
            for place, each in enumerate(chunk)
        ]
        return engine.read(landed, self._slots.reshape(-1).data)

    # Behind the requests

    def _write_behind(self) -> None:
        try:
            self._work()
        except BaseException as error:  # no request may wait for a thread that is gone
            with self._changed:
                self._broken, self._closing = self._broken or error, True
                self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._tasks and not self._closing:
                    self._changed.wait(_NAP_S)
                if not self._tasks:
                    return
                late_ns = self.now_ns() - self._tasks[0][0]
                if late_ns < 0 and not self._closing:
                    self._changed.wait(min(_NAP_S, -late_ns / 1e9))
                    continue
                _, _, chunk, deletes = heapq.heappop(self._tasks)
                if deletes and self._state[chunk] == _FAILED:
                    continue
                if deletes and not self._free_to_delete(chunk):
                    if not self._closing:
                        self._add(self.now_ns() + _AGAIN_NS, chunk, deletes=True)
                    continue
                if self._closing and not deletes:
                    self.written.left += 1
                    continue
            self._delete(chunk) if deletes else self._write(chunk, late_ns / 1e9)

    def _free_to_delete(self, chunk: int) -> bool:
        return self._state[chunk] == _WRITTEN and not self._loads_left[chunk]

    def _write(self, chunk: int, behind_s: float) -> None:
        began, done = time.monotonic(), self.written
        failure: IobenchError | None = None
        try:
            self.layout.put(chunk)
        except IobenchError as error:
            failure = error
        with self._changed:
            self._state[chunk] = _WRITTEN if failure is None else _FAILED
            if failure is None:
                done.chunks += 1
                done.bytes += self.spec.chunk_bytes
                done.write_s.append(time.monotonic() - began)
                done.behind_s.append(behind_s)
                done.end_s = max(done.end_s, self.now_ns() / 1e9)
            else:
                done.failed += 1
                done.failure = done.failure or failure
            self._changed.notify_all()

    def _delete(self, chunk: int) -> None:
        began, failure = time.monotonic(), None
        try:
            self.layout.delete(chunk)
        except IobenchError as error:
            failure = error
        with self._changed:
            self.written.failure = self.written.failure or failure
            self.written.failed += failure is not None
            if failure is None:
                self._state[chunk] = _DELETED
                self.written.deleted += 1
                self.written.delete_s.append(time.monotonic() - began)

    def end(self, drain_s: float) -> Written:
        """Wait for the writes of all requests, but not longer than this.

        Raises what ended a thread that writes, if it is no IobenchError.
        """
        deadline = time.monotonic() + drain_s
        with self._changed:
            while (
                any(not task[3] for task in self._tasks)
                and time.monotonic() < deadline
                and not self._closing
            ):
                self._changed.wait(_NAP_S)
        self._close()
        if self._broken is not None:
            raise self._broken
        if self.written.chunks and not self.spec.durable:
            began = time.monotonic()
            self.storage.flush()
            self.written.flush_s = time.monotonic() - began
        return self.written

    def _close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._writers:
            if thread.ident is not None:
                thread.join()

    def remove(self) -> None:
        """End the store, and remove its chunks."""
        self._close()
        for engine in self._engines:
            engine.close()
        self.storage.close()
        self.layout.remove()

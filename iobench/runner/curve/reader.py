"""Who reads the places of a curve: this host, by fio or by threads, or several hosts together.

Threads, each of which has one read in flight, are for storages that fio can't read. A read releases
the interpreter's lock, so that threads wait at the same time. In the loop nothing is allocated but
the view of the memory to read into.
"""

from __future__ import annotations

import logging
import mmap
import os
import resource
import threading
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Protocol

import numpy as np

from ...base import buffers
from ...base.buffers import Buffer
from ...base.errors import ShortObjectError, StorageError
from ...host import fio
from ...host.fio import MAX_REPLAYED, MAX_REPLAYED_FILES
from ...host.fio_depth import (
    MIN_P99,
    MIN_P999,
    Depth,
    Engine,
    busy_time,
    engines,
    of_readers,
    percentile,
    read_at_depth,
)
from ...host.host import effective_cores
from ...record.curve import MeasuredWith
from ...storage.base import Files, Retries, Storage, retried
from ..agent import HostAgent
from .places import Place

log = logging.getLogger(__name__)

_ALIGN = 4096
"""Bytes. With O_DIRECT fio can't read what follows a file's last whole block."""


class FioReader:
    """Reads places of files. The first reads choose fio's engine: the best one that works here."""

    def __init__(self, storage: Files, *, direct: bool, once: bool, run_dir: Path) -> None:
        self.storage = storage
        self.direct = direct
        self.once = once
        self.run_dir = run_dir
        self.engine: Engine | None = None
        self._files: dict[str, tuple[Path, int]] = {}  # key -> path, readable bytes

    def read(self, places: Sequence[Place], *, in_flight: int, seconds: float, most: int) -> Depth:
        """Read the places in their order for ``seconds``, again from the first one up to ``most``.

        Raises StorageError, also if fio can't read any of them.
        """
        numbered = self._reads(places, in_flight)
        reads = [read for _, read in numbered]
        if not reads:
            raise StorageError("fio cannot read these files: each has less than 4 KiB")
        given = len(reads)
        reads = (reads * -(-most // given))[: max(given, min(most, MAX_REPLAYED))]
        failure: StorageError | None = None
        tried: Sequence[Engine] = (
            (self.engine,) if self.engine else engines(direct=self.direct, once=self.once)
        )
        for engine in tried:
            try:
                found = read_at_depth(
                    reads,
                    engine=engine,
                    in_flight=in_flight,
                    once=self.once,
                    direct=self.direct,
                    seconds=seconds,
                    run_dir=self.run_dir,
                )
            except StorageError as error:
                log.info("fio's engine %s failed: %s", engine, error)
                failure = failure or error
                continue
            self.engine = engine
            last, _ = numbered[min(found.used, given) - 1]
            return replace(found, used=last + 1, again=found.reads > given)
        raise failure or StorageError("fio has no engine to read with")

    def _reads(
        self, places: Sequence[Place], in_flight: int
    ) -> list[tuple[int, tuple[Path, int, int]]]:
        """What fio has to read, with the number of its place, within its limits of reads and files.

        Places of which it can't read a byte are left out.
        """
        files = MAX_REPLAYED_FILES * (in_flight if self.once else 1)
        known: set[str] = set()
        reads = []
        for number, (key, offset, length, _) in enumerate(islice(places, MAX_REPLAYED)):
            known.add(key)
            if len(known) > files:
                break
            path, size = self._file(key)
            length = min(length, size - offset)
            if length > 0:
                reads.append((number, (path, offset, length)))
        return reads

    def _file(self, key: str) -> tuple[Path, int]:
        if key not in self._files:
            path = self.storage.local_path(key)
            try:
                size = os.stat(path).st_size
            except OSError as error:
                raise StorageError(f"cannot look at {path}: {error.strerror}") from error
            self._files[key] = path, size // _ALIGN * _ALIGN if self.direct else size
        return self._files[key]


class PlaceReader(Protocol):
    """Reads places with a number of them in flight.

    ``by`` and ``program``: with what, once something was read. ``notes``: what is to be said of it.
    ``hosts``: how many share the reads in flight, so that their number is a multiple of it.
    ``points``: for each point what each of them read, where they are several.
    """

    by: MeasuredWith
    program: str
    notes: list[str]
    hosts: int
    agent: HostAgent
    points: list[Sequence[Depth]]

    def read(
        self, places: Sequence[Place], *, in_flight: int, seconds: float, most: int
    ) -> Depth: ...


_THREADS = "threads of this process"


class HostReader:
    """Reads on this host: by fio, or by threads where fio can't read what it was given first."""

    hosts = 1

    def __init__(self, storage: Storage, *, max_bytes: int, once: bool, run_dir: Path) -> None:
        """``max_bytes``: of the longest place. ``once``: each object is one place."""
        self.storage = storage
        self.agent = HostAgent(storage)
        self.by: MeasuredWith = "engine"
        self.program = _THREADS
        self.notes: list[str] = []
        self.points: list[Sequence[Depth]] = []
        self._threads = ThreadReader(storage, max_bytes=max_bytes, once=once)
        self._fio: FioReader | None = None
        self._began = False
        if isinstance(storage, Files) and fio.available():
            direct = storage.traits.direct
            self._fio = FioReader(storage, direct=direct, once=once, run_dir=run_dir)
            self.by = self.program = "fio"
        elif isinstance(storage, Files):
            self.notes.append(f"measured without fio: {self.agent.why_no_fio()}")

    def read(self, places: Sequence[Place], *, in_flight: int, seconds: float, most: int) -> Depth:
        """Read the places in their order for ``seconds``, again from the first one up to ``most``.

        Raises StorageError, NoMemoryError.
        """
        if self._fio is not None:
            try:
                found = self._fio.read(places, in_flight=in_flight, seconds=seconds, most=most)
                self._began, self.program = True, f"fio {self._fio.engine}"
                return found
            except StorageError as error:
                if self._began:
                    raise
                self.notes.append(f"measured without fio: {error.what}")
                self._fio, self.by, self.program = None, "engine", _THREADS
            if not self.storage.traits.uncached:  # fio may have read some of the bytes
                self.agent.empty_cache(list({place.key for place in places}))
        return self._threads.read(places, in_flight=in_flight, seconds=seconds, most=most)


_END_S = 5.0

_MIN_READS = 2
"""Reads of each thread: one that is left out, and one that is counted."""


class ThreadReader:
    """Reads places of one storage. Its memory is kept between calls, and touched before a clock."""

    def __init__(self, storage: Storage, *, max_bytes: int, once: bool) -> None:
        """``max_bytes``: of the longest place. ``once``: no object is read twice in a row."""
        self.storage = storage
        self.once = once
        self.max_bytes = max_bytes
        self._memory: list[Buffer] = []

    def read(self, places: Sequence[Place], *, in_flight: int, seconds: float, most: int) -> Depth:
        """Read the places in their order for ``seconds``, again from the first one up to ``most``.

        Each thread reads two places at least, as far as there are so many, and goes on until the
        slowest thread has, so that no read meets fewer others than ``in_flight`` says. Rates are
        those of the time in which all threads were busy after their first reads. A first read
        opens connections and files, and the first of many readers meet an idle storage, so that
        their reads end earlier than those of readers that have been waiting for each other. First
        reads are left out of latencies, too, where the threads have done enough others.
        Raises StorageError, NoMemoryError.
        """
        self._reserve(in_flight)
        work = _Work(self.storage, places, seconds=seconds, most=most, once=self.once)
        before = retried(self.storage)
        cpu = _cpu_s(resource.RUSAGE_SELF)
        work.run(self._memory[:in_flight])
        cpu = _cpu_s(resource.RUSAGE_SELF) - cpu
        return work.result(in_flight, cpu, retried(self.storage).since(before))

    def _reserve(self, count: int) -> None:
        """Have ``count`` buffers. New ones share a region, as huge pages are larger than most."""
        missing = count - len(self._memory)
        if missing <= 0:
            return
        step = -(-self.max_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        region = buffers.private(missing * step).array.data
        self._memory += [region[at * step : at * step + self.max_bytes] for at in range(missing)]


class _Work:
    """The state that the threads of one point share. Slot i of each array is of read i."""

    def __init__(
        self,
        storage: Storage,
        places: Sequence[Place],
        *,
        seconds: float,
        most: int,
        once: bool,
    ) -> None:
        self.storage, self.places, self.seconds, self.once = storage, places, seconds, once
        room = max(len(places), most)
        self.room = room
        self.numbers = count()  # next() is atomic
        self.began, self.ended = array("d", bytes(8 * room)), array("d", bytes(8 * room))
        self.reader = array("i", bytes(4 * room))
        self.left = 0  # threads that have to read on
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self.user_s: list[float] = []  # CPU time of each thread outside the kernel
        self.start_s = 0.0

    def run(self, memory: Sequence[Buffer]) -> None:
        """Start a thread for each buffer and wait for all. Raises what the first failure was."""
        gate = threading.Barrier(len(memory) + 1)
        self.left = len(memory)
        threads = [
            threading.Thread(
                target=self._read, args=(number, block, gate), daemon=True, name="iobench-curve"
            )
            for number, block in enumerate(memory)
        ]
        started: list[threading.Thread] = []
        try:
            for thread in threads:
                thread.start()
                started.append(thread)
            self.start_s = time.perf_counter()
            gate.wait()
            for thread in started:
                thread.join()
        except RuntimeError as error:  # can't start new thread
            self._end(gate, started)
            raise StorageError(
                f"this host did not start thread {len(started) + 1} of {len(threads)}: {error}",
                remedy="use a smaller --max-in-flight, or raise the limit (ulimit -u)",
            ) from error
        except BaseException:
            self._end(gate, started)
            raise
        if self.failure is not None:
            raise self.failure

    def _end(self, gate: threading.Barrier, started: Sequence[threading.Thread]) -> None:
        """Tell the threads to end and wait a little, since a read may take long."""
        self.stop.set()
        gate.abort()
        until = time.monotonic() + _END_S
        for thread in started:
            thread.join(max(0.0, until - time.monotonic()))

    def _read(self, number: int, memory: Buffer, gate: threading.Barrier) -> None:
        places, read_into, once = self.places, self.storage.read_into, self.once
        began, ended, reader, clock = self.began, self.ended, self.reader, time.perf_counter
        room, stopped, total = self.room, self.stop.is_set, len(self.places)
        try:
            gate.wait()
        except threading.BrokenBarrierError:
            return
        user = resource.getrusage(resource.RUSAGE_THREAD).ru_utime
        deadline = self.start_s + self.seconds
        own = 0
        through = False
        try:
            for at in self.numbers:
                if at >= room or stopped() or not self.left:
                    break
                key, offset, length, needed = places[at % total]
                start = clock()
                done = read_into(key, offset, memory[:length], once=once)
                end = clock()
                ended[at] = end
                began[at] = start
                reader[at] = number
                if done < needed:
                    raise ShortObjectError(
                        f"{key} ends at byte {offset + done}, but {offset + needed} were expected",
                        remedy="check that nothing writes to the data, and try again",
                    )
                own += 1
                if not through and end >= deadline and own >= _MIN_READS:
                    through = True
                    self._one_through()
        except BaseException as error:
            self.failure = self.failure or error
            self.stop.set()
        finally:
            if not through:
                self._one_through()
            self.user_s.append(resource.getrusage(resource.RUSAGE_THREAD).ru_utime - user)

    def _one_through(self) -> None:
        with self.lock:
            self.left -= 1

    def result(self, in_flight: int, cpu_s: float, again: Retries) -> Depth:
        ended, began = np.frombuffer(self.ended), np.frombuffer(self.began)
        reader = np.frombuffer(self.reader, dtype=np.int32)
        done = np.flatnonzero(ended > 0)
        if not len(done):
            raise StorageError("no read was completed", remedy="use a longer --budget")
        done = done[np.lexsort((ended[done], reader[done]))]
        places, total = self.places, len(self.places)
        lengths = np.array([places[at % total].length for at in done.tolist()], dtype=np.float64)
        first = np.ones(len(done), dtype=bool)
        first[1:] = reader[done][1:] != reader[done][:-1]
        ends = ended[done]
        cycles = ends - np.where(first, self.start_s, np.roll(ends, 1))
        counted = ~first if (~first).sum() >= in_flight else np.ones(len(done), dtype=bool)
        took = (ended - began)[done][counted]
        table = np.column_stack((reader[done], ends, cycles, lengths)).astype(np.float64)
        reads_per_s, bytes_per_s, windows, there = of_readers(table, busy_time(table, in_flight))
        seconds = float(ends.max()) - self.start_s
        return Depth(
            in_flight=in_flight,
            reads=len(done),
            bytes=int(lengths.sum()),
            seconds=seconds,
            reads_per_s=reads_per_s,
            bytes_per_s=bytes_per_s,
            window_reads_per_s=windows,
            window_bytes_per_s=there,
            latency_mean_s=float(took.mean()),
            latency_p50_s=percentile(took, 0.5),
            latency_p99_s=percentile(took, 0.99, MIN_P99),
            latency_p999_s=percentile(took, 0.999, MIN_P999),
            # One thread at a time runs Python; all cores can run what releases the lock.
            client_cpu_share=max(sum(self.user_s), cpu_s / effective_cores()) / max(seconds, 1e-9),
            used=min(int(done.max()) + 1, total),
            again=int(done.max()) >= total,
            retries=again.retries,
            throttled=again.throttled,
            latency_max_s=float(took.max()),
            cycles=table,
        )


def _cpu_s(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime

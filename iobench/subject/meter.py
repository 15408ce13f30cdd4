"""What a loader delivers and what its processes do for that, counted for one rank.

``run --loader`` and ``iobench.watch`` use the same meter: who iterates over the loader asks it
before each batch and tells it afterwards. Nothing of the loader is changed but its
``worker_init_fn``, and that only until ``close``.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ..base.errors import UsageError
from ..load.torch_compat import (
    fetcher_of,
    has_workers,
    inner_loader,
    is_map_style,
    time_sampler,
    timed_sampler,
)
from ..record.job import UserFacts
from . import board
from .batches import Repeats, Size, measure
from .board import BeginWorker, Board, Gauge, Turns, add_cpu_times, walls_and_work, why_no_turns
from .process import tell

_BEGAN = "the loader's workers had begun before they could be counted, so they are not seen"

_MAX_SIZES = 1000
"""Different sizes of batches that are told apart."""


class Meter:
    """Counts what the loader of one rank delivers, and what its processes do for that.

    ``of``: the loader that the user made, if ``iterable`` is a copy of it. ``gauge``: counts what
    this process does; it may listen to opened files before the loader is made. ``stated``: samples
    of a batch, if the user has said so. ``strict``: a batch whose number of samples is not known is
    an error; otherwise the next best number is taken, and ``samples_by`` names it. ``compares``:
    whether samples of several workers are compared. ``prepare``: what each worker does first, by
    its start method. ``wait_for_device``: wait for CUDA before each request for a batch.
    """

    def __init__(
        self,
        iterable: Iterable[Any],
        *,
        of: Iterable[Any] | None = None,
        gauge: Gauge,
        stated: int | None = None,
        strict: bool = False,
        compares: bool = True,
        prepare: Callable[[str], Callable[[int], None]] | None = None,
        wait_for_device: bool = False,
    ) -> None:
        of = iterable if of is None else of
        self.iterable, self.type = iterable, type(of)
        self.stated, self.strict, self.compares = stated, strict, compares
        self.batches = self.samples = self.delivered = 0
        self.wait_ns = self.held_back_ns = self.handed_over_ns = self.sampler_ns = 0
        self._sampled_ns = 0  # of it, until the last batch
        self.ready_s: list[float] = []  # from the beginning of an iteration to its last worker
        self.sizes: dict[int, int] = {}  # samples of a batch -> number of such batches
        self.samples_by = "the first dimension of its first tensor or array"
        if stated is not None:
            self.samples_by = "the batch_size that was stated"
        self.cpu_ns: dict[int, int] = {}
        self.inner = made = inner_loader(iterable)
        self.workers = made.num_workers if made is not None else 0
        self.prefetch_factor = (made.prefetch_factor if made is not None else None) or 0
        self.alone = not self.workers  # batches are made in this process
        size = getattr(getattr(of, "batch_sampler", None), "batch_size", None)
        self.asked_size = size if isinstance(size, int) else None
        self._yields_lists = False
        self.gauge, self.rank_board = gauge, gauge.board
        self.board = gauge.board
        if self.workers:
            self.board = Board(self.workers, gauge.board.names_bytes)
        self._changed: DataLoader[Any] | None = None
        self._theirs: Callable[[int], Any] | None = None
        self.unseen = ""  # why the workers are not counted
        if made is not None and self.workers:
            if has_workers(made):
                self.unseen = _BEGAN
            else:
                self._changed, self._theirs = made, made.worker_init_fn
                first = prepare(self.start_method or "fork") if prepare is not None else None
                made.worker_init_fn = BeginWorker(
                    self.board, gauge.place, made.worker_init_fn, first
                )
        self.counts = self.board.counts()
        self._rows = [counts for counts, _ in self.board.rows()]
        self.no_turns = why_no_turns(iterable, workers=self.workers, unseen=self.unseen)
        self.repeats = Repeats(iterable, made, self.workers)
        self._turns: Turns | None = None
        self._wall = self._work = 0
        self.synchronized = wait_for_device and torch.cuda.is_available()

    @property
    def start_method(self) -> str | None:
        """How the workers are started; None if there are none."""
        if not self.workers:
            return None
        if (context := getattr(self.inner, "multiprocessing_context", None)) is not None:
            return str(context.get_start_method())
        default = multiprocessing.get_all_start_methods()[0]  # which to ask for would settle
        return multiprocessing.get_start_method(allow_none=True) or default

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Files that are opened meanwhile are iobench's own."""
        tell()
        self.gauge.closed = True
        try:
            yield
        finally:
            tell()
            self.gauge.closed = False

    def begin(self) -> None:
        """An iteration is about to be made."""
        self.counts[:, (board.FIRST_FETCH_NS, board.READY_NS)] = 0
        self._turns = None if self.no_turns else Turns(self.board)
        self._wall, self._work = walls_and_work(self._rows)
        self.repeats.begin()

    def making(self) -> AbstractContextManager[None]:
        """An iteration is made meanwhile: count the time of its sampler."""
        return timed_sampler(self.inner, self._sampled) if self.inner is not None else nullcontext()

    def made(self, iterator: Iterator[Any], *, waited: bool = True) -> None:
        """The iteration was made: count the time of what this process does for a batch.

        ``waited``: that is part of the wait for the first batch. Otherwise it is in no rate either.
        """
        if not waited:
            self.sampler_ns = self._sampled_ns
        time_sampler(iterator, self._sampled)
        if self.alone and (fetcher := fetcher_of(iterator)) is not None:
            self.gauge.watch_collate(fetcher)

    def _sampled(self, took_ns: int) -> None:
        """The sampler chose samples. torch asks it while a batch is waited for, in this process."""
        self.sampler_ns += took_ns

    def ended(self, began_ns: int, *, early: bool) -> None:
        """An iteration that began then has ended; ``early``: before the loader had no more batches.

        Workers that live on may then still make batches that nobody will get, so which batch is
        whose is not known from there on.
        """
        ready = self.counts[:, board.READY_NS]
        if self.workers and ready.all():  # the last worker may be ready long after the first batch
            self.ready_s.append(max(0, int(ready.max()) - began_ns) / 1e9)
        if early and getattr(self.inner, "persistent_workers", False):
            self.no_turns = self.no_turns or "an iteration was left before its end"

    def mixed(self) -> None:
        """Another iteration goes on at the same time, and its workers count in the same rows."""
        self.no_turns = self.no_turns or "several iterations went on at the same time"
        self.repeats.give_up("several iterations went on at the same time")
        self._turns = None

    def synchronize(self) -> None:
        """Wait for the CUDA device, if the user asked for that and it has been used."""
        if self.synchronized and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()

    def now_used(self) -> tuple[int, int]:
        """CPU time of this process and waits for a core; (0, 0) if workers make the batches."""
        return (time.process_time_ns(), self.gauge.kernel.queued_ns()) if self.alone else (0, 0)

    def took(self, asked_ns: int, ready_ns: int, before: tuple[int, int]) -> tuple[int, int]:
        """(waits, CPU time) of the fetches since the last batch, in nanoseconds.

        ``before``: ``now_used`` when the batch was asked for. Waits for a core count as CPU time,
        since they are no part of storage's.
        """
        if self.alone:
            cpu, queued = self.now_used()
            self.gauge.fetched(asked_ns, ready_ns - asked_ns, cpu - before[0], queued - before[1])
        else:
            add_cpu_times(self._rows, self.cpu_ns)
        self.wait_ns += ready_ns - asked_ns
        sampled, self._sampled_ns = self.sampler_ns - self._sampled_ns, self.sampler_ns
        if self._turns is not None:
            held_back, handed_over = self._turns.arrived(asked_ns, ready_ns)
            self.held_back_ns += held_back
            self.handed_over_ns += max(0, handed_over - sampled)
        wall, work = walls_and_work(self._rows)
        walled, worked = wall - self._wall, work - self._work
        self._wall, self._work = wall, work
        return max(0, walled - worked), worked

    def first_fetch_ns(self, asked_ns: int) -> int:
        """When the first fetch of this iteration began. The workers' start-up lies before it."""
        if self.alone:
            return asked_ns
        firsts = self.counts[:, board.FIRST_FETCH_NS]
        known = firsts[firsts > 0]
        return int(known.min()) if len(known) else asked_ns

    def last_made_ns(self) -> int:
        """When a worker last made a batch, or found that it has no more; 0 without workers."""
        return int(self.board.done_ns().max()) if self.workers else 0

    def count(self, value: Any) -> int:
        """Add a batch to the counts; return the number of its samples.

        Raises UsageError if that is not known, and the meter is strict.
        """
        size = measure(value)
        if self.compares:
            self.repeats.look(value)
        samples = self._samples(value, size)
        self.batches += 1
        self.samples += samples
        self.delivered += size.nbytes
        if samples in self.sizes or len(self.sizes) < _MAX_SIZES:
            self.sizes[samples] = self.sizes.get(samples, 0) + 1
        return samples

    def _samples(self, value: Any, size: Size) -> int:
        if self.strict and not (size.samples and size.nbytes):
            raise UsageError(
                f"batch {self.batches} of the loader is empty: a {type(value).__name__} without "
                "data",
                remedy="yield tensors, arrays, bytes or text, alone or in a dict, list or tuple",
            )
        if self.stated is not None:
            return self.stated
        if self._is_list(value, size):
            return len(value)
        if size.samples and not size.ragged:
            return size.samples
        if self.strict:
            leading = ", ".join(map(str, size.leading[:6]))
            raise UsageError(
                f"batch {self.batches} of the loader is ragged: its parts have {leading} entries, "
                "so its number of samples is not known",
                remedy="state it: --set batch_size=N",
            )
        if self.asked_size is not None:
            self.samples_by = "the loader's batch_size, since the parts of a batch differ in length"
            return self.asked_size
        if size.samples:
            self.samples_by = "the first dimension of its first tensor; others differ from it"
            return size.samples
        self.samples_by = "one for each batch, whose content is not known"
        return 1

    def _is_list(self, value: Any, size: Size) -> bool:
        """Whether the batches of a DataLoader are lists of samples, which nobody has stacked."""
        wanted = self.asked_size
        if not wanted or not isinstance(value, list | tuple):
            return False
        if len(value) == wanted and (size.ragged or size.leading[:1] != (wanted,)):
            self._yields_lists = True  # the last batch may have fewer samples
            self.samples_by = "the length of the list that each batch is"
        return self._yields_lists

    def forget(self) -> None:
        """Begin to count batches and waits again; what the processes did stays counted."""
        self.batches = self.samples = self.delivered = 0
        self.wait_ns = self.held_back_ns = self.handed_over_ns = self.sampler_ns = 0
        self._sampled_ns = 0
        self._turns = None
        self.sizes.clear()

    def workers_cpu_s(self) -> float:
        """CPU time of the worker processes so far, in seconds."""
        return sum(ns for pid, ns in self.cpu_ns.items() if pid != os.getpid()) / 1e9

    def close(self) -> None:
        """Count nothing more, and give the loader its own ``worker_init_fn`` back."""
        self.gauge.close()
        if self._changed is not None:
            self._changed.worker_init_fn = self._theirs
            self._changed = None

    def names(self) -> list[str]:
        """Files outside of the dataset that the loader opened, as far as there was room."""
        boards = [(self.board, number) for number in range(self.board.workers)]
        if self.workers:
            boards.append((self.rank_board, 0))
        return sorted({name for each, number in boards for name in each.names(number)})

    def facts(self) -> UserFacts:
        """All figures so far, without the factory that made the loader."""
        tell()
        counts = self.counts
        every = np.concatenate([counts, self.rank_board.counts()]) if self.workers else counts
        total = counts.sum(axis=0)
        fetches = int(total[board.FETCHES])
        io_known = bool(counts[:, board.IO_KNOWN].all()) and not self.unseen and fetches > 0
        collates = isinstance(self.iterable, DataLoader)

        def seconds(column: int) -> float | None:
            return float(total[column]) / 1e9 if fetches else None

        return UserFacts(
            type=f"{self.type.__module__}.{self.type.__qualname__}",
            workers=self.workers,
            start_method=self.start_method,
            batches=self.batches,
            samples=self.samples,
            delivered_bytes=self.delivered,
            process_bytes=int(total[board.READ_CALLS_BYTES]) if io_known else None,
            device_bytes=int(total[board.DEVICE_BYTES]) if io_known else None,
            fetches=fetches,
            fetch_wall_s=seconds(board.WALL_NS),
            fetch_cpu_s=seconds(board.CPU_NS),
            fetch_queued_s=seconds(board.QUEUED_NS),
            collate_s=seconds(board.COLLATE_NS) if collates else None,
            wait_s=self.wait_ns / 1e9,
            sampler_s=self.sampler_ns / 1e9 if self.inner is not None else None,
            out_of_order_s=None if self.no_turns else self.held_back_ns / 1e9,
            hand_over_s=None if self.no_turns else self.handed_over_ns / 1e9,
            fetch_s_by_worker=_means(counts) if self.workers else [],
            sample_s_by_worker=_usual(self.board) if self.workers else [],
            batches_by_worker=self._made_by_each(),
            not_measured=self._not_measured(fetches, io_known=io_known),
            files_inside=int(every[:, board.INSIDE].sum()),
            files_outside=int(every[:, board.OUTSIDE].sum()),
            outside=self.names()[:10],
            worker_ready_s=max(self.ready_s) if self.ready_s else None,
            worker_ready_mean_s=fmean(self.ready_s) if self.ready_s else None,
            worker_starts=len(self.ready_s) if self.workers and not self.unseen else None,
            private_growth_bytes=int(total[board.PRIVATE_GROWN]) or None,
            **self.repeats.facts(),
        )

    def _made_by_each(self) -> list[int]:
        """Batches that each worker made of its own share; those of a map are asked for in turns."""
        if self.inner is None or not self.workers or is_map_style(self.inner):
            return []
        made: list[int] = self.counts[:, board.FETCHES].tolist()
        return made

    def _not_measured(self, fetches: int, *, io_known: bool) -> dict[str, str]:
        found = {}
        no_fetch = self.unseen or ("" if fetches else "no fetch of a batch was seen")
        if not fetches:
            found["fetch_wall_s"] = no_fetch
        if self.no_turns:
            found["out_of_order_s"] = found["hand_over_s"] = self.no_turns
        if why := self.repeats.why:
            found["worker_shared_samples"] = why
        if not io_known:
            found["process_bytes"] = no_fetch or "the kernel does not tell /proc/PID/io"
            found["device_bytes"] = found["process_bytes"]
        if not self.workers:
            found["private_growth_bytes"] = "the loader has no worker processes"
        elif not self.counts[:, board.PRIVATE_GROWN].any():
            found["private_growth_bytes"] = "the workers had too few page faults for a look at it"
        return found


def _means(counts: board.Counts) -> list[float]:
    """Seconds that each worker takes for a batch, on average; workers without one are left out."""
    return [
        int(row[board.WALL_NS]) / 1e9 / int(row[board.FETCHES])
        for row in counts
        if row[board.FETCHES]
    ]


def _usual(shared: Board) -> list[float]:
    """Seconds that each worker usually takes for a sample: the median of its last batches."""
    made = np.minimum(shared.counts()[:, board.FETCHES], board.RING)
    return [
        float(np.median(row[:count])) / 1e9
        for row, count in zip(shared.sample_ns(), made, strict=True)
        if count
    ]

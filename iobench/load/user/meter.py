"""Counters around a loader that somebody else iterates over.

Nothing of it is changed but ``worker_init_fn``, and that only until ``close``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..torch_compat import has_workers, inner_loader
from . import opened, worker
from .repeats import Repeats
from .tree import Size, measure
from .turns import Turns, why_no_turns

_NAMES_BYTES = 64 << 10
"""Room for the names of the files that a worker opened, about 600 of them."""

_BEGAN = "the loader's workers had begun before it was watched, so they are not seen"


class _Begin(worker.Begin):
    """Counts in a worker, and leaves its signals, threads and hooks to the user."""

    def __init__(self, board: worker.Board, root: str, theirs: Callable[[int], Any] | None) -> None:
        self.board, self.root, self.theirs = board, root, theirs
        self.prepare = _nothing


def _nothing(number: int) -> None:
    pass


class Meter:
    """Counts what the loader of one rank delivers, and what its processes do for that.

    ``root``: the dataset's directory, or empty. ``batch_size``: samples of a batch where the user
    states it. ``wait_for_device``: wait for CUDA before each request for a batch.
    """

    def __init__(
        self,
        iterable: Iterable[Any],
        *,
        root: str,
        batch_size: int | None = None,
        wait_for_device: bool = False,
    ) -> None:
        self.iterable, self.type = iterable, type(iterable)
        self.stated = batch_size
        self.batches = self.samples = self.delivered = 0
        self.ready_s: list[float] = []
        self.wait_ns = self.held_back_ns = self.handed_over_ns = 0
        self.sizes: dict[int, int] = {}  # samples of a batch -> number of such batches
        self.samples_by = "the first dimension of its first tensor or array"
        self.cpu_ns: dict[int, int] = {}
        self.unseen = ""
        self.inner = made = inner_loader(iterable)
        self.workers = made.num_workers if made is not None else 0
        self.prefetch_factor = (made.prefetch_factor if made is not None else None) or 0
        self.fixed = made.batch_size if made is not None and made is iterable else None
        if self.stated is not None:
            self.samples_by = "the batch_size that was stated"
        self.rank_board = worker.Board(1, _NAMES_BYTES)
        self.board = worker.Board(self.workers, _NAMES_BYTES) if self.workers else self.rank_board
        self.gauge = worker.Gauge(self.rank_board, 0, root)
        self._changed: DataLoader[Any] | None = None
        self._theirs: Callable[[int], Any] | None = None
        if made is not None and self.workers:
            if has_workers(made):
                self.unseen = _BEGAN
            else:
                self._changed, self._theirs = made, made.worker_init_fn
                made.worker_init_fn = _Begin(self.board, root, made.worker_init_fn)
        self.counts = self.board.counts()
        self._rows = [counts for counts, _ in self.board.rows()]
        self.no_turns = why_no_turns(iterable, workers=self.workers, unseen=self.unseen)
        self.repeats = Repeats(iterable, made, self.workers)
        self._turns: Turns | None = None
        self._wall = self._cpu = 0
        self.synchronized = wait_for_device and torch.cuda.is_available()
        opened.listen(self.gauge)

    @property
    def alone(self) -> bool:
        """Whether batches are made in this process, so that its own CPU time is counted."""
        return not self.workers

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Files that are opened meanwhile are iobench's own."""
        opened.tell()
        self.gauge.closed = True
        try:
            yield
        finally:
            opened.tell()
            self.gauge.closed = False

    def begin(self) -> None:
        """An iteration is about to be made."""
        self.counts[:, (worker.FIRST_FETCH_NS, worker.READY_NS)] = 0
        self._turns = None if self.no_turns else Turns(self.board)
        self.repeats.begin()

    def ended(self, began_ns: int, *, early: bool) -> None:
        """An iteration that began then has ended; ``early``: before the loader had no more batches.

        Workers that live on may then still make batches that nobody will get, so which batch is
        whose is not known from there on.
        """
        ready = self.counts[:, worker.READY_NS]
        if self.workers and ready.all():
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
            worker.add_cpu_times(self._rows, self.cpu_ns)
        self.wait_ns += ready_ns - asked_ns
        if self._turns is not None:
            held_back, handed_over = self._turns.arrived(asked_ns, ready_ns)
            self.held_back_ns += held_back
            self.handed_over_ns += handed_over
        wall, cpu = worker.walls_and_work(self._rows)
        walled, worked = wall - self._wall, cpu - self._cpu
        self._wall, self._cpu = wall, cpu
        return max(0, walled - worked), worked

    def count(self, value: Any) -> int:
        """Add a batch to the counts; return the number of its samples."""
        size = measure(value)
        self.repeats.look(value)
        samples = self._samples(size)
        self.batches += 1
        self.samples += samples
        self.delivered += size.nbytes
        if len(self.sizes) < 1000 or samples in self.sizes:
            self.sizes[samples] = self.sizes.get(samples, 0) + 1
        return samples

    def _samples(self, size: Size) -> int:
        if self.stated is not None:
            return self.stated
        if size.samples and not size.ragged:
            return size.samples
        if self.fixed is not None:
            self.samples_by = "the loader's batch_size, since the parts of a batch differ in length"
            return self.fixed
        if size.samples:
            self.samples_by = "the first dimension of its first tensor; others differ from it"
            return size.samples
        self.samples_by = "one for each batch, whose content is not known"
        return 1

    def workers_cpu_s(self) -> float:
        """CPU time of the worker processes so far, in seconds."""
        return sum(ns for pid, ns in self.cpu_ns.items() if pid != os.getpid()) / 1e9

    def close(self) -> None:
        """Count nothing more, and give the loader its own ``worker_init_fn`` back."""
        self.gauge.close()
        if self._changed is not None:
            self._changed.worker_init_fn = self._theirs
            self._changed = None

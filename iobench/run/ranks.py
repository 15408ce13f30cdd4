"""Ranks: one process for each accelerator, started together, stopped together, each stepping through its loader.

A phase is one such start-to-stop. Ranks are forked, so that the dataset's tables and an in-memory copy are shared, not copied. Each epoch
begins at an instant that the parent names, after it has put the page cache into the state that the workload asks for.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from ..errors import IobenchError, WorkerError
from ..load import LibraryLoader, build_loader
from ..load.device import DeviceFeed, device_of_rank
from ..load.loader import BatchLoader
from ..load.null import AnyReader
from ..load.order import Indices
from ..measure.timeline import Recorder
from ..registry import ACCELERATORS
from ..spec.result import Epoch
from ..spec.workload import AcceleratorSpec, LoaderSpec, ReaderSpec
from .checkpoint_ranks import CheckpointRank
from .processes import GRACE_S, Ranks, fork
from .savebook import NO_SAVE, SaveBook

_ROUNDS = 3
"""Rounds of its workers that a rate needs: the first is start-up, and one more can be read ahead while the first is waited for."""

_ROUNDS_PATIENCE = 10
"""How many times its limit a phase may run over to finish its rounds."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """What the ranks do. ``reader`` None: the accelerator alone, without any batch."""

    name: str
    reader: AnyReader | None
    reading: ReaderSpec
    loading: LoaderSpec
    accelerator: AcceleratorSpec
    accelerators: int
    batch_size: int
    seed: int
    repetition: int = 0
    epochs: int = 1  # 0: as many as it takes to reach a limit
    max_steps: int | None = None  # of each rank, over all epochs
    limit_s: float | None = None  # of each rank, over all epochs
    whole_rounds: bool = False  # let each worker finish its turn before ``limit_s`` ends the phase (see _Stepper._may_stop)
    shards: Indices | None = None
    share: bool = True  # ranks split the epoch; otherwise each reads all of it, in an order of its own
    evicts: bool = False  # the page cache is emptied before each epoch, so ranks must hold no page of the data then
    saving: Saving | None = None


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Checkpoints while loading: after every so many steps all ranks stand still, and save together."""

    every: int
    first: int  # number of the save before the first: each repetition's saves have numbers of their own
    book: SaveBook
    saver: Callable[[int, Connection], CheckpointRank]  # made in the rank's process


@dataclass
class Outcome:
    """What a phase leaves: event columns by rank, and what events can't know."""

    columns: dict[int, dict[str, Any]] = field(default_factory=dict)
    epochs: list[Epoch] = field(default_factory=list)
    complete: bool = True
    cpu_s: float = 0.0
    loader: dict[str, Any] = field(default_factory=dict)


Prepare = Callable[[int], Epoch]
"""Called before each epoch, while all ranks wait: brings the cache into its state, and says which state that was."""

Tick = Callable[[int], None]
"""Called a few times a second with the steps done so far by all ranks."""


def run_phase(phase: Phase, *, prepare: Prepare | None = None, tick: Tick | None = None) -> Outcome:
    """Run a phase to its end.

    Raises the rank's own IobenchError, WorkerError for a rank that dies; KeyboardInterrupt carries a partial Outcome as ``outcome``.
    """
    steps = fork.RawArray(ctypes.c_int64, phase.accelerators)
    stop = fork.RawValue(ctypes.c_bool, False)
    ranks = Ranks(phase.accelerators, lambda rank, pipe: pipe.send(("done", _Stepper(phase, rank, pipe, steps, stop).run())))
    outcome = Outcome()
    book = phase.saving.book if phase.saving else None
    try:
        ranks.start()
        _conduct(ranks, outcome, prepare, lambda: tick(sum(steps)) if tick else None, book)
    except KeyboardInterrupt as interrupt:
        stop.value = True
        with suppress(IobenchError, KeyboardInterrupt):
            _conduct(ranks, outcome, None, None, None, deadline=time.monotonic() + GRACE_S)
        outcome.complete = False
        interrupt.outcome = outcome  # type: ignore[attr-defined]
        raise
    finally:
        stop.value = True
        ranks.end(0)  # a rank that waits for an epoch to begin looks at ``stop`` next
    outcome.epochs.sort(key=lambda epoch: epoch.epoch)
    return outcome


def _conduct(
    ranks: Ranks,
    outcome: Outcome,
    prepare: Prepare | None,
    tick: Callable[[], None] | None,
    book: SaveBook | None,
    deadline: float | None = None,
) -> None:
    """Answer the ranks until all are done: everyone ready -> prepare the cache -> go; done -> keep what it recorded."""
    waiting: dict[int, int] = {}
    saving: dict[int, int] = {}
    working = [rank for rank in range(len(ranks.processes)) if rank not in outcome.columns]
    while working:
        if deadline is not None and time.monotonic() > deadline:
            raise WorkerError("the ranks did not stop in time")
        for rank, (kind, value) in ranks.receive(working):
            if kind == "ready":
                waiting[rank] = value
            elif kind == "checkpoint":
                saving[rank] = value
            elif kind == "saved":
                if book is not None:
                    book.take_down(rank, *value)
            else:
                _keep(outcome, rank, value)
        working = [rank for rank in working if rank not in outcome.columns]
        if waiting and len(waiting) == len(working):
            epoch = min(waiting.values())
            outcome.epochs.append(prepare(epoch) if prepare else Epoch(epoch=epoch))
            _go(ranks, waiting, time.monotonic_ns() + 1_000_000)
        if saving and len(saving) + len(waiting) == len(working):
            # Shares differ by a batch at most: a checkpoint for which a rank has no step left is not taken.
            everyone = len(saving) == len(ranks.processes) and len(set(saving.values())) == 1
            _go(ranks, saving, book.begin(max(saving.values())) if book is not None and everyone else NO_SAVE)
        if tick:
            tick()


def _go(ranks: Ranks, waiting: dict[int, int], start: int) -> None:
    for rank in waiting:
        ranks.send(rank, start)
    waiting.clear()


def _keep(outcome: Outcome, rank: int, value: dict[str, Any]) -> None:
    outcome.columns[rank] = value["columns"]
    outcome.cpu_s += value["cpu_s"]
    outcome.complete = outcome.complete and value["complete"]
    outcome.loader = value["loader"]
    for epoch, startup in value["startups"].items():
        for context in outcome.epochs:
            if context.epoch == epoch and startup is not None:
                context.startup_s = min(startup, context.startup_s if context.startup_s is not None else startup)


# In the rank's own process


class _Stepper:
    """A rank's way through its epochs."""

    def __init__(self, phase: Phase, rank: int, pipe: Connection, steps: Any, stop: Any) -> None:
        self.phase, self.rank, self.pipe, self.steps, self.stop = phase, rank, pipe, steps, stop
        self.recorder = Recorder()
        self.accelerator = ACCELERATORS.load(phase.accelerator.kind)(phase.accelerator)
        self.loader = self._build() if phase.reader is not None else None
        self.feed = self._device() if self.loader is not None and phase.accelerator.device else None
        self.saver = phase.saving.saver(rank, pipe) if phase.saving else None
        self.done = 0
        self.spent_ns = 0
        self.complete = True
        self.startups: dict[int, float | None] = {}

    def _build(self) -> BatchLoader | LibraryLoader:
        phase = self.phase
        assert phase.reader is not None
        seed = phase.seed if phase.share else phase.seed + 7919 * (self.rank + 1)
        return build_loader(
            phase.reader,
            phase.loading,
            phase.reading,
            batch_size=phase.batch_size,
            rank=self.rank if phase.share else 0,
            world=phase.accelerators if phase.share else 1,
            seed=seed,
            epochs=max(phase.epochs, 1),
            shards=phase.shards,
            chain=phase.epochs == 0,
        )

    def _device(self) -> DeviceFeed:
        feed = DeviceFeed(device_of_rank(self.phase.accelerator.device or "cpu", self.rank))
        assert self.loader is not None
        feed.attach(self.loader)
        return feed

    def run(self) -> dict[str, Any]:
        epoch = 0
        cpu = time.process_time_ns()
        while (epoch < self.phase.epochs or self.phase.epochs == 0) and not self._limit():
            if epoch and self.loader is not None and self.phase.evicts:
                self.loader.let_go()
            self.pipe.send(("ready", epoch))
            start = self.pipe.recv()
            while (left := start - time.monotonic_ns()) > 0:
                time.sleep(left / 1e9)
            before = self.done
            self._epoch(epoch, start)
            self.spent_ns += time.monotonic_ns() - start
            epoch += 1
            if self.done == before:
                break  # nothing to read in this rank's share
        cpu = time.process_time_ns() - cpu
        loader = self.loader
        if loader is not None:
            cpu += sum(ns for pid, ns in loader.cpu_ns.items() if pid != os.getpid())
        value: dict[str, Any] = {
            "columns": self.recorder.columns(),
            "cpu_s": cpu / 1e9,
            "complete": self.complete and not self.stop.value,
            "startups": self.startups,
            "loader": self._describe(loader) if loader is not None else {},
        }
        if self.saver is not None:
            self.saver.close()
        if self.feed is not None:
            value["loader"]["pinned"] = self.feed.pinned
            self.feed.close()
        if loader is not None:
            loader.shutdown()
        return value

    @staticmethod
    def _describe(loader: BatchLoader | LibraryLoader) -> dict[str, Any]:
        ring = loader.ring
        return {
            "in_flight_batches": loader.in_flight,
            "slot_bytes": ring.slot_bytes if ring else None,
            "slots": ring.count if ring else None,
            "slot_pages": ring.pages if ring else None,
            "slot_misses": ring.misses if ring else None,
        }

    def _checkpoint(self) -> int:
        """After every so many steps, save together with all ranks; the nanoseconds for which this one stood still."""
        assert self.saver is not None
        assert self.phase.saving is not None
        self.saver.poll()
        number, rest = divmod(self.done + 1, self.phase.saving.every)
        if rest:
            return 0
        began = time.monotonic_ns()
        number += self.phase.saving.first
        self.pipe.send(("checkpoint", number))
        start = self.pipe.recv()
        if start > NO_SAVE:
            self.saver.save(number, start)
        return time.monotonic_ns() - began

    def _limit(self) -> bool:
        phase = self.phase
        if self.stop.value:
            return True
        if phase.max_steps is not None and self.done >= phase.max_steps:
            return True
        return phase.limit_s is not None and self.spent_ns >= phase.limit_s * 1e9

    def _may_stop(self, now: int, end: int) -> bool:
        """Whether the time limit ends the epoch here.

        Workers begin together, so their batches arrive in rounds. A rate taken in the middle of a round misses what the other workers
        have nearly done, which for slow batches is most of the work; so rounds are finished, and there are enough of them, within reason.
        """
        if now < end:
            return False
        if not self.phase.whole_rounds:
            return True
        workers = max(1, self.phase.loading.workers)
        patience = _ROUNDS_PATIENCE * round((self.phase.limit_s or 0) * 1e9)
        rounds, rest = divmod(self.done, workers)
        return (rounds >= _ROUNDS and not rest) or now > end + patience

    def _epoch(self, epoch: int, start: int) -> None:
        phase, record, accelerator, stop = self.phase, self.recorder.record, self.accelerator, self.stop
        now = time.monotonic_ns
        last_step = phase.max_steps if phase.max_steps is not None else None
        end = start + round(phase.limit_s * 1e9) - self.spent_ns if phase.limit_s is not None else None
        first_read: int | None = None
        accelerator.start()
        asked = start
        step = 0
        if self.loader is None:
            while not stop.value and (end is None or asked < end) and (last_step is None or self.done < last_step):
                ready = now()
                busy, late = accelerator.step(None, ready)
                record(epoch, step, asked - start, ready - asked, 0, busy, late, phase.batch_size, 0, 0, 0, 0)
                asked = now()
                step += 1
                self.done += 1
            return
        self.loader.set_epoch(epoch)
        batches = iter(self.loader)
        batch = None
        try:
            while True:
                if stop.value or (end is not None and self._may_stop(asked, end)):
                    self.complete = self.complete and end is not None
                    break
                if last_step is not None and self.done >= last_step:
                    break
                batch = next(batches, None)
                ready = now()
                if batch is None:
                    break
                copied = self.feed.copy(batch)[1] if self.feed is not None else 0
                stats = batch.stats
                busy, late = accelerator.step(batch, ready + copied, stats.samples / phase.batch_size)
                saved = self._checkpoint() if self.saver is not None else 0
                record(
                    epoch, step, asked - start, ready - asked, copied, busy, late,
                    stats.samples, stats.bytes_read, stats.sample_bytes, stats.read_ns, stats.prep_ns,
                    stats.retries, stats.throttled, saved,
                )  # fmt: skip
                if first_read is None or stats.started_ns < first_read:
                    first_read = stats.started_ns
                asked = now()
                step += 1
                self.done += 1
                self.steps[self.rank] = self.done
        finally:
            del batch
            close = getattr(batches, "close", None)
            if close:
                close()
        self.startups[epoch] = (first_read - start) / 1e9 if first_read is not None else None

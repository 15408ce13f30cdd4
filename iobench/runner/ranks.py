"""Ranks: one process for each accelerator, started together, stopped together, each stepping through its loader.

A phase is one such start-to-stop. Ranks are forked, so that the dataset's tables and an in-memory copy are shared, not copied. Each epoch
begins at an instant that the parent names, after it has put the page cache into the state that the workload asks for.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from ..errors import IobenchError, WorkerError
from ..interrupts import defer_interrupts
from ..load import LibraryLoader, build_loader
from ..load.bus import cause_of_death
from ..load.device import DeviceFeed, device_of_rank
from ..load.loader import BatchLoader
from ..load.null import AnyReader
from ..load.order import Indices
from ..measure.fetched import fetched_by_family
from ..measure.timeline import Recorder
from ..registry import ACCELERATORS
from ..schema.result import Epoch
from ..schema.workload import AcceleratorSpec, LoaderSpec, ReaderSpec
from .checkpoint_ranks import CheckpointRank
from .processes import GRACE_S, Ranks, fork
from .savebook import NO_SAVE, SaveBook

_ROUNDS = 3
"""Rounds of its workers that a rate needs: the first is start-up, and one more can be read ahead while the first is waited for."""

_ROUNDS_PATIENCE = 10
"""How many times its limit a phase may run over to finish its rounds."""

PATIENCE_S = 2.0
"""How long after a stop a rank may wait for a batch that is on its way."""

_HURRY = signal.SIGUSR1
"""Tells a rank that waits for a batch to wait no longer."""


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
    share: bool = (
        True  # ranks split the epoch; otherwise each reads all of it, in an order of its own
    )
    counts_fetched: bool = False  # count what ranks and workers make the storage deliver
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
    fetched: dict[int, list[int | None]] = field(default_factory=dict)  # by epoch, of each rank

    def add_fetched(self, fetched: dict[int, int | None]) -> None:
        """What one rank and its workers made the storage deliver in each epoch; None: not told."""
        for context in self.epochs:
            if context.epoch in fetched:
                counts = self.fetched.setdefault(context.epoch, [])
                counts.append(fetched[context.epoch])
                known = [count for count in counts if count is not None]
                context.bytes_fetched = sum(known) if len(known) == len(counts) else None

    def forget_fetched(self) -> None:
        for context in self.epochs:
            context.bytes_fetched = None


Prepare = Callable[[int], Epoch]
"""Called before each epoch, while all ranks wait: brings the cache into its state, and says which state that was."""

Finish = Callable[[Epoch], None]
"""Called after each epoch, when all ranks have delivered their last batch of it."""

Tick = Callable[[int], None]
"""Called a few times a second with the steps done so far by all ranks."""


def run_phase(
    phase: Phase,
    *,
    prepare: Prepare | None = None,
    finish: Finish | None = None,
    tick: Tick | None = None,
) -> Outcome:
    """Run a phase to its end.

    Raises the rank's own IobenchError, WorkerError for a rank that dies; KeyboardInterrupt carries a partial Outcome as ``outcome``.
    """
    steps = fork.RawArray(ctypes.c_int64, phase.accelerators)
    stop = fork.RawValue(ctypes.c_bool, False)
    ranks = Ranks(
        phase.accelerators, lambda rank, pipe: _Stepper(phase, rank, pipe, steps, stop).run()
    )
    conductor = _Conductor(ranks, phase.saving.book if phase.saving else None)
    outcome = conductor.outcome
    interrupted = False
    try:
        ranks.start()
        conductor.conduct(
            prepare or (lambda epoch: Epoch(epoch=epoch)),
            finish or (lambda context: None),
            lambda: tick(sum(steps)) if tick else None,
        )
        ranks.end(0)
    except WorkerError as death:
        cause = cause_of_death(death, phase.reader)
        if cause is not None:
            raise cause from death
        raise
    except KeyboardInterrupt as interrupt:
        interrupted = True
        stop.value = True
        with defer_interrupts(discard=True):
            conductor.collect()
        if len(outcome.columns) < phase.accelerators:
            outcome.complete = False
            outcome.forget_fetched()  # a rank that says nothing may have fetched for the others
        interrupt.outcome = outcome  # type: ignore[attr-defined]
        raise
    finally:
        stop.value = True
        with defer_interrupts(discard=interrupted):
            ranks.end(0)  # a rank that waits for an epoch to begin looks at ``stop`` next
    outcome.epochs.sort(key=lambda epoch: epoch.epoch)
    return outcome


class _Conductor:
    """Answers the ranks until all are done: everyone ready -> prepare the cache -> go; done -> keep what it recorded.

    Ctrl-C takes effect between messages, never within one, and who waits for an answer is not forgotten over it: ranks that were told to
    stop still send what they recorded.
    """

    def __init__(self, ranks: Ranks, book: SaveBook | None) -> None:
        self.ranks, self.book = ranks, book
        self.outcome = Outcome()
        self.working = list(range(len(ranks.processes)))
        self.waiting: dict[int, int] = {}  # rank -> the epoch that it is ready for
        self.saving: dict[
            int, int
        ] = {}  # rank -> the number of the checkpoint that it is ready for

    def conduct(self, prepare: Prepare, finish: Finish, tick: Callable[[], None]) -> None:
        """Until all ranks are done."""
        epochs = self.outcome.epochs
        while self.working:
            with defer_interrupts():
                self._listen()
                self._answer_saves()
            if epochs and len(self.waiting) == len(self.working):
                finish(epochs[-1])
            if self.waiting and len(self.waiting) == len(self.working):
                context = prepare(min(self.waiting.values()))
                with defer_interrupts():
                    epochs.append(context)
                    self._go(self.waiting, time.monotonic_ns() + 1_000_000)
            tick()

    def collect(self) -> None:
        """After a stop: what the ranks have recorded, those that fail now and those that don't stop in time left out.

        One that still waits for its storage after a while is told not to.
        """
        began = time.monotonic()
        while self.working and (waited := time.monotonic() - began) < GRACE_S:
            if waited > PATIENCE_S:
                self.ranks.signal(self.working, _HURRY)
            try:
                self._go(self.waiting, 0)
                self._go(self.saving, NO_SAVE)
                self._listen()
            except IobenchError:
                known = self.outcome.columns
                self.working = [
                    rank
                    for rank in self.working
                    if rank not in known and self.ranks.processes[rank].is_alive()
                ]

    def _listen(self) -> None:
        for rank, (kind, value) in self.ranks.receive(self.working):
            if kind == "ready":
                self.waiting[rank] = value
            elif kind == "checkpoint":
                self.saving[rank] = value
            elif kind == "saved":
                if self.book is not None:
                    self.book.take_down(rank, *value)
            else:
                _keep(self.outcome, rank, value)
        self.working = [rank for rank in self.working if rank not in self.outcome.columns]

    def _answer_saves(self) -> None:
        """Shares differ by a batch at most: a checkpoint for which a rank has no step left is not taken."""
        if self.saving and len(self.saving) + len(self.waiting) == len(self.working):
            everyone = (
                len(self.saving) == len(self.ranks.processes)
                and len(set(self.saving.values())) == 1
            )
            self._go(
                self.saving,
                self.book.begin(max(self.saving.values()))
                if self.book is not None and everyone
                else NO_SAVE,
            )

    def _go(self, waiting: dict[int, int], start: int) -> None:
        for rank in list(waiting):
            del waiting[rank]
            self.ranks.send(rank, start)


def _keep(outcome: Outcome, rank: int, value: dict[str, Any]) -> None:
    outcome.columns[rank] = value["columns"]
    outcome.cpu_s += value["cpu_s"]
    outcome.complete = outcome.complete and value["complete"]
    outcome.loader = value["loader"]
    outcome.add_fetched(value["fetched"])
    for epoch, startup in value["startups"].items():
        for context in outcome.epochs:
            if context.epoch == epoch and startup is not None:
                context.startup_s = min(
                    startup, context.startup_s if context.startup_s is not None else startup
                )


# In the rank's own process


class _Stepper:
    """A rank's way through its epochs; the last thing it sends is what it recorded."""

    def __init__(self, phase: Phase, rank: int, pipe: Connection, steps: Any, stop: Any) -> None:
        self.phase, self.rank, self.pipe, self.steps, self.stop = phase, rank, pipe, steps, stop
        self.may_hang = False
        self.pid = os.getpid()
        signal.signal(_HURRY, self._hurry)
        self.recorder = Recorder()
        self.accelerator = ACCELERATORS.load(phase.accelerator.kind)(phase.accelerator)
        self.loader = self._build() if phase.reader is not None else None
        self.feed = self._device() if self.loader is not None and phase.accelerator.device else None
        self.saver = phase.saving.saver(rank, pipe) if phase.saving else None
        self.done = 0
        self.spent_ns = 0
        self.complete = True
        self.startups: dict[int, float | None] = {}
        self.fetched: dict[int, int | None] = {}  # by epoch, where the phase asks for it
        self.cpu_began = time.process_time_ns()

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

    def run(self) -> None:
        epoch = 0
        while (epoch < self.phase.epochs or self.phase.epochs == 0) and not self._limit():
            if epoch and self.loader is not None and self.phase.evicts:
                self.loader.let_go()
            counted = fetched_by_family() if self.phase.counts_fetched else None
            self.pipe.send(("ready", epoch))
            start = self.pipe.recv()
            if self.phase.counts_fetched:
                self.fetched[epoch] = None  # until the epoch is over
            while (left := start - time.monotonic_ns()) > 0:
                time.sleep(left / 1e9)
            before = self.done
            self._epoch(epoch, start)
            self.spent_ns += time.monotonic_ns() - start
            if counted is not None and (now := fetched_by_family()) is not None:
                self.fetched[epoch] = now - counted
            epoch += 1
            if self.done == before:
                break  # nothing to read in this rank's share
        cpu_ns = self._cpu_ns()
        if self.saver is not None:
            with self._in_storage():
                self.saver.close()
        self._report(cpu_ns, complete=self.complete and not self.stop.value)
        if self.feed is not None:
            self.feed.close()
        if self.loader is not None:
            self.loader.shutdown()

    def _hurry(self, number: int, frame: object) -> None:
        """A stop was not enough: report now. Who hangs in storage can't be waited for: threads and workers end with this process."""
        if (
            self.may_hang and os.getpid() == self.pid
        ):  # workers inherit this, and have nothing to report
            self.may_hang = False
            self._report(self._cpu_ns(), complete=False)
            os._exit(0)

    @contextmanager
    def _in_storage(self) -> Iterator[None]:
        """Where this process may wait for storage for ever, and has nothing half recorded."""
        self.may_hang = True
        try:
            yield
        finally:
            self.may_hang = False

    def _cpu_ns(self) -> int:
        """Of this process since it was ready, and of its workers."""
        workers = self.loader.cpu_ns.items() if self.loader is not None else ()
        return (
            time.process_time_ns()
            - self.cpu_began
            + sum(ns for pid, ns in workers if pid != os.getpid())
        )

    def _report(self, cpu_ns: int, *, complete: bool) -> None:
        """What was recorded."""
        loader, feed = self.loader, self.feed
        value = {
            "columns": self.recorder.columns(),
            "cpu_s": cpu_ns / 1e9,
            "complete": complete,
            "startups": self.startups,
            "fetched": self.fetched,
            "loader": self._describe(loader) | ({"pinned": feed.pinned} if feed is not None else {})
            if loader is not None
            else {},
        }
        self.pipe.send(("done", value))

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
            with self._in_storage():
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
        phase, record, accelerator, stop = (
            self.phase,
            self.recorder.record,
            self.accelerator,
            self.stop,
        )
        now = time.monotonic_ns
        last_step = phase.max_steps if phase.max_steps is not None else None
        end = (
            start + round(phase.limit_s * 1e9) - self.spent_ns
            if phase.limit_s is not None
            else None
        )
        first_read: int | None = None
        accelerator.start()
        asked = start
        step = 0
        if self.loader is None:
            while (
                not stop.value
                and (end is None or asked < end)
                and (last_step is None or self.done < last_step)
            ):
                ready = now()
                busy, late = accelerator.step(None, ready)
                record(
                    epoch,
                    step,
                    asked - start,
                    ready - asked,
                    0,
                    busy,
                    late,
                    phase.batch_size,
                    0,
                    0,
                    0,
                    0,
                )
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
                with self._in_storage():
                    batch = next(batches, None)
                ready = now()
                if batch is None:
                    break
                copied = self.feed.copy(batch)[1] if self.feed is not None else 0
                stats = batch.stats
                busy, late = accelerator.step(
                    batch, ready + copied, stats.samples / phase.batch_size
                )
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
                with self._in_storage():  # batches that are on their way are waited for
                    close()
        self.startups[epoch] = (first_read - start) / 1e9 if first_read is not None else None

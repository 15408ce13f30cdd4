"""A rank of a phase: it steps through its loader, and reports what it recorded."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...accelerate import ACCELERATORS
from ...accelerate.base import Closes, Imports, Prepares, RankPlace, Samples, Tells, device_of_rank
from ...accelerate.emulated import EmulatedAccelerator, beyond
from ...base.errors import LostRankError
from ...host.fetched import fetched_by_family
from ...host.timeline import Recorder, StepEvent
from ...judge.figures.requests import growth_of
from ...load import LibraryLoader, build_loader
from ...load.loader import Batch, BatchLoader
from ...load.reader import BatchReader
from ...load.slots import DeviceFeed, Staged
from ...record.job import LoaderFacts
from ...record.training import RankLog
from ...serve.logs import StepLog
from ...settings.base import fitting
from ...settings.workload import LogSpec
from ...subject.factory import end_children
from ...subject.loader import UserBatch, UserLoader, open_user_loader
from ..barrier import StepAgreement, StepBarrier, stops_soon
from ..counters import Counters, Stops, WorkerBook, lost_in_waits
from ..messages import HURRY, Link, ReadyForEpoch, ReadyToSave, Recorded, Start
from ..phase import Phase

_PATIENCE_IN_ROUNDS = 10
"""A phase may take this many times its limit longer, to finish its rounds."""

_PATIENCE_IN_FILLS = 2
"""Or this many times as long as its rounds take at the pace of the first batch, if that is more:
a phase that ends within its first round has no rate."""


_Copied = tuple[Batch | UserBatch, Samples]


class Load:
    """The task of a phase.

    ``counters``: what its ranks have done so far; ``stops``: when they stood still.
    ``barrier``: at which the ranks meet, if they step together and are not all on this host.
    ``meeting``: the URL at which the ranks meet, if they exchange gradients.
    """

    def __init__(
        self, phase: Phase, barrier: StepBarrier | None = None, *, meeting: str | None = None
    ) -> None:
        self.phase, self.meeting = phase, meeting
        kind: object = ACCELERATORS.load(phase.accelerator.kind)
        if isinstance(kind, Imports):
            kind.import_early()
        self.counters, self.stops = Counters(phase.accelerators), Stops(phase.ranks)
        # Of each rank that reads, for the others of its group: twice the epoch that it reads or is
        # about to begin, one more at the epoch's end, or _DONE.
        self.places = multiprocessing.get_context("fork").RawArray("q", phase.accelerators)
        self.together = self.barrier = None
        if meeting is not None:
            self.together = StepAgreement(barrier or StepBarrier(phase.accelerators))
        if phase.in_step:
            self.barrier = StepBarrier() if barrier is None else barrier

    @property
    def others_code(self) -> bool:
        """Whether the ranks run a loader that others wrote, which may start processes."""
        return self.phase.reader is not None and self.phase.loading.subject.reads_itself

    def run(self, link: Link) -> None:
        try:
            if link.rank >= self.phase.accelerators:
                _Follower(self, link).run()
            else:
                _Stepper(self, link).run()
        except LostRankError:
            if not stops_soon(link.stopped):  # else the rank that was lost says why
                raise


_DONE = -1


class _Follower:
    """A rank of a group that does not read: it waits at the barrier while its group's reader steps.

    It gets the reader's batch over the network of the accelerators, computes at the same time, and
    records nothing: what it waits for is what its reader waits for.
    """

    def __init__(self, task: Load, link: Link) -> None:
        assert task.barrier is not None
        self.barrier, self.link, self.places = task.barrier, link, task.places
        self.reader = link.rank % task.phase.accelerators
        signal.signal(HURRY, lambda number, frame: os._exit(0))

    def run(self) -> None:
        began, epoch, stopped = time.process_time_ns(), 0, self.link.stopped
        while not stopped.value and self.places[self.reader] != _DONE:
            self.barrier.join(epoch, stopped)
            self.link.send(ReadyForEpoch(epoch))
            if not isinstance(self.link.receive(), Start):
                break
            while self.places[self.reader] == 2 * epoch:
                if self.barrier.wait(epoch, 0, stopped) is None:
                    break
            self.barrier.leave(epoch, stopped)
            while self.places[self.reader] == 2 * epoch + 1 and not stopped.value:
                time.sleep(0.001)
            epoch += 1
        cpu_s = (time.process_time_ns() - began) / 1e9
        self.link.send(
            Recorded(
                columns={},
                cpu_s=cpu_s,
                complete=True,
                startups={},
                fetched={},
                loader=LoaderFacts(),
            )
        )


class _Stepper:
    """Steps a rank through its epochs; the last message that it sends is what it recorded."""

    def __init__(self, task: Load, link: Link) -> None:
        self.phase, self.rank, self.link = task.phase, link.rank, link
        self.counters, self.stops, self.stopped = task.counters, task.stops, link.stopped
        self.barrier, self.together = task.barrier, task.together
        self.places = task.places
        phase = self.phase
        self.may_hang = False
        self.pid = os.getpid()
        signal.signal(HURRY, self._hurry)
        self.recorder = Recorder()
        self.book = WorkerBook()
        self.accelerator = ACCELERATORS.load(phase.accelerator.kind)(phase.accelerator)
        if isinstance(self.accelerator, Prepares):
            place = RankPlace(
                rank=link.rank,
                world=phase.accelerators,
                batch_size=phase.batch_size,
                seed=phase.seed,
                meeting=task.meeting,
                local=link.local,
                on_host=link.on_host or phase.accelerators,
            )
            self.accelerator.prepare(place)
        self.loader = self._build() if phase.reader is not None else None
        self.feed = self._device() if self.loader is not None and phase.accelerator.device else None
        self.saver = phase.saving.saver(link) if phase.saving else None
        self.evaluator = self._build_evaluator() if phase.evaluation is not None else None
        self.evaluated = Recorder()
        self.logs: list[RankLog] = []
        self.emulated = isinstance(self.accelerator, EmulatedAccelerator)
        self.done = 0
        self.common = 0  # steps so far, counted alike by all ranks that are in step
        self.spent_ns = 0
        self.filled_ns = 0  # until the first batch was there
        self.complete = True
        self.startups: dict[int, float | None] = {}
        self.starts: dict[int, int] = {}  # by epoch, in nanoseconds of the monotonic clock
        self.late_starts: dict[int, float] = {}
        self.fetched: dict[int, int | None] = {}  # by epoch, if the phase asks for it
        self.cpu_began = time.process_time_ns()

    def _build(self) -> BatchLoader | LibraryLoader | UserLoader:
        phase = self.phase
        assert phase.reader is not None
        if phase.loading.subject.users and isinstance(phase.reader, BatchReader):
            return open_user_loader(
                phase.reader.manifest,
                phase.reader.storage,
                phase.loading,
                batch_size=phase.batch_size,
                rank=self.rank,
                world=phase.accelerators,
                bounded=phase.limit_s is not None or phase.max_steps is not None,
            )
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

    def _build_evaluator(self) -> BatchLoader | LibraryLoader | None:
        """The loader of the shards that are held out, in the order of their samples."""
        phase, spec = self.phase, self.phase.evaluation
        if spec is None or not isinstance(phase.reader, BatchReader):
            return None
        return build_loader(
            phase.reader.clone(),
            phase.loading,
            phase.reading.model_copy(update={"shuffle": False, "tail": "keep"}),
            batch_size=spec.batch_size or phase.batch_size,
            rank=self.rank,
            world=phase.accelerators,
            shards=phase.held_out,
        )

    def _evaluate(self, loader: BatchLoader | LibraryLoader, epochs: int) -> None:
        """A pass over what is held out after so many epochs; its steps are recorded apart."""
        spec = self.phase.evaluation
        assert spec is not None
        passes, rest = divmod(epochs, spec.epochs_between)
        if rest:
            return
        change = {"step_time": spec.step_time or self.phase.accelerator.step_time}
        asked_for = self.phase.accelerator.model_copy(update=change)
        accelerator = ACCELERATORS.load(asked_for.kind)(asked_for)
        accelerator.start()
        now = time.monotonic_ns
        start = asked = now()
        batches = iter(loader)
        step = 0
        while not self.stopped.value:
            with self._in_storage():
                batch = next(batches, None)
            if batch is None:
                break
            ready, stats = now(), batch.stats
            share = stats.samples / (spec.batch_size or self.phase.batch_size)
            busy, late = accelerator.step(batch, ready, share)
            self.evaluated.record(
                StepEvent(
                    epoch=passes - 1,
                    step=step,
                    start_ns=asked - start,
                    wait_ns=ready - asked,
                    busy_ns=busy,
                    late_ns=late,
                    samples=stats.samples,
                    bytes_read=stats.bytes_read,
                    sample_bytes=stats.sample_bytes,
                    read_ns=stats.read_ns,
                    prep_ns=stats.prep_ns,
                    retries=stats.retries,
                    throttled=stats.throttled,
                )
            )
            del batch
            asked = now()
            step += 1

    def _device(self) -> DeviceFeed:
        spec = self.phase.accelerator
        device = device_of_rank(spec.device or "cpu", self.link.local)
        feed = DeviceFeed(device, batches=1 + spec.staged)
        assert self.loader is not None
        feed.attach(self.loader.ring)
        return feed

    def run(self) -> None:
        epoch = 0
        while self._goes_on(epoch):
            if epoch and self.loader is not None and self.phase.evicts:
                self.loader.release_maps()
            counted = fetched_by_family() if self.phase.counts_fetched else None
            if self.barrier is not None:
                self.barrier.join(epoch, self.stopped)
            self.places[self.rank] = 2 * epoch
            self.link.send(ReadyForEpoch(epoch))
            command = self.link.receive()
            if not isinstance(command, Start):
                self.complete = False
                break
            start = self.starts[epoch] = command.at_ns
            if self.phase.counts_fetched:
                self.fetched[epoch] = None  # until the epoch is over
            while (left := start - time.monotonic_ns()) > 0:
                time.sleep(left / 1e9)
            self.late_starts[epoch] = (time.monotonic_ns() - start) / 1e9
            before = self._progress()
            self._epoch(epoch, start)
            self.spent_ns += time.monotonic_ns() - start
            if counted is not None and (now := fetched_by_family()) is not None:
                self.fetched[epoch] = now - counted
            epoch += 1
            if self.evaluator is not None and not self.stopped.value:
                self._evaluate(self.evaluator, epoch)
            if self._progress() == before:
                break  # nothing to read in this rank's share
        self.places[self.rank] = _DONE
        cpu_ns = self._cpu_ns()
        if self.saver is not None:
            with self._in_storage():
                self.saver.close()
        self._report(cpu_ns, complete=self.complete and not self.stopped.value)
        if isinstance(self.accelerator, Closes):
            self.accelerator.close()
        if self.feed is not None:
            self.feed.close()
        for loader in (self.evaluator, self.loader):
            if loader is not None:
                loader.shutdown()

    def _goes_on(self, epoch: int) -> bool:
        """Whether this rank takes part in ``epoch``; if ranks step together, all do or none."""
        own = (epoch < self.phase.epochs or self.phase.epochs == 0) and not self._limit()
        return own if self.together is None else bool(self.together.any(own, self.stopped))

    def _progress(self) -> int:
        """The steps so far of this rank, or of all ranks that step together."""
        return self.done if self.together is None else self.common

    def _all_ready(self) -> int | None:
        """Wait until all ranks that step together are ready for this step.

        Returns the nanoseconds of the wait; None if this rank is to stop.
        """
        if self.together is None:
            return 0
        began = time.monotonic_ns()
        going = self.together.any(True, self.stopped)
        return time.monotonic_ns() - began if going else None

    def _accompany(self) -> None:
        """Step without a batch as long as any of the ranks that step together has one."""
        while self.together is not None and self.together.any(False, self.stopped):
            self.accelerator.step(None, time.monotonic_ns())
            self.common += 1
            if self.saver is not None:
                self._checkpoint()

    def _hurry(self, number: int, frame: object) -> None:
        """Report now and end, because a stop was not enough.

        A thread or worker that hangs in storage can't be waited for; it ends with this process.
        Workers inherit this handler, but have nothing to report.
        """
        if self.may_hang and os.getpid() == self.pid:
            self.may_hang = False
            self._report(self._cpu_ns(), complete=False)
            if isinstance(self.loader, UserLoader):
                end_children()
            os._exit(0)

    @contextmanager
    def _in_storage(self) -> Iterator[None]:
        """Mark code that may wait for storage for ever, and in which no step is half recorded."""
        self.may_hang = True
        try:
            yield
        finally:
            self.may_hang = False

    def _cpu_ns(self) -> int:
        """CPU time of this process since it was ready, plus that of its workers."""
        workers = self.loader.cpu_ns.items() if self.loader is not None else ()
        return (
            time.process_time_ns()
            - self.cpu_began
            + sum(ns for pid, ns in workers if pid != os.getpid())
        )

    def _report(self, cpu_ns: int, *, complete: bool) -> None:
        """Send what was recorded to the parent."""
        events = self.recorder.columns()
        lost_in_waits(events, self.starts, self.stops.of(self.rank))
        self.link.send(
            Recorded(
                columns=events,
                cpu_s=cpu_ns / 1e9,
                complete=complete,
                startups=self.startups,
                fetched=self.fetched,
                loader=self._facts(),
                workers=self.book.loads(self.rank),
                steps=self.accelerator.facts() if isinstance(self.accelerator, Tells) else None,
                late_starts=self.late_starts,
                evaluation=self.evaluated.columns() if self.evaluator is not None else {},
                logs=self.logs,
            )
        )

    def _facts(self) -> LoaderFacts:
        """What the loader says of itself. Raises IobenchError if a library's has a wrong type."""
        if self.loader is None:
            return LoaderFacts()
        ring = self.loader.ring
        found: dict[str, object] = {
            "in_flight_batches": self.loader.in_flight,
            "round_batches": self.loader.round_batches,
            "slot_bytes": ring.slot_bytes if ring else None,
            "slots": ring.count if ring else None,
            "slot_pages": ring.pages if ring else None,
            "slot_misses": ring.misses if ring else None,
        }
        if isinstance(self.loader, UserLoader):
            found["user"] = self.loader.facts()
        if self.feed is not None:
            found["pinned"] = self.feed.pinned
        return fitting("the loader", LoaderFacts, found)

    def _checkpoint(self) -> int:
        """Save together with all ranks, if the number of steps so far is a multiple of ``every``.

        Ranks in step count the openings of their barrier: one that waits for its parent before a
        save must not be awaited by another one at the barrier. Others count their own steps.
        Returns the nanoseconds for which this rank was blocked.
        """
        assert self.saver is not None
        assert self.phase.saving is not None
        self.saver.poll()
        number, rest = divmod(self.common, self.phase.saving.every)
        if rest:
            return 0
        began = time.monotonic_ns()
        number += self.phase.saving.first
        self.link.send(ReadyToSave(number))
        command = self.link.receive()
        if isinstance(command, Start):
            with self._in_storage():
                self.saver.save(number, command.at_ns)
        return time.monotonic_ns() - began

    def _limit(self) -> bool:
        phase = self.phase
        if self.stopped.value:
            return True
        if phase.max_steps is not None and self.done >= phase.max_steps:
            return True
        return phase.limit_s is not None and self.spent_ns >= phase.limit_s * 1e9

    def _may_stop(self, now: int, end: int) -> bool:
        """Whether the time limit ends the epoch at this step.

        Workers begin together, so batches arrive in rounds: one of each worker, or as many as it
        reads ahead. A rate taken in the middle of a round misses the other, almost complete
        batches, which for slow batches is most of the work. So rounds are finished, and there are
        at least ``min_rounds``, unless the patience ends. With checkpoints, the phase ends after
        one of them instead.
        """
        if now < end:
            return False
        if not self.phase.whole_rounds:
            return True
        together = self.loader.round_batches if self.loader is not None else 1
        patience = max(
            _PATIENCE_IN_ROUNDS * round((self.phase.limit_s or 0) * 1e9),
            _PATIENCE_IN_FILLS * self.phase.min_rounds * self.filled_ns,
        )
        rounds, rest = divmod(self.done, together)
        if self.phase.saving is not None:
            rest = self.done % self.phase.saving.every
        return (rounds >= self.phase.min_rounds and not rest) or now > end + patience

    def _epoch(self, epoch: int, start: int) -> None:
        end: int | None = None
        if self.phase.limit_s is not None:
            end = start + round(self.phase.limit_s * 1e9) - self.spent_ns
        self.accelerator.start()
        if self.loader is None:
            self._steps_alone(epoch, start, end)
            self._accompany()
            return
        self.loader.set_epoch(epoch)
        batches: Iterator[Batch | UserBatch] = iter(self.loader)
        try:
            self._steps(batches, epoch, start, end)
            self._accompany()
        finally:
            self.places[self.rank] = 2 * epoch + 1
            if self.barrier is not None:
                self.barrier.leave(epoch, self.stopped)
            close = getattr(batches, "close", None)
            if close:
                with self._in_storage():  # closing waits for batches that are being read
                    close()

    def _steps_alone(self, epoch: int, start: int, end: int | None) -> None:
        """Steps without batches: what the accelerator takes alone."""
        now, max_steps = time.monotonic_ns, self.phase.max_steps
        asked = start
        step = 0
        while (
            not self.stopped.value
            and (end is None or asked < end or step < self.phase.min_steps)
            and (max_steps is None or self.done < max_steps)
        ):
            ready = now()
            if (synced := self._all_ready()) is None:
                break
            busy, late = self.accelerator.step(None, ready)
            self.recorder.record(
                StepEvent(
                    epoch=epoch,
                    step=step,
                    start_ns=asked - start,
                    wait_ns=ready - asked,
                    busy_ns=busy,
                    late_ns=late,
                    samples=self.phase.batch_size,
                    sync_ns=synced,
                    lost_ns=self._lost_ns(),
                )
            )
            asked = now()
            step += 1
            self.done += 1
            self.common += 1

    def _steps(
        self, batches: Iterator[Batch | UserBatch], epoch: int, start: int, end: int | None
    ) -> None:
        """Step through an epoch. Between two batches, none is held."""
        phase, record, accelerator = self.phase, self.recorder.record, self.accelerator
        own = self.loader if isinstance(self.loader, BatchLoader) else None
        if own is not None:
            self.book.begin(lasting=own.lasting)
        now, max_steps = time.monotonic_ns, phase.max_steps
        first_read: int | None = None
        stage = Staged(lambda: self._copied(batches)) if phase.accelerator.staged else None
        batch = samples = log = None
        asked = start
        step = late = behind = 0
        try:
            while True:
                if self.stopped.value or (end is not None and self._may_stop(asked, end)):
                    self.complete = self.complete and end is not None
                    break
                if max_steps is not None and self.done >= max_steps:
                    break
                with self._in_storage():
                    if stage is None:
                        batch = next(batches, None)
                    else:
                        batch = samples = None  # its slot is free for the batch after the next
                        batch, samples = stage.take() or (None, None)
                ready = now()
                if batch is None:
                    break
                self.filled_ns = self.filled_ns or ready - start
                copied = 0
                if stage is None:
                    samples, copied = (batch, 0) if self.feed is None else self.feed.copy(batch)
                stats = batch.stats
                late_before = late
                if (synced := self._all_ready()) is None:
                    self.complete = self.complete and end is not None
                    break
                if phase.log is not None:
                    log = log or self._log(phase.log, epoch)
                busy, late = accelerator.step(
                    samples, ready + copied - behind, stats.samples / phase.batch_size
                )
                lost = self._lost_ns()
                if self.barrier is None:
                    self.common += 1
                else:
                    # An emulated step makes up for the delay of the step before it.
                    ended = ready + copied + busy - late_before + lost if self.emulated else now()
                    synced, behind = self._sync(epoch, ended, late)
                    still = beyond(late + behind, busy) if self.emulated else 0
                    lost, behind = lost + still, behind - still
                    late += behind
                saved = self._checkpoint() if self.saver is not None else 0
                if log is not None:
                    synced += log.step(stats.samples, lambda: bool(self.stopped.value))
                record(
                    StepEvent(
                        epoch=epoch,
                        step=step,
                        start_ns=asked - start,
                        wait_ns=ready - asked,
                        copy_ns=copied,
                        busy_ns=busy,
                        late_ns=late,
                        samples=stats.samples,
                        bytes_read=stats.bytes_read,
                        sample_bytes=stats.sample_bytes,
                        read_ns=stats.read_ns,
                        prep_ns=stats.prep_ns,
                        retries=stats.retries,
                        throttled=stats.throttled,
                        checkpoint_ns=saved,
                        sync_ns=synced,
                        lost_ns=lost,
                    )
                )
                if own is not None:
                    self.book.add(stats)
                if first_read is None or stats.started_ns < first_read:
                    first_read = stats.started_ns
                began, asked = asked, now()
                step += 1
                self.done += 1
                self.counters.add(
                    self.rank,
                    read=stats.bytes_read,
                    busy_ns=busy,
                    wall_ns=asked - began,
                    sync_ns=synced,
                    retries=stats.retries,
                )
            if log is not None and not self.stopped.value:
                found, waits = log.end()
                growth, grows = growth_of(waits)
                told = None if growth is None else grows
                self.logs.append(found.model_copy(update={"grows": told}))
        finally:
            del batch, samples
            if log is not None:
                log.close()
            if stage is not None:
                with self._in_storage():
                    stage.close()
        self.startups[epoch] = (first_read - start) / 1e9 if first_read is not None else None

    def _log(self, spec: LogSpec, epoch: int) -> StepLog:
        """The log of an epoch, whose workers have been forked."""
        phase, reader = self.phase, self.phase.reader
        assert reader is not None
        manifest = reader.manifest
        steps = manifest.sample_count / phase.accelerators / phase.batch_size
        steps = min(steps, phase.max_steps or math.inf)
        least_s = steps * (phase.accelerator.step_time or 0.0)
        return StepLog(
            spec,
            window=epoch * phase.accelerators + self.rank,
            record_bytes=spec.record + round(spec.inputs * manifest.mean_stored_bytes),
            seconds=min(least_s, phase.limit_s or math.inf),
        )

    def _lost_ns(self) -> int:
        """For how long the emulation stood still in this step; nobody makes up for that."""
        return self.accelerator.lost_ns if isinstance(self.accelerator, EmulatedAccelerator) else 0

    def _copied(self, batches: Iterator[Batch | UserBatch]) -> _Copied | None:
        """The next batch and its samples on the device. A thread does this while a step goes on."""
        batch = next(batches, None)
        if batch is None:
            return None
        return batch, batch if self.feed is None else self.feed.copy(batch)[0]

    def _sync(self, epoch: int, end_ns: int, late_ns: int) -> tuple[int, int]:
        """Wait at the barrier after a step, which ended nominally at ``end_ns``.

        Its wake-up was late by ``late_ns``. Returns the nominal wait for the other ranks, and by
        how much more than ``late_ns`` this rank is now behind the nominal opening of the barrier
        (less, if negative), in nanoseconds. Each wake-up is late by a random time, and a barrier
        would take the latest of all ranks. So the ranks agree on the nominal time, and the next
        emulated step makes up for the rest. Steps that are not emulated make up for nothing: all of
        their time at the barrier is a wait.
        """
        assert self.barrier is not None
        opening = self.barrier.wait(epoch, end_ns, self.stopped)
        now = time.monotonic_ns()
        if opening is not None:
            self.common = opening.number
            if self.emulated:
                return opening.at_ns - end_ns, now - opening.at_ns - late_ns
        return max(0, now - end_ns - (late_ns if self.emulated else 0)), 0

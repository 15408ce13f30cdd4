"""A rank of a phase: it steps through its loader, and reports what it recorded."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...accelerate import ACCELERATORS
from ...accelerate.base import Closes, Imports, Prepares, Samples, Tells, device_of_rank
from ...accelerate.emulated import EmulatedAccelerator
from ...base.errors import LostRankError
from ...host.fetched import fetched_by_family
from ...host.timeline import Recorder, StepEvent
from ...judge.figures.requests import growth_of
from ...load.build import build_loader
from ...load.loader import Batch, BatchLoader
from ...load.reader import BatchReader
from ...load.requests import Stats
from ...load.slots import DeviceFeed, Staged
from ...load.third_party import LibraryLoader
from ...record.job import LoaderFacts
from ...record.training import RankLog
from ...serve.logs import StepLog
from ...settings.base import fitting
from ...settings.workload import LogSpec
from ...subject.factory import end_children
from ...subject.loader import UserBatch, UserLoader, open_user_loader
from ..barrier import StepAgreement, StepBarrier, stops_soon
from ..counters import Counters, Pauses, WorkerBook, lost_in_waits
from ..messages import HURRY, Link, ReadyForEpoch, ReadyToSave, Recorded, Start
from ..phase import Phase
from .checkpoint import CheckpointRank
from .evaluation import Evaluation
from .stopping import Stopping
from .together import Follower, GroupEpochs, InStep


class Load:
    """The task of a phase.

    ``counters``: what its ranks have done so far; ``pauses``: when they stood still.
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
        self.counters, self.pauses = Counters(phase.accelerators), Pauses(phase.ranks)
        self.groups = GroupEpochs(phase.accelerators)
        self.agreement = self.barrier = None
        if meeting is not None:
            self.agreement = StepAgreement(barrier or StepBarrier(phase.accelerators))
        if phase.in_step:
            self.barrier = StepBarrier() if barrier is None else barrier

    @property
    def others_code(self) -> bool:
        """Whether the ranks run a loader that others wrote, which may start processes."""
        return self.phase.reader is not None and self.phase.loading.subject.reads_itself

    def run(self, link: Link) -> None:
        try:
            reader = link.rank % self.phase.accelerators
            if link.rank == reader:
                _Stepper(self, link).run()
            else:
                assert self.barrier is not None
                Follower(link, self.barrier, self.groups, reader).run()
        except LostRankError:
            if not stops_soon(link.stopped):  # else the rank that was lost says why
                raise


class _Input:
    """The batches of an epoch one after the other, and the samples of the last one.

    A batch is held until the next one has come, as by ``for batch in loader``. With ``ahead`` a
    thread fetches the next batch and copies it to the device while a step goes on; then a batch is
    held only until the next one is asked for.
    """

    def __init__(
        self, batches: Iterator[Batch | UserBatch], feed: DeviceFeed | None, *, ahead: bool
    ) -> None:
        self._batches, self._feed = batches, feed
        self._ahead = Staged(self._next) if ahead else None
        self._batch: Batch | UserBatch | None = None
        self.samples: Samples | None = None

    def take(self) -> Stats | None:
        """Wait for the next batch; return what it cost, None after the last one."""
        if self._ahead is None:
            self._batch = next(self._batches, None)
        else:
            self.drop()  # its slot is free for the batch after the next
            self._batch, self.samples = self._ahead.take() or (None, None)
        return self._batch.stats if self._batch is not None else None

    def copy(self) -> int:
        """Have ``samples`` on the device; return the nanoseconds that this took now."""
        if self._ahead is not None or self._batch is None:
            return 0
        self.samples, took_ns = self._on_device(self._batch)
        return took_ns

    def drop(self) -> None:
        """Hold no batch."""
        self._batch = self.samples = None

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def _next(self) -> tuple[Batch | UserBatch, Samples] | None:
        batch = next(self._batches, None)
        return None if batch is None else (batch, self._on_device(batch)[0])

    def _on_device(self, batch: Batch | UserBatch) -> tuple[Samples, int]:
        return (batch, 0) if self._feed is None else self._feed.copy(batch)


class _Stepper:
    """Steps a rank through its epochs; the last message that it sends is what it recorded."""

    def __init__(self, task: Load, link: Link) -> None:
        self.phase, self.rank, self.link = task.phase, link.rank, link
        self.counters, self.pauses, self.groups = task.counters, task.pauses, task.groups
        phase = self.phase
        self.may_hang = False
        self.pid = os.getpid()
        signal.signal(HURRY, self._hurry)
        self.recorder = Recorder()
        self.book = WorkerBook()
        self.accelerator = ACCELERATORS.load(phase.accelerator.kind)(phase.accelerator)
        self.place = link.place(
            phase.accelerators, phase.batch_size, seed=phase.seed, meeting=task.meeting
        )
        if isinstance(self.accelerator, Prepares):
            self.accelerator.prepare(self.place)
        self.loader = self._build() if phase.reader is not None else None
        self.feed = self._device() if self.loader is not None and phase.accelerator.device else None
        self.saver: CheckpointRank | None = None
        if phase.saving is not None:
            self.saver = phase.saving.saver(link)
            self.saver.change(phase.saving.first + 1)
        self.evaluation: Evaluation | None = None
        if phase.evaluation is not None and isinstance(phase.reader, BatchReader):
            self.evaluation = Evaluation(phase, phase.evaluation, phase.reader, self.rank)
        self.in_step = InStep(
            task.barrier,
            task.agreement,
            link.stopped,
            emulated=isinstance(self.accelerator, EmulatedAccelerator),
        )
        together = self.loader.round_batches if self.loader is not None else 1
        self.stopping = Stopping(phase, link.stopped, round_batches=together)
        self.logs: list[RankLog] = []
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
                self.place,
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
            epochs=phase.epochs or 1,
            shards=phase.shards,
            chain=phase.epochs is None,
        )

    def _device(self) -> DeviceFeed:
        spec = self.phase.accelerator
        device = device_of_rank(spec.device or "cpu", self.link.local)
        feed = DeviceFeed(device, batches=1 + spec.staged)
        assert self.loader is not None
        feed.attach(self.loader.ring)
        return feed

    def run(self) -> None:
        complete, epoch = True, 0
        while self.in_step.any(not self.stopping.before_epoch(epoch)):
            if epoch and self.loader is not None and self.phase.evicts:
                self.loader.release_maps()
            if self.saver is not None:  # no change of the state beside the start of an epoch
                self.saver.changed()
            counted = fetched_by_family() if self.phase.counts_fetched else None
            self.in_step.join(epoch)
            self.groups.begin(self.rank, epoch)
            self.link.send(ReadyForEpoch(epoch))
            command = self.link.receive()
            if not isinstance(command, Start):
                complete = False
                break
            start = self.starts[epoch] = command.at_ns
            if self.phase.counts_fetched:
                self.fetched[epoch] = None  # until the epoch is over
            while (left := start - time.monotonic_ns()) > 0:
                time.sleep(left / 1e9)
            self.late_starts[epoch] = (time.monotonic_ns() - start) / 1e9
            before = self._progress()
            self._epoch(epoch, start)
            self.stopping.ended()
            if counted is not None and (now := fetched_by_family()) is not None:
                self.fetched[epoch] = now - counted
            epoch += 1
            if self.evaluation is not None and not self.stopping.told:
                self.evaluation.after(epoch, self.link.stopped, self._in_storage)
            if self._progress() == before:
                break  # nothing to read in this rank's share
        self.groups.close(self.rank)
        cpu_ns = self._cpu_ns()
        if self.saver is not None:
            with self._in_storage():
                self.saver.close()
        self._report(cpu_ns, complete=complete and not self.stopping.told)
        if isinstance(self.accelerator, Closes):
            self.accelerator.close()
        if self.feed is not None:
            self.feed.close()
        if self.evaluation is not None:
            self.evaluation.loader.shutdown()
        if self.loader is not None:
            self.loader.shutdown()

    def _progress(self) -> int:
        """The steps so far of this rank, or of all ranks that exchange gradients."""
        return self.stopping.done if self.in_step.agreement is None else self.in_step.common

    def _accompany(self) -> None:
        """Step without a batch as long as any rank that exchanges gradients has one."""
        while self.in_step.any(False):
            self.accelerator.step(None, time.monotonic_ns())
            self.in_step.common += 1
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
        lost_in_waits(events, self.starts, self.pauses.of(self.rank))
        evaluation = self.evaluation
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
                evaluation=evaluation.recorder.columns() if evaluation is not None else {},
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
        number, rest = divmod(self.in_step.common, self.phase.saving.every)
        if rest:
            return 0
        began = time.monotonic_ns()
        number += self.phase.saving.first
        self.saver.changed()
        self.link.send(ReadyToSave(number))
        command = self.link.receive()
        asked_s = (time.monotonic_ns() - began) / 1e9
        if isinstance(command, Start):
            with self._in_storage():
                self.saver.save(number, command.at_ns, asked_s=asked_s)
        self.saver.change(number + 1)
        return time.monotonic_ns() - began

    def _epoch(self, epoch: int, start: int) -> None:
        self.stopping.begin(start)
        self.in_step.begin()
        self.accelerator.start()
        if self.loader is None:
            self._steps_alone(epoch, start)
            self._accompany()
            return
        self.loader.set_epoch(epoch)
        batches: Iterator[Batch | UserBatch] = iter(self.loader)
        try:
            self._steps(batches, epoch, start)
            self._accompany()
        finally:
            self.groups.end(self.rank, epoch)
            self.in_step.leave(epoch)
            close = getattr(batches, "close", None)
            if close:
                with self._in_storage():  # closing waits for batches that are being read
                    close()

    def _steps_alone(self, epoch: int, start: int) -> None:
        """Steps without batches: what the accelerator takes alone."""
        asked, step = start, 0
        while not self.stopping.before_step_alone(asked, step):
            ready = time.monotonic_ns()
            if (synced := self.in_step.all_ready()) is None:
                break
            busy, late = self.accelerator.step(None, ready)
            end = self.in_step.end_step(epoch, ready, busy, late, self._lost_ns())
            self.recorder.record(
                StepEvent(
                    epoch=epoch,
                    step=step,
                    start_ns=asked - start,
                    wait_ns=ready - asked,
                    busy_ns=busy,
                    late_ns=end.late_ns,
                    samples=self.phase.batch_size,
                    sync_ns=synced,
                    lost_ns=end.lost_ns,
                )
            )
            asked = time.monotonic_ns()
            step += 1
            self.stopping.done += 1

    def _steps(self, batches: Iterator[Batch | UserBatch], epoch: int, start: int) -> None:
        """Step through an epoch."""
        phase, in_step, now = self.phase, self.in_step, time.monotonic_ns
        own = self.loader if isinstance(self.loader, BatchLoader) else None
        if own is not None:
            self.book.begin(lasting=own.lasting)
        given = _Input(batches, self.feed, ahead=bool(phase.accelerator.staged))
        log: StepLog | None = None
        first_read: int | None = None
        asked, step = start, 0
        try:
            while not self.stopping.before_batch(asked):
                with self._in_storage():
                    stats = given.take()
                ready = now()
                if stats is None:
                    break
                self.stopping.got(ready)
                copied = given.copy()
                if (synced := in_step.all_ready()) is None:
                    break
                if phase.log is not None:
                    log = log or self._log(phase.log, epoch)
                busy, late = self.accelerator.step(
                    given.samples,
                    ready + copied - in_step.behind_ns,
                    stats.samples / phase.batch_size,
                )
                end = in_step.end_step(epoch, ready + copied, busy, late, self._lost_ns())
                saved = self._checkpoint() if self.saver is not None else 0
                synced += end.sync_ns
                if log is not None:
                    synced += log.step(stats.samples, lambda: self.stopping.told)
                self.recorder.record(
                    StepEvent(
                        epoch=epoch,
                        step=step,
                        start_ns=asked - start,
                        wait_ns=ready - asked,
                        copy_ns=copied,
                        busy_ns=busy,
                        late_ns=end.late_ns,
                        checkpoint_ns=saved,
                        sync_ns=synced,
                        lost_ns=end.lost_ns,
                        **stats.columns(),
                    )
                )
                if own is not None:
                    self.book.add(stats)
                if first_read is None or stats.started_ns < first_read:
                    first_read = stats.started_ns
                began, asked = asked, now()
                step += 1
                self.stopping.done += 1
                self.counters.add(
                    self.rank,
                    read=stats.bytes_read,
                    busy_ns=busy,
                    wall_ns=asked - began,
                    sync_ns=synced,
                    retries=stats.retries,
                )
            if log is not None and not self.stopping.told:
                self._keep_log(log)
        finally:
            given.drop()
            if log is not None:
                log.close()
            with self._in_storage():
                given.close()
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

    def _keep_log(self, log: StepLog) -> None:
        found, waits = log.end()
        growth, grows = growth_of(waits)
        told = None if growth is None else grows
        self.logs.append(found.model_copy(update={"grows": told}))

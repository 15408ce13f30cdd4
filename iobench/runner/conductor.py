"""The parent's part of a phase: start the ranks, answer them, and keep what they recorded.

Each epoch begins at an instant that the parent names, after it has brought the page cache into the
state that the workload asks for.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..errors import IobenchError, WorkerError
from ..interrupts import defer_interrupts
from ..load.bus import cause_of_death
from ..schema.training import Epoch
from .crew import GRACE_S, Crew, ForkedCrew
from .messages import Command, ReadyForEpoch, ReadyToSave, Recorded, Saved, Skip, Start, Stop
from .phase import Outcome, Phase, PhaseInterrupted
from .savebook import SaveBook
from .tasks.load import HURRY, Load

HEAD_START_NS = 1_000_000
"""From the command to begin an epoch to its start, so that every rank has it by then."""

PATIENCE_S = 2.0
"""How long after a stop a rank may wait for a batch that is on its way."""

Prepare = Callable[[int], Epoch]
"""Called before each epoch, while all ranks wait.

It brings the page cache into the state that the workload asks for, and returns what it found.
"""

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

    Raises a rank's own IobenchError, WorkerError for a rank that died, and PhaseInterrupted, which
    has what was recorded until then.
    """
    task = Load(phase)
    crew = ForkedCrew(phase.accelerators, task)
    conductor = _Conductor(crew, phase.saving.book if phase.saving else None)
    outcome = conductor.outcome
    interrupted = False
    try:
        crew.start()
        conductor.conduct(
            prepare or (lambda epoch: Epoch(epoch=epoch)),
            finish or (lambda context: None),
            lambda: tick(task.steps_done()) if tick else None,
        )
        crew.end(Stop())
    except WorkerError as death:
        cause = cause_of_death(death, phase.reader)
        if cause is not None:
            raise cause from death
        raise
    except KeyboardInterrupt as interrupt:
        interrupted = True
        task.stop()
        with defer_interrupts(discard=True):
            conductor.collect()
        if len(outcome.columns) < phase.accelerators:
            outcome.complete = False
            # The totals lack the bytes that the missing ranks fetched.
            outcome.forget_fetched()
        raise PhaseInterrupted(outcome) from interrupt
    finally:
        task.stop()
        with defer_interrupts(discard=interrupted):
            crew.end(Stop())
    outcome.epochs.sort(key=lambda epoch: epoch.epoch)
    return outcome


class _Conductor:
    """Answers the ranks until all are done.

    When every rank is ready for an epoch, the page cache is prepared and all of them are told when
    to start. When a rank is done, what it recorded is kept. Ctrl-C takes effect between two
    messages, never within one. Ranks that wait for an answer at that moment still get one, and
    send what they recorded.
    """

    def __init__(self, crew: Crew, book: SaveBook | None) -> None:
        self.crew, self.book = crew, book
        self.outcome = Outcome()
        self.working = list(range(crew.world))
        self.waiting: dict[int, int] = {}  # rank -> the epoch that it is ready for
        self.saving: dict[int, int] = {}  # rank -> the number of the checkpoint it is ready for

    def conduct(self, prepare: Prepare, finish: Finish, tick: Callable[[], None]) -> None:
        """Answer the ranks until all of them are done."""
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
                    self._answer(self.waiting, Start(time.monotonic_ns() + HEAD_START_NS))
            tick()

    def collect(self) -> None:
        """Collect what the ranks have recorded, after a stop.

        A rank that still waits for its storage after ``PATIENCE_S`` is signalled to report at once.
        Ranks that fail now, or do not stop in time, are left out.
        """
        began = time.monotonic()
        while self.working and (waited := time.monotonic() - began) < GRACE_S:
            if waited > PATIENCE_S:
                self.crew.signal(self.working, HURRY)
            try:
                self._answer(self.waiting, Stop())
                self._answer(self.saving, Skip())
                self._listen()
            except IobenchError:
                known = self.outcome.columns
                self.working = [
                    rank for rank in self.working if rank not in known and self.crew.is_alive(rank)
                ]

    def _listen(self) -> None:
        for rank, answer in self.crew.receive(self.working):
            match answer:
                case ReadyForEpoch(epoch):
                    self.waiting[rank] = epoch
                case ReadyToSave(number):
                    self.saving[rank] = number
                case Saved(step, part) if self.book is not None:
                    self.book.take_down(rank, step, part)
                case Recorded():
                    self.outcome.add(rank, answer)
        self.working = [rank for rank in self.working if rank not in self.outcome.columns]

    def _answer_saves(self) -> None:
        """Let all ranks save, as soon as each of them waits before the checkpoint.

        The ranks' shares of an epoch differ by at most a batch. A checkpoint that not every rank
        reaches is skipped.
        """
        if not self.saving or len(self.saving) + len(self.waiting) < len(self.working):
            return
        numbers = set(self.saving.values())
        everyone = len(self.saving) == self.crew.world and len(numbers) == 1
        if self.book is not None and everyone:
            self._answer(self.saving, Start(self.book.begin(numbers.pop())))
        else:
            self._answer(self.saving, Skip())

    def _answer(self, waiting: dict[int, int], command: Command) -> None:
        for rank in list(waiting):
            del waiting[rank]
            self.crew.send(rank, command)

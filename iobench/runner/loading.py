"""Run a phase: the parent's side of ranks that load, and save if the phase saves.

Each epoch begins at an instant that the parent names, after it has brought the page cache into the
state that the workload asks for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from ..base.errors import WorkerError
from ..host.samples import Sampler
from ..load.ending import cause_of_death
from ..record.training import Epoch
from ..storage.scratch import scratch
from .conductor import Handler, conduct
from .crew import Crew
from .hosts.hosts import Hosts
from .messages import (
    Command,
    Last,
    PartSaved,
    Point,
    ReadyForEpoch,
    ReadyToSave,
    Recorded,
    Report,
    Skip,
    Start,
)
from .options import Observer
from .phase import Outcome, Phase, PhaseInterrupted
from .tasks.load import Load

HEAD_START_NS = 1_000_000
"""From the command to begin an epoch to its start, so that every rank has it by then."""


Prepare = Callable[[int], Epoch]
"""Called before each epoch, while all ranks wait.

It brings the page cache into the state that the workload asks for, and returns what it found.
"""

Finish = Callable[[Epoch], None]
"""Called after each epoch, when all ranks have delivered their last batch of it."""


@dataclass(kw_only=True)
class PhaseContext:
    """What all phases of a run have in common.

    ``observer`` hears a few times a second how many steps the ranks have made. ``look`` is called
    before each epoch that is read from the plan's storage, while all ranks wait.
    """

    observer: Observer = field(default_factory=Observer)
    hosts: Hosts = field(default_factory=Hosts)
    look: Callable[[], None] = lambda: None


def run_phase(
    phase: Phase,
    context: PhaseContext | None = None,
    *,
    prepare: Prepare | None = None,
    finish: Finish | None = None,
    sampler: Sampler | None = None,
) -> Outcome:
    """Run a phase to its end, while ``sampler`` samples what the host does.

    Raises a rank's own IobenchError, WorkerError for a rank that died, and PhaseInterrupted, which
    has what was recorded until then.
    """
    context = context or PhaseContext()
    with scratch("ranks") if phase.exchanges_gradients else nullcontext() as meeting:
        url = f"file://{meeting}/gradients" if meeting else None
        task, crew = context.hosts.loading(phase, url)
        head_start_ns = context.hosts.head_start_ns(HEAD_START_NS)
        loading = _Loading(phase, task, prepare, finish, context.observer, sampler, head_start_ns)
        context.observer.watch(task.counters)
        return _outcome(phase, crew, loading)


def _outcome(phase: Phase, crew: Crew, loading: _Loading) -> Outcome:
    outcome = loading.outcome
    try:
        conduct(crew, loading)
    except WorkerError as death:
        cause = cause_of_death(death, phase.reader)
        if cause is not None:
            raise cause from death
        raise
    except KeyboardInterrupt as interrupt:
        if len(outcome.columns) < phase.accelerators:
            outcome.complete = False
            # The totals lack the bytes that the missing ranks fetched.
            outcome.forget_fetched()
        raise PhaseInterrupted(outcome) from interrupt
    outcome.epochs.sort(key=lambda epoch: epoch.epoch)
    return outcome


@dataclass
class _Loading(Handler):
    """Begins the epochs and the checkpoints, and keeps what the ranks record.

    The ranks' shares of an epoch differ by at most a batch, so at the end of an epoch one rank may
    be ready for the next epoch while another one is ready to save. A checkpoint that not every rank
    reaches is skipped.
    """

    phase: Phase
    task: Load
    on_prepare: Prepare | None
    on_finish: Finish | None
    observer: Observer
    sampler: Sampler | None
    head_start_ns: int
    outcome: Outcome = field(default_factory=Outcome)
    next: Epoch | None = None  # prepared, and about to begin

    def __post_init__(self) -> None:
        self.records = self.phase.saving.records if self.phase.saving else None

    def heard(self, rank: int, message: Report | Last) -> None:
        match message:
            case PartSaved(step, part) if self.records is not None:
                self.records.add(rank, step, part)
            case Recorded() if rank >= self.phase.accelerators:  # it has read nothing
                self.outcome.cpu_s += message.cpu_s
            case Recorded():
                self.outcome.add(rank, message)
                if len(self.outcome.columns) == self.phase.accelerators:
                    self._finish()

    def prepare(self, waiting: Mapping[int, Point]) -> None:
        ready = [point.epoch for point in waiting.values() if isinstance(point, ReadyForEpoch)]
        if len(ready) == len(waiting):
            self._finish()
            epoch = min(ready)
            self.next = self.on_prepare(epoch) if self.on_prepare else Epoch(epoch=epoch)
            if self.sampler is not None:
                self.sampler.prepare()
        elif self.records is not None and self._save(waiting) is not None:
            self.records.make_room()

    def answer(self, waiting: Mapping[int, Point]) -> Mapping[int, Command]:
        if self.next is not None:
            self.outcome.epochs.append(self.next)
            epoch, self.next = self.next.epoch, None
            start_ns = time.monotonic_ns() + self.head_start_ns
            if self.sampler is not None:
                self.sampler.begin(epoch, start_ns)
            return dict.fromkeys(waiting, Start(start_ns))
        number = self._save(waiting)
        if self.records is not None and number is not None:
            return dict.fromkeys(waiting, Start(self.records.begin(number)))
        return {rank: Skip() for rank, point in waiting.items() if isinstance(point, ReadyToSave)}

    def tick(self) -> None:
        if self.sampler is not None:
            self.sampler.tick()
        counters = self.task.counters
        self.observer.steps(counters.steps() // max(1, counters.ranks))

    def _save(self, waiting: Mapping[int, Point]) -> int | None:
        """The number of the checkpoint that every rank of the phase is ready for, if there is."""
        numbers = {
            point.number if isinstance(point, ReadyToSave) else None for point in waiting.values()
        }
        everyone = len(waiting) == self.phase.accelerators
        return numbers.pop() if everyone and len(numbers) == 1 else None

    def _finish(self) -> None:
        """The last epoch that began is over, if there was one."""
        if self.sampler is not None:
            self.sampler.end()
        if self.outcome.epochs and self.on_finish is not None:
            self.on_finish(self.outcome.epochs[-1])

"""A phase: one start-to-stop of all ranks through their loaders, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ..host.timeline import Columns
from ..judge.statistics import of_all
from ..load.null import AnyReader
from ..load.order import Indices
from ..record.job import LoaderFacts, UserFacts
from ..record.training import Epoch, RankLog, WorkerLoad
from ..settings.accelerator import StepFacts
from ..settings.workload import AcceleratorSpec, EvaluationSpec, LoaderSpec, LogSpec, ReaderSpec
from .messages import Link, Recorded
from .study import SaveRecords
from .tasks.checkpoint import CheckpointRank

MIN_ROUNDS = 3
"""Rounds of its workers that a rank usually makes for a rate.

The first round is start-up, and during the wait for it one more can be read ahead.
"""

FEW_ROUNDS = 2
"""The fewest, where the time is too short for more: the first is the fill, the second the rate."""


Source = Literal["none", "stored", "bytes", "ready", "copy", "nothing"]
"""What the reader of a phase reads: see ``Bench.reader``."""


@dataclass(frozen=True, kw_only=True)
class PhaseSettings:
    """What the ranks of a phase do, but for the reader itself and what they save.

    ``source``: what the reader reads; ``copy_bytes``: the limit of a copy in memory, if that is
    read.
    ``epochs`` None: as many as needed to reach a limit; ``max_steps`` and ``limit_s`` limit each
    rank over all epochs, and ``min_steps`` are made without a reader whatever the time.
    ``whole_rounds``: each worker finishes its turn before ``limit_s`` ends the phase, and has had
    ``min_rounds`` of them. ``share``: the ranks split an epoch; otherwise each reads all of it, in
    an order of its own. ``counts_fetched``: count the bytes that the storage delivers to ranks and
    workers. ``evicts``: the page cache is emptied before each epoch, so at that time ranks must not
    keep pages of the data mapped. ``evaluation``: what is evaluated after epochs, on the shards
    ``held_out``. ``log``: what is written down of each sample.
    """

    name: str
    reading: ReaderSpec
    loading: LoaderSpec
    accelerator: AcceleratorSpec
    accelerators: int
    batch_size: int
    seed: int
    source: Source = "stored"
    copy_bytes: int = 0
    repetition: int = 0
    epochs: int | None = 1
    min_steps: int = 0
    max_steps: int | None = None
    limit_s: float | None = None
    whole_rounds: bool = False
    min_rounds: int = MIN_ROUNDS
    shards: Indices | None = None
    share: bool = True
    counts_fetched: bool = False
    evicts: bool = False
    evaluation: EvaluationSpec | None = None
    held_out: Indices | None = None
    log: LogSpec | None = None


@dataclass(frozen=True, kw_only=True)
class Phase(PhaseSettings):
    """What the ranks do. ``reader`` None: the accelerator alone, without any batch."""

    reader: AnyReader | None
    saving: Saving | None = None

    @property
    def exchanges_gradients(self) -> bool:
        """Whether the ranks average their gradients in each step; a single rank has no need to."""
        return self.accelerator.gradient_sync == "ddp" and self.accelerators > 1

    @property
    def in_step(self) -> bool:
        """Whether the ranks wait for each other after each step, and exchange nothing."""
        synced = self.reader is not None and self.accelerator.sync == "step"
        return synced and self.ranks > 1 and not self.exchanges_gradients

    @property
    def ranks(self) -> int:
        """All ranks: after those that read, for each of them the others of its group."""
        grouped = self.reader is not None and self.accelerator.sync == "step"
        return self.accelerators * (self.accelerator.model_parallel if grouped else 1)


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Checkpoints while loading: after every ``every`` steps, all ranks wait and save together.

    ``first``: the number before that of the first save, so that the saves of each repetition have
    different numbers. ``records``: None on a host that does not record the saves. ``rendezvous``:
    see ``Hosts``.
    """

    every: int
    first: int
    records: SaveRecords | None
    saver: Callable[[Link], CheckpointRank]  # made in the rank's process
    rendezvous: str = ""


@dataclass
class Outcome:
    """The result of a phase: event columns by rank, and what the events do not contain."""

    columns: dict[int, Columns] = field(default_factory=dict)
    evaluation: dict[int, Columns] = field(default_factory=dict)  # of ranks that have evaluated
    epochs: list[Epoch] = field(default_factory=list)
    complete: bool = True
    cpu_s: float = 0.0
    loader: LoaderFacts = field(default_factory=LoaderFacts)
    steps: StepFacts | None = None  # of rank 0
    fetched: dict[int, list[int | None]] = field(default_factory=dict)  # by epoch: ranks' counts
    workers: list[WorkerLoad] = field(default_factory=list)  # of all ranks
    logs: list[Sequence[RankLog]] = field(default_factory=list)  # of each rank

    def events(self) -> Columns:
        """The event columns of all ranks in one table, with an additional column ``rank``."""
        return _table(self.columns)

    def evaluated(self) -> Columns | None:
        """The same of the passes of evaluation; None if there were none."""
        return _table(self.evaluation) if self.evaluation else None

    def add(self, rank: int, recorded: Recorded) -> None:
        """Add what a rank has recorded."""
        self.columns[rank] = recorded.columns
        if recorded.evaluation:
            self.evaluation[rank] = recorded.evaluation
        self.cpu_s += recorded.cpu_s
        self.complete = self.complete and recorded.complete
        before, self.loader = self.loader.user, recorded.loader
        if before is not None and recorded.loader.user is not None:
            both = UserFacts.together([before, recorded.loader.user])
            self.loader = recorded.loader.model_copy(update={"user": both})
        self.workers += recorded.workers
        self.logs.append(recorded.logs)
        if rank == 0:
            self.steps = recorded.steps
        self.add_fetched(recorded.fetched)
        for context in self.epochs:
            startup = recorded.startups.get(context.epoch)
            missing = rank + 1 - len(context.startups_s)
            context.startups_s += [None] * missing
            context.startups_s[rank] = startup
            context.late_starts_s += [None] * missing
            context.late_starts_s[rank] = recorded.late_starts.get(context.epoch)
            known = [value for value in (startup, context.startup_s) if value is not None]
            context.startup_s = min(known, default=None)

    def add_fetched(self, fetched: Mapping[int, int | None]) -> None:
        """Add the bytes that the storage delivered in each epoch to a rank; None: unknown."""
        for context in self.epochs:
            if context.epoch in fetched:
                counts = self.fetched.setdefault(context.epoch, [])
                counts.append(fetched[context.epoch])
                context.bytes_fetched = of_all(sum, counts)

    def forget_fetched(self) -> None:
        for context in self.epochs:
            context.bytes_fetched = None


def _table(columns: Mapping[int, Columns]) -> Columns:
    ranks = sorted(columns)
    table = {
        name: np.concatenate([columns[rank][name] for rank in ranks]) for name in columns[ranks[0]]
    }
    table["rank"] = np.concatenate([np.full(len(columns[rank]["step"]), rank) for rank in ranks])
    return table


class PhaseInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during a phase. ``outcome``: what the ranks had recorded until then."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome

"""How a parent and its ranks talk: a frozen class for each message, and the link between them.

What a rank sends is one of three kinds, which is all that the conductor knows of it: at a ``Point``
the rank waits for a command, after a ``Report`` it goes on, and a ``Last`` message ends its part.
Instants are on the monotonic clock of the host, in nanoseconds. A ``Task`` says what each rank
does; a crew starts the ranks, and gives each a link to the parent.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..accelerate.base import RankPlace
from ..base.errors import IobenchError
from ..host.timeline import Columns
from ..record.checkpoint import RankSave
from ..record.job import LoaderFacts, UserFacts
from ..record.model_load import LoadStage
from ..record.training import RankLog, WorkerLoad
from ..settings.accelerator import StepFacts


class Command:
    """From the parent to a rank that waits at a point."""

    __slots__ = ()


class Point:
    """From a rank that now waits for a command."""

    __slots__ = ()


class Report:
    """From a rank that goes on."""

    __slots__ = ()


class Last:
    """The last message of a rank."""

    __slots__ = ()


# From the parent to a rank


@dataclass(frozen=True, slots=True)
class Start(Command):
    """Begin, together with all ranks at this instant, what you reported to be ready for."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Skip(Command):
    """Do not do what you reported to be ready for, and continue."""


@dataclass(frozen=True, slots=True)
class Prepare(Command):
    """Change the state as a training step would, and take its checksums."""

    step: int


@dataclass(frozen=True, slots=True)
class SaveNow(Command):
    """Save the state as of ``step``, then train until the next save.

    ``whole``: all of it, and not only what changes from save to save.
    """

    step: int
    at_ns: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Drain(Command):
    """Wait for a save that is still in progress in the background."""


@dataclass(frozen=True, slots=True)
class PrepareRestore(Command):
    """Wipe the tensors that ``step`` has, and check that its files can be restored into them."""

    step: int


@dataclass(frozen=True, slots=True)
class RestoreNow(Command):
    """Read the checkpoint into the tensors that were wiped."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class LoadNow(Command):
    """Load the weights, without the stage ``leave_out`` if there is one."""

    at_ns: int
    leave_out: LoadStage | None = None


@dataclass(frozen=True, slots=True)
class CheckLoaded(Command):
    """Compare the tensors with what they should be, and drop them."""


@dataclass(frozen=True, slots=True)
class Stop(Command):
    """Do not do what you reported to be ready for, report what you have recorded, and end."""


# From a rank to the parent


@dataclass(frozen=True, slots=True)
class ReadyForEpoch(Point):
    """The rank waits for ``epoch`` to begin; answered by Start."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ReadyToSave(Point):
    """The rank waits before checkpoint ``number``; answered by Start or Skip."""

    number: int


@dataclass(frozen=True, slots=True)
class PartSaved(Report):
    """The rank's part of the checkpoint of ``step`` is durable and published."""

    step: int
    part: RankSave


@dataclass(frozen=True, slots=True)
class Recorded(Last):
    """What a rank of a phase recorded.

    ``columns``: its step events by name, see ``record.training.EVENT_COLUMNS``. ``startups``: by
    epoch, the seconds from the start to the first read. ``fetched``: by epoch, the bytes that the
    storage delivered to the rank and its workers; None if they could not be counted. ``workers``:
    what each worker of the rank did, if the loader is iobench's own. ``steps``: what an accelerator
    that computes tells of itself. ``late_starts``: by epoch, how many seconds after the common
    start the rank began. ``evaluation``: the events of its passes of evaluation, if it made any.
    ``logs``: of each epoch, if the phase writes one.
    """

    columns: Columns
    cpu_s: float
    complete: bool
    startups: Mapping[int, float | None]
    fetched: Mapping[int, int | None]
    loader: LoaderFacts
    workers: Sequence[WorkerLoad] = ()
    steps: StepFacts | None = None
    late_starts: Mapping[int, float] = field(default_factory=dict)
    evaluation: Columns = field(default_factory=dict)
    logs: Sequence[RankLog] = ()


@dataclass(frozen=True, slots=True)
class Done(Point):
    """The rank has carried out its command, and waits for the next one.

    ``overlapped_s`` and ``alone_s``: the seconds of each training step since then, with and without
    a save in progress in the background.
    """

    overlapped_s: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PartRestored(Point):
    """A rank's part of a restore.

    ``wall_s`` is from the common start, after which the rank began ``late_s`` later. ``verified``:
    whether the state is the one that was saved; None if the check was not requested.
    """

    wall_s: float
    late_s: float
    bytes: int
    cpu_s: float | None
    verified: bool | None
    threads: int | None = None
    retries: int = 0  # requests that the storage sent again
    throttled: int = 0  # of these, after the server asked to slow down


@dataclass(frozen=True, slots=True)
class PartLoaded(Point):
    """A rank has its tensors. Times from the common start, after which it began ``late_s`` later.

    ``bytes_read``: that it asked for; ``fetched``: that the kernel got from the storage for it.
    ``class_s``: the assembly of all tensors of a class. None: not known.
    """

    ready_s: float
    late_s: float
    bytes_read: int | None
    fetched: int | None
    cpu_s: float
    peak_memory_bytes: int | None
    class_s: Mapping[str, float]
    retries: int = 0  # requests that the storage sent again
    throttled: int = 0  # of these, after the server asked to slow down


@dataclass(frozen=True, slots=True)
class Delivered(Last):
    """For each epoch the xxh3 hashes (64 bits) of the samples, in the order in which they came."""

    epochs: list[npt.NDArray[np.uint64]]


@dataclass(frozen=True, slots=True)
class Tried(Last):
    """What a rank found out about the user's loader by its first batches.

    ``hashes``: xxh3 of their samples. ``not_replaced``: why its dataset can't be, or empty.
    """

    facts: UserFacts
    batch_size: int
    prefetch_factor: int
    persistent: bool
    hashes: Sequence[int]
    not_replaced: str


@dataclass(frozen=True, slots=True)
class Ended(Last):
    """The rank has nothing more to report."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The rank has ended with this error."""

    error: IobenchError


Answer = Point | Report | Last


HURRY = signal.SIGUSR1
"""Signal that asks a rank to send its last message now, and to end.

It comes some time after a stop, to a rank that may hang in its storage. A task that has something
to report handles it. A task that must not be cut in two ignores it. Any other rank ends by it.
"""


class Flag(Protocol):
    """A flag in memory that a rank shares with the parent."""

    value: bool


@dataclass(frozen=True, slots=True)
class Link:
    """A rank's connection to the parent. ``rank``: 0 to ``world`` - 1, over all hosts.

    ``first``: the first rank of this host, which has ``on_host`` of them (0: all).
    ``stopped`` becomes true when the task is to end soon. A rank that works looks at it between two
    steps; a rank that waits for a command gets Stop.
    """

    rank: int
    world: int
    stopped: Flag
    _pipe: Connection
    first: int = 0
    on_host: int = 0

    @property
    def local(self) -> int:
        """The number of this rank on its host, from 0."""
        return self.rank - self.first

    def place(
        self, world: int, batch_size: int, *, seed: int = 0, meeting: str | None = None
    ) -> RankPlace:
        """Which one this rank is of the ``world`` ranks that read."""
        on_host = min(self.on_host or world, world)
        return RankPlace(self.rank, world, batch_size, seed, meeting, self.local, on_host)

    def send(self, message: Answer | Failed) -> None:
        """Send a message. Raises BrokenPipeError if the parent is gone."""
        self._pipe.send(message)

    def receive(self) -> Command:
        """Wait for the next command. Raises EOFError if the parent is gone."""
        command: Command = self._pipe.recv()
        return command

    def close(self) -> None:
        self._pipe.close()


class Task(Protocol):
    """What all ranks do. One object describes it for all; ``run`` makes what one rank needs.

    A task whose ranks run code of others has an attribute ``others_code`` that is true: what such a
    rank has started is ended with it, see ``crew``.
    """

    def run(self, link: Link) -> None:
        """Carry out the task as rank ``link.rank``, in that rank's process.

        The rank sends a Point wherever it needs a command, and exactly one Last message. Raises
        IobenchError, which the parent raises again.
        """

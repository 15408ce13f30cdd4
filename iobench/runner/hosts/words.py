"""Messages between the controller of a job and the agents of its other hosts.

The controller asks and orders, an agent answers. What a rank of another host and the controller
tell each other (``runner.messages``) travels inside ``ToRank`` and ``FromRank``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...base.errors import HostLostError, IobenchError
from ...host.depth import Depth
from ...load.order import Indices
from ...record.curve import MeasuredWith
from ...settings.workload import AcceleratorSpec, LoaderSpec, ReaderSpec
from ..curve.places import Place
from ..messages import Answer, Command

Source = Literal["none", "stored", "bytes", "copy", "nothing", "ready"]
"""What the reader of a phase reads, see ``orders``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavingOrder:
    """The checkpoints of a phase; see ``phase.Saving``."""

    every: int
    first: int
    rendezvous: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseOrder:
    """A phase as the agent of another host can make it from its own plan; see ``phase.Phase``.

    ``source``: the reader; ``copy_bytes``: how much of the dataset it copies into memory, if it
    reads such a copy. ``number``: of the phase in the run. ``meeting``: the URL at which its ranks
    meet, if they exchange gradients.
    """

    number: int
    source: Source
    copy_bytes: int
    saves: SavingOrder | None
    meeting: str | None
    name: str
    reading: ReaderSpec
    loading: LoaderSpec
    accelerator: AcceleratorSpec
    accelerators: int
    batch_size: int
    seed: int
    repetition: int
    epochs: int
    min_steps: int
    max_steps: int | None
    limit_s: float | None
    whole_rounds: bool
    min_rounds: int
    shards: Indices | None
    share: bool
    counts_fetched: bool
    evicts: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class SavesOrder:
    """The ranks of a checkpoint study, or the saves alone of a run with checkpoints.

    ``rendezvous``: where the writers of the ranks meet.
    """

    accelerators: int
    rendezvous: str


# From both


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life, which only the wire sees."""


# From the controller to an agent


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered by Pong at once."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Start your ranks of this phase, or of this study: those from ``first`` on, ``count`` of them.

    ``offset_ns``: how far your clock is ahead of the controller's. ``barrier_port``: where
    all hosts meet after each step, at the controller; 0: nowhere. Answered by Begun, or Refused.
    """

    order: PhaseOrder | SavesOrder
    first: int
    count: int
    offset_ns: int
    barrier_port: int


@dataclass(frozen=True, slots=True)
class ToRank:
    """A command for one of your ranks; its instants are on your clock."""

    rank: int
    command: Command


@dataclass(frozen=True, slots=True)
class StopRanks:
    """Set the flag ``stopped`` of your ranks."""


@dataclass(frozen=True, slots=True)
class HurryRanks:
    ranks: Sequence[int]


@dataclass(frozen=True, slots=True)
class EndRanks:
    """End your ranks within this time, and answer AllEnded."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class Ask:
    """Do something once for your host, on the data of the run; answered by Told or Refused.

    ``keys``: the object whose text is asked for. ``port``: of the barrier that is measured.
    """

    what: Literal[
        "empty",
        "fill",
        "state",
        "counter",
        "mount",
        "host",
        "barrier",
        "snapshot",
        "used",
        "text",
        "tried",
        "prepare",
    ]
    direct: bool = False
    keys: tuple[str, ...] = ()
    port: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadNow:
    """Read these places from the instant ``at_ns`` of your clock on; answered by Told(HaveRead).

    ``rows``: of each place the number of its key in ``keys``, its offset, its length, and how many
    of its bytes are needed. ``curve``: which curve this point is of; ``max_bytes`` and ``once`` as
    in ``curve.reader``.
    """

    curve: str
    keys: tuple[str, ...]
    rows: npt.NDArray[np.int64]
    in_flight: int
    seconds: float
    most: int
    at_ns: int
    max_bytes: int
    once: bool

    @property
    def places(self) -> tuple[Place, ...]:
        """Raises HostLostError for rows that are no places."""
        rows, count = self.rows, len(self.keys)
        if rows.ndim != 2 or rows.shape[1] != 4 or (rows < 0).any() or (rows[:, 0] >= count).any():
            raise HostLostError("places were ordered that are none")
        return tuple(Place(self.keys[key], *rest) for key, *rest in rows.tolist())


def rows_of(places: Sequence[Place]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """The ``keys`` and ``rows`` of ``ReadNow``."""
    numbers: dict[str, int] = {}
    rows = [(numbers.setdefault(key, len(numbers)), *rest) for key, *rest in places]
    return tuple(numbers), np.array(rows, dtype=np.int64).reshape(-1, 4)


@dataclass(frozen=True, slots=True)
class EmptyCacheOf:
    """Drop these objects from your page cache; answered by Told(CacheState)."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DoTasks:
    """Do these tasks of the verb, send each result as Part, and Shared at the end, or Refused.

    ``seen``: what you must see at the place of the work, too, see ``sharing``.
    """

    tasks: tuple[int, ...]
    seen: str = ""


@dataclass(frozen=True, slots=True)
class Bye:
    """The run is over. ``why``: what went wrong, or empty; ``code``: the exit code for it."""

    code: int
    why: str = ""


# From an agent to the controller


@dataclass(frozen=True, slots=True)
class Planned:
    """What the host is about to measure, by the names of what must be the same on all hosts."""

    same: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Pong:
    at_ns: int


@dataclass(frozen=True, slots=True)
class Begun:
    """The ranks of the phase run."""


@dataclass(frozen=True, slots=True)
class FromRank:
    rank: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Counted:
    """What the ranks of a host have done so far, see ``runner.counters``."""

    counters: Mapping[int, npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class AllEnded:
    """No rank of the phase is left."""


@dataclass(frozen=True, slots=True)
class Told:
    """What was asked for."""

    value: object


@dataclass(frozen=True, slots=True)
class HaveRead:
    """What was read, and with what program."""

    depth: Depth
    by: MeasuredWith
    program: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The result of one task."""

    value: object


@dataclass(frozen=True, slots=True)
class Shared:
    """All tasks of the order are done."""


@dataclass(frozen=True, slots=True)
class Refused:
    """It failed with this error. ``rank``: it is that of a rank, which has ended."""

    error: IobenchError
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Ctrl-C or SIGTERM has reached this host."""

"""Messages between the parent and its ranks: a frozen class for each.

Instants are on the monotonic clock of the host, in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import IobenchError
from ..schema.checkpoint import RankSave

# From the parent to a rank


@dataclass(frozen=True, slots=True)
class Start:
    """Begin, together with all ranks at this instant, what you reported to be ready for."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Skip:
    """Do not do what you reported to be ready for, and continue."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Change the state as a training step would, and take its checksums."""

    step: int


@dataclass(frozen=True, slots=True)
class SaveNow:
    """Save the state as of ``step``, then train until the next save."""

    step: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Wait for a save that is still in progress in the background."""


@dataclass(frozen=True, slots=True)
class RestoreNow:
    """Read the checkpoint of ``step`` into tensors that were wiped."""

    step: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End. A rank that waits for an epoch to begin records nothing more."""


# From a rank to the parent


@dataclass(frozen=True, slots=True)
class ReadyForEpoch:
    """The rank waits for ``epoch`` to begin; answered by Start."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ReadyToSave:
    """The rank waits before checkpoint ``number``; answered by Start or Skip."""

    number: int


@dataclass(frozen=True, slots=True)
class Saved:
    """The rank's part of the checkpoint of ``step`` is durable and published."""

    step: int
    part: RankSave


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a rank of a phase recorded; its last message.

    ``columns``: its step events by name, see ``schema.result.EVENT_COLUMNS``. ``startups``: by
    epoch, the seconds from the start to the first read. ``fetched``: by epoch, the bytes that the
    storage delivered to the rank and its workers; None if they could not be counted.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    cpu_s: float
    complete: bool
    startups: Mapping[int, float | None]
    fetched: Mapping[int, int | None]
    loader: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    """The rank has carried out its command, and waits for the next one.

    ``overlapped_s`` and ``alone_s``: the seconds of each training step since then, with and without
    a save in progress in the background.
    """

    overlapped_s: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Restored:
    """A rank's part of a restore.

    ``verified``: whether the state is the one that was saved; None if the check was not requested.
    """

    wall_s: float
    bytes: int
    cpu_s: float | None
    verified: bool | None


@dataclass(frozen=True, slots=True)
class Delivered:
    """For each epoch the xxh3 hashes (64 bits) of the samples, in the order in which they came."""

    epochs: list[npt.NDArray[np.uint64]]


@dataclass(frozen=True, slots=True)
class Failed:
    """The rank has ended with this error."""

    error: IobenchError


Command = Start | Skip | Prepare | SaveNow | Drain | RestoreNow | Stop
Answer = ReadyForEpoch | ReadyToSave | Saved | Recorded | Done | Restored | Delivered

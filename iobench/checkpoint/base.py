"""What a checkpoint writer is: it puts one rank's state on a storage, says when that was done, and brings it back.

A state is a nested dict of ``str`` to torch.Tensor, int, float or str. Every rank has its own, and calls its own writer at the same time as
the others. One save of a job goes like this (``iobench/checkpoint/catalog.py`` has the places)::

    root = CheckpointRoot.open(url)         # every rank
    root.claim()                            # rank 0, once: refuses places that hold anything else
    target = root.step(100)
    pending = writer.save(state, target)    # every rank; training goes on when this returns
    saved = pending.wait()                  # every rank; durable as far as this rank goes
    target.publish(saved, rank=..)          # every rank, off the clock: this rank's part of the manifest
    target.commit(writer=.., world=..)      # rank 0, when all have published: from now on it is a checkpoint

and a restore like this::

    target = root.latest()
    restored = writer.restore(state, target)    # every rank, into tensors that are there

All clocks are CLOCK_MONOTONIC, which the processes of one host share; durations are seconds since ``save`` was called.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import UsageError
from ..registry import WRITERS

if TYPE_CHECKING:
    from .catalog import CheckpointTarget

State = dict[str, Any]
"""Nested: str -> torch.Tensor | int | float | str | State."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One rank's place among the others.

    ``rendezvous``: where writers that talk to one another meet, ``tcp://host:port`` or ``file:///path`` of a file that is not there yet.
    """

    rank: int = 0
    world: int = 1
    rendezvous: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """One rank's save. What was not measured is None."""

    started_s: float  # CLOCK_MONOTONIC at the call
    blocked_s: float  # until training could go on, back-pressure included
    backpressure_s: float  # of this: waiting for the save before to end (async writers)
    staged_s: (
        float | None
    )  # until the state was copied, so that training may change it; None for a writer that makes no copy
    accepted_s: float  # until the storage had taken all bytes
    durable_s: (
        float | None
    )  # until they were safe: fsync of files and folder, or completed uploads; None with fsync=False
    bytes: int  # in this rank's files
    files: dict[str, int]  # name below the target -> bytes
    cpu_s: (
        float | None
    )  # processor time of this process from the call until durable; None where others share it (async writers)
    checksums: dict[
        str, str
    ]  # of each leaf of the state as it was at the call: see leaves.state_checksums
    shared: bool = False  # whether some of the files hold tensors that the ranks have together


class Pending(Protocol):
    """A save that may still be going on."""

    def done(self) -> bool:
        """Whether ``wait`` would return at once."""

    def wait(self) -> Saved:
        """Until it is durable (accepted, with fsync=False). Raises what the save raised: StorageError, CheckpointError."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """One rank's restore; what was saved and what came back are compared off the clock."""

    started_s: float  # CLOCK_MONOTONIC at the call
    wall_s: float  # until the last byte was in its tensor
    bytes: int  # of the files that this rank read
    cpu_s: float  # processor time of this process, without the verification
    verify_s: float  # what the verification took afterwards
    # How: "tensors" (each leaf of the state), "files" (each file, where the ranks' shares have
    # changed), or "" where it was not asked for.
    verified: str
    inspected_s: float = 0.0  # before ``started_s``: a look whether the files are what they say


class CheckpointWriter(Protocol):
    """One per rank, made in the process that uses it, used from one thread; ``make_writer`` makes it by name."""

    name: str
    asynchronous: bool  # save returns before the state is on the storage

    def save(
        self,
        state: State,
        target: CheckpointTarget,
        *,
        fsync: bool = True,
        checksums: Mapping[str, str] | None = None,
    ) -> Pending:
        """Write ``state`` below ``target``. ``checksums`` of the state, if known, else they are computed before the clock starts.

        An asynchronous writer waits for its own save before, and counts that. Raises StorageError, in one line; a save that failed leaves
        a partial checkpoint, which ``CheckpointRoot.partial`` finds and ``remove`` takes away.
        """

    def restore(self, state: State, target: CheckpointTarget, *, verify: bool = True) -> Restored:
        """Fill ``state``, whose tensors are allocated and have the saved names, types and shapes.

        With ``verify`` it returns only when everything was found to be what was saved. Raises
        CorruptCheckpointError; after an error the state's contents are undefined.
        """

    def close(self) -> None:
        """Wait for what is going on, and let go of threads, processes and connections."""


def make_writer(
    name: str, job: Job | None = None, options: Mapping[str, Any] | None = None
) -> CheckpointWriter:
    """The writer of that name. Raises UnknownNameError; UsageError for an option that it does not have, or a missing package."""
    kind, given = WRITERS.load(name), dict(options or {})
    check_options(name, given)
    return kind(job or Job(), **given)  # type: ignore[no-any-return]


def options_of(name: str) -> set[str]:
    """The options of a writer. Raises UnknownNameError."""
    return set(inspect.signature(WRITERS.load(name)).parameters) - {"job"}


def check_options(name: str, options: Iterable[str]) -> None:
    """Raises UsageError for an option that the writer does not have, UnknownNameError."""
    known = options_of(name)
    for option in options:
        if option not in known:
            raise UsageError(
                f"the writer '{name}' has no option '{option}'",
                remedy=f"known: {', '.join(sorted(known)) or 'none'}",
            )


def asynchronous_version(name: str) -> str:
    """``name`` where that writer is asynchronous, else the name of its version that is.

    Raises UnknownNameError; UsageError where the writer has none.
    """
    if WRITERS.load(name).asynchronous:
        return name
    known = WRITERS.entries()
    if f"{name}-async" in known:
        return f"{name}-async"
    able = sorted(other.removesuffix("-async") for other in known if other.endswith("-async"))
    raise UsageError(
        f"the writer '{name}' has no asynchronous version", remedy=f"use {' or '.join(able)}"
    )

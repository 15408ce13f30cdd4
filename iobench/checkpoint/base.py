"""The protocol of a checkpoint writer.

A writer puts one rank's state on a storage, reports when that was done, and restores it.

A state is a nested dict of ``str`` to torch.Tensor, int, float or str. Every rank has its own
state, and calls its own writer at the same time as the other ranks. One save of a job goes like
this (the places are in ``iobench/checkpoint/catalog.py``)::

    root = CheckpointRoot.open(url)         # every rank
    root.claim()                            # rank 0, once: refuses places that hold anything else
    target = root.step(100)
    pending = writer.save(state, target)    # every rank; training goes on when this returns
    saved = pending.wait()                  # every rank; durable as far as this rank goes
    target.publish(saved, rank=..)          # every rank, not timed: its part of the manifest
    target.commit(writer=.., world=..)      # rank 0, after all ranks: now it is a checkpoint

and a restore like this::

    target = root.latest()
    restored = writer.restore(state, target)    # every rank, into allocated tensors

All times are CLOCK_MONOTONIC, which the processes of one host share. Durations are in seconds since
``save`` was called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
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
    """One rank of a job.

    ``rendezvous``: where the ranks' writers meet, ``tcp://host:port`` or ``file:///path``, whose
    file must not exist yet.
    """

    rank: int = 0
    world: int = 1
    rendezvous: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """One rank's save. Times in seconds; what was not measured is None."""

    started_s: float  # CLOCK_MONOTONIC at the call
    blocked_s: float  # until training could go on, back-pressure included
    backpressure_s: float  # the part of it that waited for the previous save (async writers)
    staged_s: float | None
    """Until the state was copied, so that training may change it. None: nothing is copied."""
    accepted_s: float  # until the storage had accepted all bytes
    durable_s: float | None
    """Until they were durable: fsync of files and folder, or completed uploads. None: no fsync."""
    bytes: int  # in this rank's files
    files: dict[str, int]  # name below the target -> bytes
    cpu_s: float | None
    """This process's CPU time from the call until durable. None: other work shares the process."""
    checksums: dict[str, str]  # of each leaf at the time of the call: leaves.state_checksums
    shared: bool = False  # whether some files hold tensors that several ranks share


class Pending(Protocol):
    """A save that may still be running."""

    def done(self) -> bool:
        """Whether ``wait`` would return immediately."""

    def wait(self) -> Saved:
        """Wait until the save is durable (with fsync=False: accepted).

        Raises the error of the save: StorageError, CheckpointError.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """One rank's restore. Its verification against the save's checksums is not part of the time."""

    started_s: float  # CLOCK_MONOTONIC when it began to read, after the check of the files
    wall_s: float  # until the last byte was in its tensor
    bytes: int  # of the files that this rank read
    cpu_s: float  # CPU time of this process, without the verification
    verify_s: float  # duration of the verification afterwards
    verified: str
    """"tensors" (each leaf), "files" (each file, where the ranks' shares have changed), or "" where
    no verification was asked for."""
    inspected_s: float = 0.0  # before ``started_s``: the check that the files are safe to read
    threads: int | None = None  # that read at the end; None: not known


class CheckpointWriter(Protocol):
    """The writer of one rank.

    It is made in the process that uses it (by ``make_writer``, by name), and used by one thread.
    """

    name: str
    asynchronous: bool  # save returns before the state is on the storage

    def __init__(self, job: Job, **options: Any) -> None:
        """A writer's own parameters are its options; their values may come as text."""

    def save(
        self,
        state: State,
        target: CheckpointTarget,
        *,
        fsync: bool = True,
        checksums: Mapping[str, str] | None = None,
    ) -> Pending:
        """Write ``state`` below ``target``.

        ``checksums``: of the state, if known; otherwise they are computed before the clock starts.
        An asynchronous writer waits for its previous save first, and counts that time. Raises
        StorageError and CheckpointError. A failed save leaves a partial checkpoint, which
        ``CheckpointRoot.partial`` finds and ``CheckpointRoot.remove`` removes.
        """

    def restore(
        self,
        state: State,
        target: CheckpointTarget,
        *,
        verify: bool = True,
        begin: Callable[[], None] | None = None,
    ) -> Restored:
        """Fill ``state``, whose tensors are allocated with the saved names, types and shapes.

        With ``verify`` it returns after everything has been verified. ``begin`` is called once,
        between the check of the files and the clock's start: it returns when all ranks have got so
        far. After an error, also one of ``begin``, the state's contents are undefined. Raises
        StorageError, CheckpointError, CorruptCheckpointError.
        """

    def close(self) -> None:
        """Wait for running saves, and release threads, processes and connections."""


def make_writer(
    name: str, job: Job | None = None, options: Mapping[str, Any] | None = None
) -> CheckpointWriter:
    """The writer with that name.

    Raises UnknownNameError; UsageError for an unknown option, or a missing package.
    """
    kind, given = WRITERS.load(name), dict(options or {})
    check_options(name, given)
    return kind(job or Job(), **given)


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

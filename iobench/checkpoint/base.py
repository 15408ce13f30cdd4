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

from dataclasses import dataclass
from typing import Any, Protocol

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
    unwritten_bytes: int | None = None
    """Of local files that were synced: bytes that were then only in the page cache. None: not seen,
    or not synced, or the storage has no page cache here."""
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
    verified: str
    """"tensors" (each leaf), "files" (each file, where the ranks' shares have changed), or "" where
    no verification was asked for."""
    inspected_s: float = 0.0  # before ``started_s``: the check that the files are safe to read
    threads: int | None = None  # that read at the end; None: not known

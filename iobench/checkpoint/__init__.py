"""What a training saves. The table of the writers that iobench has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..base.errors import UsageError
from ..plugins import PlugIn, Registry

if TYPE_CHECKING:  # who asks for names alone needs nothing heavy
    from .base import Job, Pending, Restored, State
    from .catalog import CheckpointTarget


class CheckpointWriter(Protocol):
    """The writer of one rank.

    It is made in the process that uses it (by ``make_writer``, by name), and used by one thread.
    """

    name: str
    asynchronous: bool  # save returns before the state is on the storage

    def __init__(self, job: Job, **options: Any) -> None:
        """A writer's own parameters are its options; their values may come as text."""

    def check(self, state: State, target: CheckpointTarget) -> None:
        """Check that the state can be saved, and take the memory for it, before the clock starts.

        Raises CheckpointError, UsageError.
        """

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


WRITERS: Registry[CheckpointWriter] = Registry(
    "writer",
    "iobench.writers",
    __name__,
    {
        "torch": PlugIn(".torch_save:TorchSave", "torch.save, one file per rank"),
        "torch-async": PlugIn(
            ".torch_save:TorchSaveBehind", "torch.save of a copy, written by a thread"
        ),
        "torch-nocrc": PlugIn(".torch_save:TorchSaveNoCrc", "torch.save without its CRC32"),
        "safetensors": PlugIn(
            ".safetensors_file:Safetensors", "safetensors, one file per rank", "checkpoint"
        ),
        "safetensors-async": PlugIn(
            ".safetensors_file:SafetensorsBehind",
            "safetensors of a copy, written by a thread",
            "checkpoint",
        ),
        "dcp": PlugIn(".dcp:Dcp", "torch.distributed.checkpoint: any world size can read it"),
        "dcp-async": PlugIn(".dcp:DcpThread", "dcp of a copy, written by a thread"),
        "dcp-async-process": PlugIn(".dcp:DcpProcess", "dcp of a copy, written by a process"),
        "stream": PlugIn(
            ".stream:Stream", "parallel O_DIRECT, or S3 parts, straight from the tensors"
        ),
        "stream-async": PlugIn(".stream:StreamBehind", "stream of a copy, written by a thread"),
    },
)


def make_writer(
    name: str, job: Job | None = None, options: Mapping[str, Any] | None = None
) -> CheckpointWriter:
    """The writer with that name.

    Raises UnknownNameError; UsageError for an unknown option, or a missing package.
    """
    from .base import Job

    kind, given, known = WRITERS.load(name), dict(options or {}), options_of(name)
    for option in sorted(given):
        if option not in known:
            raise UsageError(
                f"the writer '{name}' has no option '{option}'",
                remedy=f"known: {', '.join(sorted(known)) or 'none'}",
            )
    return kind(job or Job(), **given)


def options_of(name: str) -> set[str]:
    """The options of a writer. Raises UnknownNameError."""
    return set(inspect.signature(WRITERS.load(name)).parameters) - {"job"}


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

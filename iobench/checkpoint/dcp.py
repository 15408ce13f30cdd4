"""torch.distributed.checkpoint (DCP): the ranks plan together who writes what.

A plain tensor belongs to one rank, and is saved under the rank's name. Tensors that the ranks share
(DTensors) can be restored by another number of ranks, or as whole plain tensors.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import (
    AsyncCheckpointerType,
    AsyncSaveResponse,
    async_save,
    save,
)

from ..base.errors import (
    CheckpointError,
    IobenchError,
    NoRoomError,
    StorageError,
    UsageError,
    first_line,
)
from ..storage.base import exists
from .base import Job, State
from .catalog import CheckpointTarget
from .dcp_compat import end_process, use_less_verbose_process
from .dcp_restore import RestoringDcp, first_cause, tensor_bytes, writer_for
from .leaves import Leaves, is_shared, leaves
from .manifest import METADATA
from .saving import Behind, Restoring, SaveClock, Writer, cannot_write, make_durable


class RankGroup:
    """A gloo group of all ranks.

    It is a new group if the training has initialized torch.distributed; otherwise it is the
    process's default group while this object is open.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._owned = False
        self._group: Any = None
        self._address = False

    def open(self) -> Any:
        """The group, the same at each call. All ranks must call it. Raises UsageError."""
        if self._group is not None:
            return self._group
        job = self._job
        if not dist.is_initialized():
            if job.world > 1 and not job.rendezvous:
                raise UsageError(
                    f"the {job.world} ranks of a dcp checkpoint have no rendezvous",
                    remedy="give the job a rendezvous: tcp://host:port",
                )
            if job.world == 1:
                store = dist.HashStore()  # type: ignore[attr-defined]
                dist.init_process_group("gloo", store=store, rank=0, world_size=1)
            else:
                dist.init_process_group(
                    "gloo", init_method=job.rendezvous, rank=job.rank, world_size=job.world
                )
            self._owned = True
        self._group = dist.group.WORLD if self._owned else dist.new_group(backend="gloo")
        one_host = job.world == 1 or job.rendezvous.startswith(
            ("file://", "tcp://127.0.0.1", "tcp://localhost")
        )
        if one_host and "MASTER_ADDR" not in os.environ:
            # dcp-async-process's processes of all ranks meet here. The host's own name may have no
            # address.
            os.environ["MASTER_ADDR"] = "127.0.0.1"
            self._address = True
        return self._group

    def close(self) -> None:
        if self._owned and dist.is_initialized():
            dist.destroy_process_group()
        elif self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        if self._address:
            os.environ.pop("MASTER_ADDR", None)
        self._group, self._owned, self._address = None, False, False


class Dcp(Writer):
    """``threads`` files for each rank, each written by its own thread."""

    name = "dcp"

    def __init__(self, job: Job, *, threads: int | str = 1) -> None:
        super().__init__(job)
        self.threads = int(threads)
        self.group = RankGroup(job)

    def write(
        self, state: State, target: CheckpointTarget, *, fsync: bool, clock: SaveClock
    ) -> float:
        with write_errors(target):
            save(
                self.named(state),
                storage_writer=self.storage_writer(state, target, fsync=fsync),
                process_group=self.group.open(),
            )
            accepted = clock.wall()
            if fsync:
                self.sync(target)
        return accepted

    def prepare(self, target: CheckpointTarget) -> None:
        """Raises CheckpointError where a save has left its files."""
        if any(exists(target.storage, target.key(name)) for name in self.files()):
            raise CheckpointError(
                f"{target.url} holds a partial checkpoint",
                remedy="remove it first, or use another step number",
            )
        self.group.open()

    def storage_writer(self, state: State, target: CheckpointTarget, *, fsync: bool) -> Any:
        return writer_for(target, fsync=fsync, threads=self.threads, nbytes=tensor_bytes(state))

    def files(self) -> list[str]:
        """The names of this rank's files; rank 0 also writes the metadata."""
        return [f"__{self.job.rank}_{number}.distcp" for number in range(self.threads)] + (
            [METADATA] if self.job.rank == 0 else []
        )

    def named(self, state: State) -> Leaves:
        return {self.dcp_name(name, leaf): leaf for name, leaf in leaves(state).items()}

    def dcp_name(self, name: str, leaf: object) -> str:
        return name if is_shared(leaf) else f"rank-{self.job.rank:04d}/{name}"

    def sync(self, target: CheckpointTarget) -> None:
        """fsync what the library wrote to local files. Sinks of other storages have done that."""
        if target.path() is not None:
            paths = [target.path(name) for name in self.files()]
            make_durable([path for path in paths if path is not None and path.exists()])

    def restoring(self, state: State, target: CheckpointTarget) -> Restoring:
        return RestoringDcp(self.name, self.job, state, target, self.group.open)

    def close(self) -> None:
        self.group.close()


class DcpThread(Behind, Dcp):
    """A copy of the state is written by a thread, which competes with training for the interpreter.

    The library makes the copy, and keeps its memory for the next save.
    """

    name = "dcp-async"
    _kind = AsyncCheckpointerType.THREAD
    _shared_memory = False
    _stager: DefaultStager | None = None

    def prepare(self, target: CheckpointTarget) -> None:
        super().prepare(target)
        if self._stager is None:
            self._stager = DefaultStager(StagingOptions(False, self._shared_memory, False, False))

    def start(
        self, state: State, target: CheckpointTarget, *, fsync: bool, clock: SaveClock
    ) -> Future[Any]:
        response = async_save(
            self.named(state),
            storage_writer=self.storage_writer(state, target, fsync=fsync),
            process_group=self.group.open(),
            async_checkpointer_type=self._kind,
            async_stager=self._stager,
        )
        return response.upload_completion if isinstance(response, AsyncSaveResponse) else response

    def accepted(
        self, written: Future[Any], target: CheckpointTarget, *, fsync: bool, clock: SaveClock
    ) -> float:
        with write_errors(target):
            written.result()
            accepted = clock.wall()
            if fsync:
                self.sync(target)
        return accepted

    def close(self) -> None:
        self.settle()
        if self._stager is not None:
            self._stager.close()
            self._stager = None
        super().close()


class DcpProcess(DcpThread):
    """Written by a separate process, which gets the copy in shared memory.

    The first save starts that process, which takes seconds.
    """

    name = "dcp-async-process"
    _kind = AsyncCheckpointerType.PROCESS
    _shared_memory = True

    def __init__(self, job: Job, *, threads: int | str = 1) -> None:
        super().__init__(job, threads=threads)
        use_less_verbose_process()  # the first save starts it

    def check(self, state: State, target: CheckpointTarget) -> None:
        if target.path() is None:
            try:
                pickle.dumps(target.storage)
            except (IobenchError, TypeError, pickle.PicklingError) as error:
                raise UsageError(
                    f"{self.name} can't use {target.storage.url} in another process: {error}"
                ) from error
        if self._before is None:
            room = os.statvfs("/dev/shm")
            need = tensor_bytes(state)
            free = room.f_bavail * room.f_frsize
            if free < need:
                raise NoRoomError(
                    f"{self.name} copies {need >> 20} MiB into /dev/shm, which has only "
                    f"{free >> 20} MiB free",
                    remedy="make it larger, or use dcp-async",
                )

    def close(self) -> None:
        super().close()
        end_process()


@contextmanager
def write_errors(target: CheckpointTarget) -> Iterator[None]:
    """Raise what the library raises while it writes as an error of one line."""
    try:
        yield
    except BaseException as error:
        _raise_write_error(error, target)
        raise


def _raise_write_error(error: BaseException, target: CheckpointTarget) -> None:
    """Raise StorageError or CheckpointError for an exception of the library.

    Returns if it is not an ``Exception``, such as KeyboardInterrupt.
    """
    cause = first_cause(error)
    if isinstance(cause, IobenchError):
        raise cause from None
    if not isinstance(cause, Exception):
        return
    folder = target.path()
    if isinstance(cause, OSError | RuntimeError) and folder is not None:
        raise cannot_write(
            Path(str(getattr(cause, "filename", None) or folder / METADATA)), cause
        ) from error
    raise StorageError(f"cannot write {target.url}: {first_line(cause)}") from error

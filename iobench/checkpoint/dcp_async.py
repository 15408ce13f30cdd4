"""``dcp.async_save``: copy the state while training waits, then write it while training goes on.

A thread or a process writes it.
"""

from __future__ import annotations

import os
import pickle
from concurrent.futures import Future
from typing import Any

from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import (
    AsyncCheckpointerType,
    AsyncSaveResponse,
    async_save,
)

from ..errors import CheckpointError, IobenchError, UsageError
from .base import Job, Pending, Saved, State
from .catalog import CheckpointTarget
from .dcp import Dcp, raise_write_error, tensor_bytes
from .dcp_compat import end_process, use_less_verbose_process
from .saving import SaveClock


class DcpThread(Dcp):
    """Written by a thread, which competes with training for the interpreter.

    The memory of the copy is kept for the next save.
    """

    name = "dcp-async"
    asynchronous = True
    _kind = AsyncCheckpointerType.THREAD
    _shared_memory = False

    def __init__(self, job: Job, *, threads: int | str = 1) -> None:
        super().__init__(job, threads=threads)
        self._stager: DefaultStager | None = None
        self._before: _Background | None = None

    def begin(
        self, state: State, target: CheckpointTarget, checksums: dict[str, str], *, fsync: bool
    ) -> Pending:
        group = self.ready(target)
        if self._stager is None:
            self._stager = DefaultStager(StagingOptions(False, self._shared_memory, False, False))
        clock = SaveClock()
        if self._before is not None:
            self._before.settle()
        backpressure = clock.wall()
        response = async_save(
            self.named(state),
            storage_writer=self.storage_writer(state, target, fsync=fsync),
            process_group=group,
            async_checkpointer_type=self._kind,
            async_stager=self._stager,
        )
        upload: Future[Any] = (
            response.upload_completion if isinstance(response, AsyncSaveResponse) else response
        )
        blocked = clock.wall()

        def finish() -> Saved:
            accepted = clock.wall()
            if fsync:
                self.sync(target)
            return self.ended(
                target,
                clock,
                checksums,
                accepted_s=accepted,
                fsync=fsync,
                blocked_s=blocked,
                backpressure_s=backpressure,
            )

        self._before = _Background(upload, finish, target)
        return self._before

    def close(self) -> None:
        if self._before is not None:
            self._before.settle()
            self._before = None
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
                raise CheckpointError(
                    f"{self.name} copies {need >> 20} MiB into /dev/shm, which has only "
                    f"{free >> 20} MiB free",
                    remedy="make it larger, or use dcp-async",
                )

    def close(self) -> None:
        super().close()
        end_process()


class _Background:
    """A save that is being written; ``finish`` runs in the thread that sees the upload's end."""

    def __init__(self, upload: Future[Any], finish: Any, target: CheckpointTarget) -> None:
        self._done: Future[Saved] = Future()
        self._target = target

        def ended(future: Future[Any]) -> None:
            try:
                future.result()
                self._done.set_result(finish())
            except BaseException as error:
                self._done.set_exception(error)

        upload.add_done_callback(ended)

    def done(self) -> bool:
        return self._done.done()

    def wait(self) -> Saved:
        try:
            return self._done.result()
        except BaseException as error:
            raise_write_error(error, self._target)
            raise

    def settle(self) -> None:
        """Wait until the save has ended, successfully or not; ``wait`` raises its error."""
        self._done.exception()

"""What writers have in common: clocks, saves, also beside the training, fsync, errors, restores."""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from ..base.errors import CheckpointError, IobenchError, StorageError, first_line
from ..base.filesystem import sync
from ..base.pagecache import unwritten_bytes
from ..storage.base import exists
from .base import Job, Pending, Restored, Saved, State
from .catalog import CheckpointTarget
from .leaves import SHARED, check_fits, is_shared, leaves, state_checksums
from .leaves import verify as verify_state
from .manifest import RankPart
from .reading import own_part, read_errors

log = logging.getLogger(__name__)


class SaveClock:
    """Wall time and CPU time since it was made."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self._cpu = time.process_time()

    def wall(self) -> float:
        return time.monotonic() - self.started_s

    def cpu(self) -> float:
        """Seconds of CPU time, of all threads of this process."""
        return time.process_time() - self._cpu


class Finished:
    """A save that has already ended."""

    def __init__(self, saved: Saved) -> None:
        self._saved = saved

    def done(self) -> bool:
        return True

    def wait(self) -> Saved:
        return self._saved


class Restoring(ABC):
    """One restore of one rank. Its parts are called in this order."""

    bytes: int  # of the files that this rank reads
    threads: int | None = None  # that read at the end; None: not known

    def inspect(self) -> None:
        """Check the files before the clock starts. Raises as ``read`` does.

        The check must neither take more memory than the state has, nor run code of the files.
        """
        return

    @abstractmethod
    def read(self) -> None:
        """Fill the state."""

    @abstractmethod
    def verify(self) -> str:
        """Compare the state with what was saved; returns ``Restored.verified``."""


class Writer(ABC):
    """What all writers do for a save, and for a restore."""

    name: str
    asynchronous = False

    def __init__(self, job: Job) -> None:
        self.job = job

    def save(
        self,
        state: State,
        target: CheckpointTarget,
        *,
        fsync: bool = True,
        checksums: Mapping[str, str] | None = None,
    ) -> Pending:
        known = dict(checksums) if checksums is not None else state_checksums(state)
        self.check(state, target)
        target.prepare()
        self.prepare(target)
        return self.begin(state, target, known, fsync=fsync)

    def check(self, state: State, target: CheckpointTarget) -> None:
        return

    def prepare(self, target: CheckpointTarget) -> None:
        """What a save needs before its clock starts."""
        return

    def begin(
        self, state: State, target: CheckpointTarget, checksums: dict[str, str], *, fsync: bool
    ) -> Pending:
        clock = SaveClock()
        accepted = self.write(state, target, fsync=fsync, clock=clock)
        return Finished(self.ended(target, clock, checksums, accepted_s=accepted, fsync=fsync))

    @abstractmethod
    def write(
        self, state: State, target: CheckpointTarget, *, fsync: bool, clock: SaveClock
    ) -> float:
        """Write until durable (until accepted, without ``fsync``).

        Returns the time on ``clock`` when the storage had accepted all bytes.
        """

    @abstractmethod
    def files(self) -> list[str]:
        """The names of the files that this rank may write."""

    def ended(
        self,
        target: CheckpointTarget,
        clock: SaveClock,
        checksums: dict[str, str],
        *,
        accepted_s: float,
        fsync: bool,
        blocked_s: float | None = None,
        backpressure_s: float = 0.0,
    ) -> Saved:
        """The save that has ended at this moment. ``blocked_s``: of one beside the training."""
        wall, cpu = clock.wall(), clock.cpu()
        keys = {name: target.key(name) for name in self.files()}
        storage = target.storage
        paths = [path for name in keys if (path := target.path(name)) is not None and path.exists()]
        files = {name: storage.size(key) for name, key in keys.items() if exists(storage, key)}
        log.info("%s saved %d bytes to %s", self.name, sum(files.values()), target.url)
        return Saved(
            started_s=clock.started_s,
            blocked_s=wall if blocked_s is None else blocked_s,
            backpressure_s=backpressure_s,
            staged_s=None if blocked_s is None else blocked_s - backpressure_s,
            accepted_s=accepted_s,
            durable_s=wall if fsync else None,
            bytes=sum(files.values()),
            files=files,
            cpu_s=cpu if blocked_s is None else None,  # else the training shares the process
            checksums=checksums,
            unwritten_bytes=unwritten_bytes(paths) if fsync and paths else None,
            shared=any(checksum.endswith(SHARED) for checksum in checksums.values()),
        )

    def restore(
        self,
        state: State,
        target: CheckpointTarget,
        *,
        verify: bool = True,
        begin: Callable[[], None] | None = None,
    ) -> Restored:
        restoring = self.restoring(state, target)
        before = SaveClock()
        restoring.inspect()
        inspected = before.wall()
        if begin is not None:
            begin()
        clock = SaveClock()
        restoring.read()
        wall, cpu = clock.wall(), clock.cpu()
        log.info("%s restored %s in %.3f s", self.name, target.url, wall)
        verified = restoring.verify() if verify else ""
        return Restored(
            started_s=clock.started_s,
            wall_s=wall,
            bytes=restoring.bytes,
            cpu_s=cpu,
            verified=verified,
            inspected_s=inspected,
            threads=restoring.threads,
        )

    @abstractmethod
    def restoring(self, state: State, target: CheckpointTarget) -> Restoring:
        """A restore, after it was checked that the checkpoint fits the state and has all files.

        Raises CheckpointError, CorruptCheckpointError, StorageError.
        """

    def close(self) -> None:
        return


class FileWriter(Writer):
    """A writer of one file for each rank. A subclass says how it is written and read."""

    suffix: str
    readers: int | None = None  # threads that the last restore ended with; None: not known

    def file(self) -> str:
        return f"rank-{self.job.rank:04d}{self.suffix}"

    def files(self) -> list[str]:
        return [self.file()]

    def restoring(self, state: State, target: CheckpointTarget) -> Restoring:
        part = own_part(self.name, self.job, target)
        file = self.file()
        self.check(state, target)
        check_fits(state, part.checksums, f"{target.url}/{file}")
        target.check_sizes({file: part.files[file]} if file in part.files else part.files)
        return _RestoringFile(self, state, target, part)

    def check(self, state: State, target: CheckpointTarget) -> None:
        """Check, before the clock starts, that the state can be saved or restored into.

        Raises CheckpointError.
        """
        shared = next((name for name, leaf in leaves(state).items() if is_shared(leaf)), None)
        if shared is not None:
            raise CheckpointError(
                f"'{shared}' is a part of a tensor that ranks share (DTensor), which {self.name} "
                "does not support",
                remedy="use dcp",
            )

    def inspect(self, state: State, target: CheckpointTarget) -> None:
        """See ``Restoring.inspect``."""
        return

    @abstractmethod
    def read(self, state: State, target: CheckpointTarget) -> None:
        """Fill the state.

        Any exception means a corrupt file, except iobench's own errors.
        """


class _RestoringFile(Restoring):
    def __init__(
        self, writer: FileWriter, state: State, target: CheckpointTarget, part: RankPart
    ) -> None:
        self._writer, self._state, self._target, self._part = writer, state, target, part
        self._where = f"{target.url}/{writer.file()}"
        self.bytes = sum(part.files.values())

    def inspect(self) -> None:
        with read_errors(self._where):
            self._writer.inspect(self._state, self._target)

    def read(self) -> None:
        with read_errors(self._where):
            self._writer.read(self._state, self._target)
        self.threads = self._writer.readers

    def verify(self) -> str:
        verify_state(self._state, self._part.checksums, self._where)
        return "tensors"


def write_file(
    target: CheckpointTarget,
    name: str,
    write: Callable[[Path], None],
    *,
    fsync: bool,
    clock: SaveClock,
) -> float:
    """Let a library write a local file, then fsync it; the time when it was accepted.

    After an error no file is left. Raises StorageError, CheckpointError.
    """
    path = target.path(name)
    assert path is not None
    if os.path.lexists(path):  # the library would write through a symbolic link
        raise CheckpointError(
            f"{path} already exists",
            remedy="remove the partial checkpoint first, or use another step number",
        )
    try:
        write(path)
        accepted = clock.wall()
        if fsync:
            make_durable([path])
    except BaseException as error:
        if path.exists():
            # The error may keep the library's open file alive, and so its disk space.
            os.truncate(path, 0)
            path.unlink()
        if not isinstance(error, Exception):
            raise
        raise cannot_write(path, error) from error
    return accepted


def make_durable(paths: list[Path]) -> None:
    """fsync files and the folders that hold their names."""
    for path in [*paths, *{path.parent for path in paths}, *{path.parent.parent for path in paths}]:
        sync(path)


def cannot_write(path: Path, error: Exception) -> StorageError:
    """The error in one line.

    Some libraries only say that writing failed; then the free space is shown as a likely reason.
    """
    if isinstance(error, IobenchError):
        raise error
    why = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
    try:
        room = os.statvfs(path.parent)
        free = room.f_bavail * room.f_frsize
    except OSError:
        free = 1 << 62
    full = f" ({free >> 20} MiB are free)" if free < 1 << 30 and "space" not in why else ""
    return StorageError(
        f"cannot write {path}: {why}{full}",
        remedy="free some space, or choose another target" if full else "",
    )


class Behind(Writer):
    """The asynchronous version of a writer. The memory of the copy is kept for the next save.

    A save waits for the one before, and counts that. The thread competes with training for the
    interpreter, as it does in a training that saves in this way.
    """

    asynchronous = True
    _copy: State | None = None
    _before: Future[Saved] | None = None
    _thread: ThreadPoolExecutor | None = None

    def begin(
        self, state: State, target: CheckpointTarget, checksums: dict[str, str], *, fsync: bool
    ) -> Pending:
        clock = SaveClock()
        self.settle()
        backpressure = clock.wall()
        written = self.start(state, target, fsync=fsync, clock=clock)
        blocked = clock.wall()
        saved = self._before = Future[Saved]()

        def ended(written: Future[Any]) -> None:  # in the thread that has written
            try:
                accepted = self.accepted(written, target, fsync=fsync, clock=clock)
                saved.set_result(
                    self.ended(
                        target,
                        clock,
                        checksums,
                        accepted_s=accepted,
                        fsync=fsync,
                        blocked_s=blocked,
                        backpressure_s=backpressure,
                    )
                )
            except BaseException as error:
                saved.set_exception(error)

        written.add_done_callback(ended)
        return _Running(saved)

    def start(
        self, state: State, target: CheckpointTarget, *, fsync: bool, clock: SaveClock
    ) -> Future[Any]:
        """Copy the state, and begin to write the copy."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="iobench-save")
        copy = self._copy = copied(state, self._copy or {})
        return self._thread.submit(self.write, copy, target, fsync=fsync, clock=clock)

    def accepted(
        self, written: Future[Any], target: CheckpointTarget, *, fsync: bool, clock: SaveClock
    ) -> float:
        """What ``write`` returns, for the save that has been written. Raises its error."""
        return float(written.result())

    def settle(self) -> None:
        """Wait until the save before has ended, however it did; its own ``wait`` tells."""
        if self._before is not None:
            self._before.exception()

    def close(self) -> None:
        self.settle()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self._before = self._copy = None
        super().close()


class _Running:
    """A save that a thread or another process writes."""

    def __init__(self, saved: Future[Saved]) -> None:
        self._saved = saved

    def done(self) -> bool:
        return self._saved.done()

    def wait(self) -> Saved:
        return self._saved.result()


def copied(state: State, memory: State) -> State:
    """``state`` in memory of its own on this host, in that of ``memory`` where a tensor fits."""
    copy: State = {}
    for name, leaf in state.items():
        there = memory.get(name)
        if isinstance(leaf, dict):
            copy[name] = copied(leaf, there if isinstance(there, dict) else {})
        elif isinstance(leaf, torch.Tensor):
            if not isinstance(there, torch.Tensor) or _kind(there) != _kind(leaf):
                there = torch.empty_like(leaf, device="cpu")
            copy[name] = there.copy_(leaf)
        else:
            copy[name] = leaf
    return copy


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.stride()

"""What writers have in common: clocks, finished saves, fsync, error messages, the restore."""

from __future__ import annotations

import logging
import os
import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import CheckpointError, IobenchError, StorageError
from ..storage.base import Cached
from ..storage.catalog import innermost
from ..storage.window import Window
from .base import Job, Pending, Restored, Saved, State
from .catalog import CheckpointTarget
from .leaves import check_fits, is_shared, leaves, state_checksums
from .leaves import verify as verify_state
from .manifest import Part, corrupt

log = logging.getLogger(__name__)

_BLOCK = 16 << 10
"""Bytes per read while a file is inspected."""


class Clock:
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


class FileWriter(ABC):
    """A writer of one file for each rank that has finished when ``save`` returns.

    A subclass says how the file is written and read.
    """

    name: str
    suffix: str
    asynchronous = False
    readers: int | None = None  # threads that the last restore ended with; None: not known

    def __init__(self, job: Job) -> None:
        self.job = job

    def file(self) -> str:
        return f"rank-{self.job.rank:04d}{self.suffix}"

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
        clock = Clock()
        accepted = self.write(state, target, fsync=fsync, clock=clock)
        wall, cpu = clock.wall(), clock.cpu()
        size = self.size(target)
        return Finished(
            Saved(
                started_s=clock.started_s,
                blocked_s=wall,
                backpressure_s=0.0,
                staged_s=None,
                accepted_s=accepted,
                durable_s=wall if fsync else None,
                bytes=size,
                files={self.file(): size},
                cpu_s=cpu,
                checksums=known,
            )
        )

    def restore(
        self,
        state: State,
        target: CheckpointTarget,
        *,
        verify: bool = True,
        begin: Callable[[], None] | None = None,
    ) -> Restored:
        part = own_part(self.name, self.job, target)
        where = f"{target.url}/{self.file()}"
        self.check(state, target)
        check_fits(state, part.checksums, where)
        target.check_sizes(
            {self.file(): part.files[self.file()]} if self.file() in part.files else part.files
        )
        before = Clock()
        with read_errors(where):
            self.inspect(state, target)
        inspected = before.wall()
        if begin is not None:
            begin()
        clock = Clock()
        with read_errors(where):
            self.read(state, target)
        wall, cpu = clock.wall(), clock.cpu()
        log.info("%s restored %s in %.3f s", self.name, where, wall)
        if verify:
            verify_state(state, part.checksums, where)
        return Restored(
            started_s=clock.started_s,
            wall_s=wall,
            bytes=sum(part.files.values()),
            cpu_s=cpu,
            verify_s=clock.wall() - wall,
            verified="tensors" if verify else "",
            inspected_s=inspected,
            threads=self.readers,
        )

    def size(self, target: CheckpointTarget) -> int:
        """Bytes of this rank's file, which has just been written."""
        size = target.storage.size(target.key(self.file()))
        log.info("%s saved %d bytes to %s", self.name, size, target.url)
        return size

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
        """Check the file before the clock starts. Raises as ``read`` does.

        The check must neither take more memory than the state has, nor run code of the file.
        """
        return

    @abstractmethod
    def write(self, state: State, target: CheckpointTarget, *, fsync: bool, clock: Clock) -> float:
        """Write until durable (until accepted, without ``fsync``).

        Returns the time on ``clock`` when the storage had accepted all bytes.
        """

    @abstractmethod
    def read(self, state: State, target: CheckpointTarget) -> None:
        """Fill the state.

        Any exception means a corrupt file, except iobench's own errors.
        """

    def close(self) -> None:
        return


def own_part(writer: str, job: Job, target: CheckpointTarget) -> Part:
    """This rank's part.

    Raises CheckpointError if another writer, or another number of ranks, saved the checkpoint.
    """
    manifest = target.manifest()
    # torch reads torch-nocrc, and dcp reads dcp-async.
    if manifest.writer.partition("-")[0] != writer.partition("-")[0]:
        raise CheckpointError(
            f"{target.url} was saved by the writer '{manifest.writer}', which '{writer}' "
            "can't read",
            remedy=f"use --writer {manifest.writer}",
        )
    if manifest.world != job.world:
        raise CheckpointError(
            f"{target.url} was saved by {manifest.world} ranks, and '{writer}' can't restore it "
            f"with {job.world}",
            remedy=f"use --ranks {manifest.world}, or a writer that can change the number of "
            "ranks (dcp)",
        )
    return target.part(manifest, job.rank)


def write_file(
    target: CheckpointTarget, name: str, write: Callable[[Path], None], *, fsync: bool, clock: Clock
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
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def cannot_write(path: Path, error: Exception) -> StorageError:
    """The error in one line.

    Some libraries only say that writing failed; then the free space is shown as a likely reason.
    """
    if isinstance(error, IobenchError):
        raise error
    why = error.strerror if isinstance(error, OSError) and error.strerror else _first_line(error)
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


@contextmanager
def uncached_window(target: CheckpointTarget, name: str) -> Iterator[Window]:
    """A window on a file that leaves nothing in the page cache: the restore must find it cold."""
    storage, key = target.direct(name), target.key(name)
    window = Window(storage, _BLOCK, nbytes=_BLOCK)
    window.open(key)
    try:
        yield window
    finally:
        if storage is not target.storage:
            storage.close()
        elif isinstance(inner := innermost(storage), Cached):
            inner.evict([key])


@contextmanager
def read_errors(where: str) -> Iterator[None]:
    """Turn what a library raises while it reads ``where`` into CorruptCheckpointError.

    iobench's own errors pass; an OSError with an error number becomes a StorageError.
    """
    try:
        yield
    except (IobenchError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except OSError as error:
        if error.errno:
            raise StorageError(f"cannot read {where}: {error.strerror}") from error
        raise corrupt(where, _first_line(error)) from error
    except pickle.UnpicklingError as error:
        raise corrupt(
            where,
            "it would run code, or holds objects that are not tensors; nothing was executed",
        ) from error
    except BaseException as error:  # torch.distributed's CheckpointException is not an Exception
        raise corrupt(where, _first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

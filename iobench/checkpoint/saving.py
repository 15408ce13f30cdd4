"""What writers have in common: clocks, finished saves, files made safe, errors in one line, and the way of every restore."""

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

_LOOK = 16 << 10
"""Bytes that are read at a time where a file is looked into."""


class Clock:
    """Wall and processor time since it was made."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self._cpu = time.process_time()

    def wall(self) -> float:
        return time.monotonic() - self.started_s

    def cpu(self) -> float:
        """Of all threads of this process."""
        return time.process_time() - self._cpu


class Finished:
    """A save that has ended already."""

    def __init__(self, saved: Saved) -> None:
        self._saved = saved

    def done(self) -> bool:
        return True

    def wait(self) -> Saved:
        return self._saved


class FileWriter(ABC):
    """A writer that puts each rank's state into one file, and is done when it returns. A subclass says how the file is written and read."""

    name: str
    suffix: str
    asynchronous = False

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

    def restore(self, state: State, target: CheckpointTarget, *, verify: bool = True) -> Restored:
        part = own_part(self.name, self.job, target)
        where = f"{target.url}/{self.file()}"
        self.check(state, target)
        check_fits(state, part.checksums, where)
        target.check_sizes(
            {self.file(): part.files[self.file()]} if self.file() in part.files else part.files
        )
        before = Clock()
        with reading(where):
            self.inspect(state, target)
        inspected, clock = before.wall(), Clock()
        with reading(where):
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
        )

    def size(self, target: CheckpointTarget) -> int:
        """Bytes of this rank's file, which has just been written."""
        size = target.storage.size(target.key(self.file()))
        log.info("%s saved %d bytes to %s", self.name, size, target.url)
        return size

    def check(self, state: State, target: CheckpointTarget) -> None:
        """Before the clock starts: can this state be saved, or restored into, at all? Raises CheckpointError."""
        shared = next((name for name, leaf in leaves(state).items() if is_shared(leaf)), None)
        if shared is not None:
            raise CheckpointError(
                f"'{shared}' is a share of a tensor (DTensor), which {self.name} can't handle",
                remedy="use dcp",
            )

    def inspect(self, state: State, target: CheckpointTarget) -> None:
        """Look into the file before the clock starts. Raises as ``read`` does.

        It must not take more memory than the state has, nor ask for code to be run.
        """
        return

    @abstractmethod
    def write(self, state: State, target: CheckpointTarget, *, fsync: bool, clock: Clock) -> float:
        """Until it is durable (accepted, without ``fsync``); the time when the storage had taken all bytes."""

    @abstractmethod
    def read(self, state: State, target: CheckpointTarget) -> None:
        """Fill the state. What it raises is a corrupt file, unless it is one of iobench's own errors."""

    def close(self) -> None:
        return


def own_part(writer: str, job: Job, target: CheckpointTarget) -> Part:
    """This rank's part. Raises CheckpointError for another writer's checkpoint, and for one of another number of ranks."""
    manifest = target.manifest()
    if (
        manifest.writer.partition("-")[0] != writer.partition("-")[0]
    ):  # torch reads torch-nocrc, and dcp reads dcp-async
        raise CheckpointError(
            f"{target.url} was saved by the writer '{manifest.writer}', and '{writer}' can't read it",
            remedy=f"use --writer {manifest.writer}",
        )
    if manifest.world != job.world:
        raise CheckpointError(
            f"{target.url} was saved by {manifest.world} ranks, and '{writer}' restores it with as many alone, not with {job.world}",
            remedy=f"use --ranks {manifest.world}, or a writer that can reshard (dcp)",
        )
    return target.part(manifest, job.rank)


def write_file(
    target: CheckpointTarget, name: str, write: Callable[[Path], None], *, fsync: bool, clock: Clock
) -> float:
    """A plain local file as a library writes it, then made safe; when it was accepted. What an error interrupts leaves no file."""
    path = target.path(name)
    assert path is not None
    if os.path.lexists(path):  # a link would be written through
        raise CheckpointError(
            f"{path} is there already",
            remedy="remove the partial checkpoint first, or save another step",
        )
    try:
        write(path)
        accepted = clock.wall()
        if fsync:
            make_durable([path])
    except BaseException as error:
        if path.exists():
            os.truncate(
                path, 0
            )  # the error itself may hold the library's open file, and with it the space
            path.unlink()
        if not isinstance(error, Exception):
            raise
        raise cannot_write(path, error) from error
    return accepted


def make_durable(paths: list[Path]) -> None:
    """fsync of files, and of the folders that name them."""
    for path in [*paths, *{path.parent for path in paths}, *{path.parent.parent for path in paths}]:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def cannot_write(path: Path, error: Exception) -> StorageError:
    """In one line; a library that only says that writing failed gets the free space as a likely reason."""
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
def looking_into(target: CheckpointTarget, name: str) -> Iterator[Window]:
    """A view of a file, past the page cache: a restore that follows is to find it cold."""
    storage, key = target.direct(name), target.key(name)
    window = Window(storage, _LOOK, nbytes=_LOOK)
    window.open(key)
    try:
        yield window
    finally:
        if storage is not target.storage:
            storage.close()
        elif isinstance(inner := innermost(storage), Cached):
            inner.evict([key])


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Whatever a library raises while it reads ``where`` means that the file is corrupt; iobench's own errors pass."""
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
            "it asks for code to be run, or holds other objects than tensors; nothing was executed",
        ) from error
    except BaseException as error:  # torch.distributed's CheckpointException is no Exception
        raise corrupt(where, _first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

"""What writers have in common: clocks, saves, also beside the training, fsync, errors, restores."""

from __future__ import annotations

import logging
import os
import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from ..errors import CheckpointError, IobenchError, StorageError
from ..storage.base import Cached
from ..storage.catalog import exists, innermost
from ..storage.window import ReadWindow
from .base import Job, Pending, Restored, Saved, State
from .catalog import CheckpointTarget
from .leaves import SHARED, check_fits, is_shared, leaves, state_checksums
from .leaves import verify as verify_state
from .manifest import RankPart, corrupt

log = logging.getLogger(__name__)

_BLOCK = 16 << 10
"""Bytes per read while a file is inspected."""


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


class Writer(ABC):
    """What all writers do when a save begins and when it has ended."""

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
        return self.begin(state, target, known, fsync=fsync)

    def check(self, state: State, target: CheckpointTarget) -> None:
        return

    @abstractmethod
    def begin(
        self, state: State, target: CheckpointTarget, checksums: dict[str, str], *, fsync: bool
    ) -> Pending:
        """Save, or begin to."""

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
            shared=any(checksum.endswith(SHARED) for checksum in checksums.values()),
        )

    def close(self) -> None:
        return


class FileWriter(Writer):
    """A writer of one file for each rank that has finished when ``save`` returns.

    A subclass says how the file is written and read.
    """

    suffix: str
    readers: int | None = None  # threads that the last restore ended with; None: not known

    def file(self) -> str:
        return f"rank-{self.job.rank:04d}{self.suffix}"

    def files(self) -> list[str]:
        return [self.file()]

    def begin(
        self, state: State, target: CheckpointTarget, checksums: dict[str, str], *, fsync: bool
    ) -> Pending:
        clock = SaveClock()
        accepted = self.write(state, target, fsync=fsync, clock=clock)
        return Finished(self.ended(target, clock, checksums, accepted_s=accepted, fsync=fsync))

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
        before = SaveClock()
        with read_errors(where):
            self.inspect(state, target)
        inspected = before.wall()
        if begin is not None:
            begin()
        clock = SaveClock()
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
    def write(
        self, state: State, target: CheckpointTarget, *, fsync: bool, clock: SaveClock
    ) -> float:
        """Write until durable (until accepted, without ``fsync``).

        Returns the time on ``clock`` when the storage had accepted all bytes.
        """

    @abstractmethod
    def read(self, state: State, target: CheckpointTarget) -> None:
        """Fill the state.

        Any exception means a corrupt file, except iobench's own errors.
        """


def own_part(writer: str, job: Job, target: CheckpointTarget) -> RankPart:
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
def uncached_window(target: CheckpointTarget, name: str) -> Iterator[ReadWindow]:
    """A window on a file that leaves nothing in the page cache: the restore must find it cold."""
    storage, key = target.direct(name), target.key(name)
    window = ReadWindow(storage, _BLOCK, nbytes=_BLOCK)
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


class Behind(FileWriter):
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
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="iobench-save")
        clock = SaveClock()
        if self._before is not None:
            self._before.exception()  # until it has ended, however it did; its own ``wait`` tells
        backpressure = clock.wall()
        copy = self._copy = copied(state, self._copy or {})
        blocked = clock.wall()

        def write() -> Saved:
            return self.ended(
                target,
                clock,
                checksums,
                accepted_s=self.write(copy, target, fsync=fsync, clock=clock),
                fsync=fsync,
                blocked_s=blocked,
                backpressure_s=backpressure,
            )

        self._before = self._thread.submit(write)
        return _Running(self._before)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self._before = self._copy = None
        super().close()


class _Running:
    """A save that a thread writes."""

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

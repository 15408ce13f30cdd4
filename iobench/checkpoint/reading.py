"""Before a library reads a checkpoint: whose it is, and that its files can do no harm.

``torch.load`` with ``weights_only`` runs no code of a file, and compares each tensor's size with
the bytes that are there. But a member of its archive (a zip file) that is compressed may expand to
a thousand times its length. torch never compresses members, so such an archive is refused.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from ..base.errors import CheckpointError, IobenchError, StorageError, first_line
from ..base.limits import header_limit
from ..storage.base import Cached, innermost
from ..storage.files import ReadWindow, Seekable
from .base import Job
from .catalog import CheckpointTarget
from .manifest import RankPart, corrupt

_BLOCK = 16 << 10
"""Bytes per read while a file is inspected."""

_TAIL = 4 << 10
"""Bytes at the end that hold the whole directory of an archive of one tensor."""


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


def check_archive(window: ReadWindow, begin: int, size: int, names: list[str]) -> None:
    """Check an archive of ``torch.save`` at these bytes of a file, with tensors of these ``names``.

    Raises ValueError if ``torch.load`` might take far more memory for it than its own size.
    """
    limit = header_limit(names)
    try:
        with zipfile.ZipFile(cast(IO[bytes], _ArchivePart(window, begin, size, limit))) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        raise ValueError(f"it is not an archive of torch.save: {error}") from None
    for member in members:
        if member.compress_type or member.file_size > size:
            raise ValueError(
                f"its member '{member.filename}' is compressed, which torch.save never does"
            )
        if member.filename.endswith("/data.pkl") and member.file_size > limit:
            raise ValueError(f"its pickle has {member.file_size} bytes; the limit is {limit}")


class _ArchivePart(Seekable):
    """Some bytes of a file as a file, whose end, with the directory of an archive, is read once.

    No more than ``limit`` bytes are read at once: a damaged directory states any length.
    """

    def __init__(self, window: ReadWindow, begin: int, size: int, limit: int) -> None:
        super().__init__(size)
        self._window, self._begin, self._limit = window, begin, limit
        self._tail_at = max(0, size - _TAIL)
        self._tail = window.bytes(begin + self._tail_at, begin + size)

    def readinto(self, buffer: Any) -> int:
        start, end = self.position, min(self.position + len(buffer), self.size)
        if end - start > self._limit:
            raise ValueError(f"its directory has {end - start} bytes; the limit is {self._limit}")
        if start >= self._tail_at:
            data = self._tail[start - self._tail_at : end - self._tail_at]
        else:
            data = self._window.bytes(self._begin + start, self._begin + end)
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)


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
        raise corrupt(where, first_line(error)) from error
    except pickle.UnpicklingError as error:
        raise corrupt(
            where,
            "it would run code, or holds objects that are not tensors; nothing was executed",
        ) from error
    except BaseException as error:  # torch.distributed's CheckpointException is not an Exception
        raise corrupt(where, first_line(error)) from error

"""Files being written: small ones straight, large ones through two aligned buffers, one filling while the other goes to disk."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ... import buffers
from ...interrupts import undisturbed
from ..base import Buffer

_LARGE = 8 << 20
_BLOCK = 8 << 20
_ALIGN = 4096
_RENAME_NOREPLACE = 1

_pool: list[npt.NDArray[np.uint8]] = []
"""Write buffers of this process, reused: fresh memory costs more than the write."""

_writer: tuple[int, ThreadPoolExecutor] | None = None


class FileSink(Protocol):
    def write(self, data: bytes | Buffer) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...


def open_sink(path: Path, *, size_hint: int, durable: bool) -> FileSink:
    """A new file at ``path``, which must not exist.

    ``durable``: the file appears under its name only when complete and on disk (fsync of file and folder). Otherwise it is written in
    place and becomes durable with the storage's next flush.
    """
    return (
        LargeSink(path, durable=durable, size_hint=size_hint)
        if size_hint >= _LARGE
        else SmallSink(path, durable=durable)
    )


class SmallSink:
    """Plain writes."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path = path
        self.durable = durable
        self._name = path.with_name(path.name + ".part") if durable else path
        if durable and path.exists():
            raise FileExistsError(17, os.strerror(17))
        if durable:
            self._fd = claim(self._name, os.O_WRONLY)
        else:
            self._fd = os.open(
                self._name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
            )

    def write(self, data: bytes | Buffer) -> None:
        view = memoryview(data)
        while len(view):
            view = view[os.write(self._fd, view) :]

    def commit(self) -> None:
        if self.durable:
            os.fsync(self._fd)
            publish(self._name, self.path)
        fd, self._fd = self._fd, -1
        os.close(fd)

    def abort(self) -> None:
        self._name.unlink(missing_ok=True)
        if self._fd >= 0:
            os.close(self._fd)


class LargeSink:
    """Double-buffered O_DIRECT writes of whole blocks (buffered where the file system has no O_DIRECT)."""

    def __init__(self, path: Path, *, durable: bool, size_hint: int) -> None:
        if path.exists():
            raise FileExistsError(17, os.strerror(17))
        self.path = path
        self.durable = durable
        self._name = path.with_name(path.name + ".part")
        self._buffer = _take()
        self._filled = 0
        self._offset = 0
        self._pending: Future[npt.NDArray[np.uint8]] | None = None
        try:
            self._fd = claim(self._name, os.O_WRONLY | os.O_DIRECT)
            self.direct = True
        except OSError as error:
            if error.errno != 22:
                raise
            self._fd = claim(self._name, os.O_WRONLY)
            self.direct = False
        try:
            os.posix_fallocate(self._fd, 0, size_hint)  # one extent, and no surprise at the end
        except OSError as error:
            if error.errno not in (22, 95):  # not every file system can
                self.abort()
                raise

    def write(self, data: bytes | Buffer) -> None:
        source = np.frombuffer(data, dtype=np.uint8)
        done = 0
        while done < len(source):
            count = min(_BLOCK - self._filled, len(source) - done)
            self._buffer[self._filled : self._filled + count] = source[done : done + count]
            self._filled += count
            done += count
            if self._filled == _BLOCK:
                self._send()

    def _send(self) -> None:
        previous = self._pending
        self._pending = _executor().submit(self._put, self._buffer, self._filled, self._offset)
        self._offset += self._filled
        self._filled = 0
        self._buffer = previous.result() if previous else _take()

    def _put(
        self, buffer: npt.NDArray[np.uint8], filled: int, offset: int
    ) -> npt.NDArray[np.uint8]:
        length = -(-filled // _ALIGN) * _ALIGN if self.direct else filled
        view = buffer.data[:length]
        while len(view):
            count = os.pwrite(self._fd, view, offset)
            offset += count
            view = view[count:]
        return buffer

    def commit(self) -> None:
        size = self._offset + self._filled
        if self._filled:
            self._send()
        self._drain()
        os.ftruncate(self._fd, size)  # the last direct write was padded to whole blocks
        if self.durable:
            os.fsync(self._fd)
        publish(self._name, self.path)
        fd, self._fd = self._fd, -1
        os.close(fd)
        _pool.append(self._buffer)

    def _drain(self) -> None:
        if self._pending:
            _pool.append(self._pending.result())
            self._pending = None

    def abort(self) -> None:
        try:
            self._drain()
        except OSError:
            pass  # the first failure is already on its way to the user
        self._name.unlink(missing_ok=True)
        if self._fd >= 0:
            os.close(self._fd)


def claim(part: Path, flags: int) -> int:
    """Open an unfinished file for one writer alone, who holds it until it has its name; what a killed writer left is begun again.

    A link of that name is refused: what it leads to was left by nobody.
    """
    fd = os.open(part, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                raise OSError(
                    errno.EBUSY, "another process is writing it"
                ) from None  # else: a file system without locks
        if not part.exists() or not os.path.samestat(os.fstat(fd), part.stat()):
            raise FileExistsError(
                errno.EEXIST, os.strerror(errno.EEXIST)
            )  # it was given its name just now
        try:
            os.ftruncate(fd, 0)
        except OSError:
            with suppress(OSError):  # the failure itself says more
                os.unlink(part)
            raise
    except OSError:
        os.close(fd)
        raise
    return fd


def rename_new(part: Path, path: Path) -> bool:
    """Rename a file or a folder unless the name is taken (renameat2 with RENAME_NOREPLACE).

    False where the file system has no such rename. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(part), -100, os.fsencode(path), _RENAME_NOREPLACE) == 0:
        return True
    code = ctypes.get_errno()
    if code == errno.EINVAL:
        return False
    raise OSError(code, os.strerror(code), str(path))


def publish(part: Path, path: Path) -> None:
    """Give a finished file its name, unless the name is taken, and make the name durable.

    Raises OSError.
    """
    if not rename_new(part, path):
        os.link(part, path)
        os.unlink(part)
    try:
        sync_folder(path.parent)
    except OSError:
        os.unlink(path)  # what was not made safe is not there
        raise


def replace_file(path: Path, data: bytes, *, only_new: bool) -> None:
    """Write a small file beside ``path`` and give it that name, durably.

    What has the name now is replaced, or is refused with ``only_new``. Each call has a ``.part``
    file of its own name, so two writers at once never mix.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    with undisturbed():  # the file is renamed or removed, whatever comes
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while len(view):
                view = view[os.write(fd, view) :]
            os.fsync(fd)
            if only_new:
                publish(part, path)
            else:
                part.replace(path)
                sync_folder(path.parent)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)


def make_folders(folder: Path) -> None:
    """Make the folder and those above it that are missing, with durable names.

    A file is no safer than its folders. A folder whose name can't be made durable is removed again.
    Raises OSError.
    """
    made = []
    while not folder.exists():
        made.append(folder)
        folder = folder.parent
    for one in reversed(made):
        one.mkdir(exist_ok=True)
        try:
            sync_folder(one.parent)
        except OSError:
            with suppress(OSError):  # somebody uses it by now
                one.rmdir()
            raise


def sync_folder(folder: Path) -> None:
    """What names are in it is on disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _take() -> npt.NDArray[np.uint8]:
    try:
        return _pool.pop()
    except IndexError:
        return buffers.private(_BLOCK).array


def _executor() -> ThreadPoolExecutor:
    global _writer
    if _writer is None or _writer[0] != os.getpid():  # threads do not survive a fork
        _writer = (os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="iobench-write"))
    return _writer[1]

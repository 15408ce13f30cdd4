"""Files being written, front to back or in aligned blocks from many threads.

Small files are written directly. Large ones go through two aligned buffers: one is filled while
the other is written to disk.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...base import buffers
from ...base.filesystem import sync
from ...base.interrupts import defer_interrupts
from ..base import Buffer

_LARGE = 8 << 20
_BLOCK = 8 << 20
_ALIGN = 4096
_RENAME_NOREPLACE = 1

_pool: list[npt.NDArray[np.uint8]] = []
"""Write buffers of this process, reused: allocating fresh memory costs more than the write."""

_writer: tuple[int, ThreadPoolExecutor] | None = None


def open_sink(path: Path, *, size_hint: int, durable: bool) -> SmallSink | LargeSink:
    """A new file at ``path``, which must not exist.

    ``durable``: the file gets its name only when it is complete and on disk (fsync of file and
    folder). Otherwise a small file is written under its final name, and the storage's next flush
    makes it durable. Raises OSError.
    """
    return (
        LargeSink(path, durable=durable, size_hint=size_hint)
        if size_hint >= _LARGE
        else SmallSink(path, durable=durable)
    )


class SmallSink:
    """Unbuffered writes with write(2)."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path = path
        self.durable = durable
        self._name = path.with_name(path.name + ".part") if durable else path
        self._named = False  # whether its name is durable
        if durable and path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
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

    def sync(self) -> None:
        """Make durable what was written so far (fdatasync(2)), and at first the file's name.

        Raises OSError, also if the file has been removed.
        """
        os.fdatasync(self._fd)
        if os.fstat(self._fd).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "it was removed while it was written")
        if not self._named:
            sync(self._name.parent)
            self._named = True

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
    """Double-buffered O_DIRECT writes of whole blocks.

    Writes are buffered where the file system has no O_DIRECT.
    """

    def __init__(self, path: Path, *, durable: bool, size_hint: int) -> None:
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self.path = path
        self.durable = durable
        self._name = path.with_name(path.name + ".part")
        self._buffer = _take_buffer()
        self._filled = 0
        self._offset = 0
        self._pending: Future[npt.NDArray[np.uint8]] | None = None
        try:
            self._fd = claim(self._name, os.O_WRONLY | os.O_DIRECT)
            self.direct = True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._fd = claim(self._name, os.O_WRONLY)
            self.direct = False
        try:
            # One contiguous extent, and a full disk is reported before the first write.
            os.posix_fallocate(self._fd, 0, size_hint)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
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
        self._buffer = previous.result() if previous else _take_buffer()

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
        with suppress(OSError):  # the first failure has already been raised
            self._drain()
        self._name.unlink(missing_ok=True)
        if self._fd >= 0:
            os.close(self._fd)


def claim(part: Path, flags: int) -> int:
    """Open the unfinished file ``part`` for this writer alone; its descriptor.

    The writer holds a flock(2) on the file until it is renamed to its final name. What a killed
    writer left in it is truncated. A symbolic link of that name is refused. Raises OSError: EBUSY
    where another process writes the file, EEXIST where one has just renamed it.
    """
    fd = os.open(part, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:  # other errors: no locks on this file system
                raise OSError(errno.EBUSY, "another process is writing it") from None
        if not part.exists() or not os.path.samestat(os.fstat(fd), part.stat()):
            # Its writer has renamed it between our open and our lock.
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        try:
            os.ftruncate(fd, 0)
        except OSError:
            with suppress(OSError):  # the first failure says more than this one would
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
    """Rename a finished file to ``path``, unless that name is taken, and make the name durable.

    Raises OSError.
    """
    if not rename_new(part, path):
        os.link(part, path)
        os.unlink(part)
    try:
        sync(path.parent)
    except OSError:
        os.unlink(path)  # a file whose name is not durable must not look finished
        raise


def replace_file(path: Path, data: bytes, *, only_new: bool) -> None:
    """Write a small file next to ``path`` and rename it to ``path``, durably.

    An existing file is replaced, or refused with ``only_new``. The temporary ``.part`` file has a
    random name, so two writers never write into the same one. Raises OSError.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    with defer_interrupts():  # a signal must not leave the temporary file behind
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
                sync(path.parent)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)


def make_folders(folder: Path) -> None:
    """Create the folder and its missing parents, with durable names.

    A file is only as durable as its folders. A folder whose name can't be made durable is removed
    again. Raises OSError.
    """
    made = []
    while not folder.exists():
        made.append(folder)
        folder = folder.parent
    for one in reversed(made):
        one.mkdir(exist_ok=True)
        try:
            sync(one.parent)
        except OSError:
            with suppress(OSError):  # another process may use the folder by now
                one.rmdir()
            raise


def _take_buffer() -> npt.NDArray[np.uint8]:
    try:
        return _pool.pop()
    except IndexError:
        return buffers.private(_BLOCK).array


def _executor() -> ThreadPoolExecutor:
    global _writer
    if _writer is None or _writer[0] != os.getpid():  # threads do not survive a fork
        _writer = (os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="iobench-write"))
    return _writer[1]


class ParallelFile:
    """A file that gets its name only when it is complete.

    Writes are buffered where the file system has no O_DIRECT. Every method raises OSError.
    """

    def __init__(self, path: Path, *, size: int, block_size: int, durable: bool) -> None:
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self.block_size = block_size + -block_size % _ALIGN
        self.alignment = _ALIGN
        self._path, self._part = path, path.with_name(path.name + ".part")
        self._size = size
        self._durable = durable
        try:
            self._fd = claim(self._part, os.O_WRONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._fd = claim(self._part, os.O_WRONLY)
            self.alignment = 1
        try:
            # Allocating everything now reports a full disk before the first write, and blocks
            # written later need not extend the file.
            os.posix_fallocate(self._fd, 0, max(size, 1))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                self.abort()
                raise

    def write_at(self, offset: int, data: Buffer) -> None:
        view = memoryview(data)
        while len(view):
            count = os.pwrite(self._fd, view, offset)
            offset += count
            view = view[count:]

    def commit(self) -> None:
        os.ftruncate(self._fd, self._size)  # the last block was padded
        if self._durable:
            os.fsync(self._fd)
        publish(self._part, self._path)
        fd, self._fd = self._fd, -1
        os.close(fd)

    def abort(self) -> None:
        self._part.unlink(missing_ok=True)
        if self._fd >= 0:
            os.close(self._fd)

"""A file of known size, written in aligned blocks from many threads.

With O_DIRECT the blocks go straight from the caller's memory to the device.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ..base import Buffer
from .sinks import claim, publish

_ALIGN = 4096


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

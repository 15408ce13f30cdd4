"""An object of any storage as a Python file, for libraries that read files."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .base import Buffer, Sink, Storage


class Seekable(io.RawIOBase):
    """The parts of a readable file that do not depend on its source.

    ``size`` and ``position`` are in bytes.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        self.position = max(0, start + offset)
        return self.position

    def tell(self) -> int:
        return self.position


class StorageFile(Seekable):
    """An object as a seekable file. ``size`` in bytes; None: the storage is asked."""

    def __init__(self, storage: Storage, key: str, size: int | None = None) -> None:
        super().__init__(storage.size(key) if size is None else size)
        self._storage = storage
        self._key = key

    def readinto(self, buffer: Any) -> int:
        view: Buffer = memoryview(buffer).cast("B")
        count = min(len(view), max(0, self.size - self.position))
        if count:
            count = self._storage.read_into(self._key, self.position, view[:count])
        self.position += count
        return count


@contextmanager
def file_over(sink: Sink) -> Iterator[SinkFile]:
    """A sink as a file.

    If the sink raised an error, that error is raised, whatever the library made of it.
    """
    file = SinkFile(sink)
    try:
        yield file
    except Exception:
        if file.refused is not None:
            raise file.refused from None
        raise


class SinkFile(io.RawIOBase):
    """A file that is written front to back, directly into a sink; ``write`` keeps no data."""

    def __init__(self, sink: Sink) -> None:
        self.refused: Exception | None = None
        self._sink = sink
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(view):
            try:
                self._sink.write(view)
            except Exception as error:
                self.refused = self.refused or error
                raise
        self._position += len(view)
        return len(view)

    def tell(self) -> int:
        return self._position


_BLOCK, _BLOCKS = 256 << 10, 4
"""Bytes of a block from which small reads (headers, directories) are served, and how many of the
last blocks are kept. torch looks at both ends of an archive in turns: a single one would be read
again each time."""


class _Blocks(StorageFile):
    """A file that keeps the last blocks; a read ends with the block that has its beginning."""

    def __init__(self, storage: Storage, key: str) -> None:
        super().__init__(storage, key)
        self._kept: deque[tuple[int, memoryview]] = deque(maxlen=_BLOCKS)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        start = self.position
        for begin, block in self._kept:
            if 0 <= start - begin < len(block):
                part = block[start - begin :][: len(view)]
                view[: len(part)] = part
                self.position += len(part)
                return len(part)
        if len(view) >= _BLOCK or start >= self.size:
            return super().readinto(view)
        block = memoryview(bytearray(min(_BLOCK, self.size - start)))
        self._kept.append((start, block[: super().readinto(block)]))
        self.position = start
        return self.readinto(view) if len(self._kept[-1][1]) else 0


def buffered(storage: Storage, key: str) -> io.BufferedReader:
    """An object as a file: small reads come from blocks, large ones go to the reader's memory."""
    return io.BufferedReader(_Blocks(storage, key))

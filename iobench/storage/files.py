"""An object of any storage as a Python file, for libraries that read files, and in large pieces.

``Window`` reads aligned pieces into one buffer, which is used again. ``Pages`` is for parsers whose
metadata is scattered over the file.
"""

from __future__ import annotations

import io
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ..base.buffers import private
from ..base.errors import DatasetError, ShortObjectError, StorageError
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


WINDOW_BYTES = 8 << 20
_FRAMING = 1 << 16  # bytes of a format's headers around the largest sample


class ReadWindow:
    """Not thread-safe. ``largest``: the longest range that will be asked for at once, in bytes.

    The buffer grows only when a longer range is read and the object is that long: ``largest`` may
    come from a file that nobody has verified.
    """

    def __init__(self, storage: Storage, largest: int, *, nbytes: int = WINDOW_BYTES) -> None:
        self.storage = storage
        self.alignment = storage.alignment
        self._largest = max(nbytes, largest + _FRAMING)
        self._buffer = self._room(nbytes)
        self._key = ""
        self._start = self._end = self._size = 0
        self.bytes_read = 0

    def open(self, key: str) -> int:
        """Move the window to another object; its size in bytes."""
        self._key = key
        self._start = self._end = 0
        self._size = self.storage.size(key)
        return int(self._size)

    def read(self, start: int, end: int) -> Buffer:
        """Bytes [start, end) of the object, valid until the next call.

        Raises ShortObjectError, StorageError, and DatasetError for more than ``largest`` bytes.
        """
        if end - start > self._largest:
            raise DatasetError(
                f"{self._key}: {end - start} bytes to read at once, more than {self._largest}"
            )
        if not (self._start <= start and end <= self._end):
            self._check_end(end)
            if end - start > len(self._buffer) - 2 * self.alignment:
                self._buffer = self._room(end - start)
            self._start = start - start % self.alignment
            # At the end of an object at most the rounding is read past it.
            want = min(
                len(self._buffer), -(-(self._size - self._start) // self.alignment) * self.alignment
            )
            got = self.storage.read_into(self._key, self._start, self._buffer[:want])
            self._end = self._start + got
            self.bytes_read += got
            if self._end < end:
                raise ShortObjectError(f"{self._key} became shorter while it was read")
        return self._buffer[start - self._start : end - self._start]

    def _check_end(self, end: int) -> None:
        if end > self._size:
            raise ShortObjectError(
                f"{self._key} ends at byte {self._size}, but {end} bytes were expected"
            )

    def _room(self, nbytes: int) -> Buffer:
        """Memory for ``nbytes``, and for rounding at both ends."""
        capacity = nbytes + 2 * self.alignment
        return private(capacity + -capacity % self.alignment).array.data

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return int(self._size)

    def bytes(self, start: int, end: int) -> bytes:
        """A copy of bytes [start, end), of any length. Raises ShortObjectError, StorageError."""
        fits = end - start <= self._largest
        return bytes(self.read(start, end) if fits else self.apart(start, end))

    def apart(self, start: int, end: int) -> Buffer:
        """Bytes [start, end) in newly allocated memory, of any length."""
        self._check_end(end)
        begin = start - start % self.alignment
        length = -(-(end - begin) // self.alignment) * self.alignment
        memory = private(length, prefault=False).array.data[:length]
        got = self.storage.read_into(self._key, begin, memory)
        self.bytes_read += got
        if begin + got < end:
            raise ShortObjectError(f"{self._key} became shorter while it was read")
        return memory[start - begin : end - begin]


class ByteSource(Protocol):
    """The bytes of one object, wherever they come from."""

    def apart(self, start: int, end: int) -> Buffer:
        """Bytes [start, end) in memory of their own, of any length."""


_PAGE = 16 << 10
_PAGES = 1024


class Pages(Seekable):
    """Caches pages of the object. Not thread-safe.

    ``failure``: the last error of the storage.
    """

    def __init__(self, source: ByteSource, size: int) -> None:
        super().__init__(size)
        # Kept to be raised again, because a library may replace it by an error of its own.
        self.failure: StorageError | None = None
        self._source = source
        self._pages: OrderedDict[int, bytes] = OrderedDict()

    def between(self, begin: int, end: int) -> bytes:
        """Bytes from ``begin`` to ``end``. Raises ValueError for a range outside the file."""
        if not 0 <= begin <= end <= self.size:
            raise ValueError(f"something would lie at bytes {begin} to {end} of {self.size}")
        self.seek(begin)
        return self.read(end - begin) or b""

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        begin = self.position
        end = min(begin + len(target), self.size)
        done = 0
        while begin + done < end:
            page, skip = divmod(begin + done, _PAGE)
            data = self._page(page, -(-end // _PAGE))[skip : end - page * _PAGE]
            target[done : done + len(data)] = data
            done += len(data)
        self.position = begin + done
        return done

    def _page(self, number: int, before: int) -> bytes:
        """Return one page; read the missing pages up to ``before`` with it, in one request."""
        if number not in self._pages:
            last = number + 1
            while last < min(before, number + _PAGES // 2) and last not in self._pages:
                last += 1
            begin, end = number * _PAGE, min(last * _PAGE, self.size)
            try:
                data = bytes(self._source.apart(begin, end))
            except StorageError as error:
                self.failure = error
                raise OSError(str(error)) from None
            for place in range(number, last):
                self._pages[place] = data[(place - number) * _PAGE : (place - number + 1) * _PAGE]
            while len(self._pages) > _PAGES:
                self._pages.popitem(last=False)
        self._pages.move_to_end(number)
        return self._pages[number]

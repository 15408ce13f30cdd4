"""A moving window on one object at a time, read in large aligned pieces into a reused buffer."""

from __future__ import annotations

from ..buffers import private
from ..errors import DatasetError, ShortObjectError
from .base import Buffer, Storage

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

"""An object of any storage as a Python file, for libraries that read files."""

from __future__ import annotations

import io
from typing import Any

from .base import Buffer, Storage


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

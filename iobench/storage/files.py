"""An object of any storage as a Python file, for libraries that read files."""

from __future__ import annotations

import io
from typing import Any

from .base import Buffer, Storage


class StorageFile(io.RawIOBase):
    """An object that can be read from any place; ``size`` (bytes) where it is known, else the storage is asked."""

    def __init__(self, storage: Storage, key: str, size: int | None = None) -> None:
        self._storage = storage
        self._key = key
        self._size = storage.size(key) if size is None else size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view: Buffer = memoryview(buffer).cast("B")
        count = min(len(view), max(0, self._size - self._position))
        if count:
            count = self._storage.read_into(self._key, self._position, view[:count])
        self._position += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def tell(self) -> int:
        return self._position

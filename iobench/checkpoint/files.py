"""Objects of a storage as the Python files that libraries write to and read from."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..storage.base import Sink, Storage
from ..storage.files import StorageFile

_SMALL = 1 << 20
"""Bytes: what a library asks for byte by byte (headers, directories) comes in pieces of this size."""


@contextmanager
def file_over(sink: Sink) -> Iterator[SinkFile]:
    """A sink as a file. What the sink refused is what is raised, whatever the library made of it."""
    file = SinkFile(sink)
    try:
        yield file
    except Exception:
        if file.refused is not None:
            raise file.refused from None
        raise


class SinkFile(io.RawIOBase):
    """A file that is written front to back, straight into a sink. Data is not kept after ``write``."""

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


def buffered(storage: Storage, key: str) -> io.BufferedReader:
    """An object to be read: small reads are served from memory; large ones go straight into the reader's own."""
    return io.BufferedReader(StorageFile(storage, key), buffer_size=_SMALL)

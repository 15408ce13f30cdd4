"""Objects of a storage as Python files, for libraries that write and read files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..storage.base import Sink, Storage
from ..storage.files import StorageFile

_SMALL = 1 << 20
"""Bytes. Small reads (headers, directories) are served from a buffer of this size."""


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


def buffered(storage: Storage, key: str) -> io.BufferedReader:
    """An object as a file: small reads come from a buffer, large ones go to the reader's memory."""
    return io.BufferedReader(StorageFile(storage, key), buffer_size=_SMALL)

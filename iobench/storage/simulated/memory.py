"""Objects in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np

from ...base.errors import MissingObjectError, StorageError
from ..base import (
    Buffer,
    Entry,
    Sink,
    StorageTraits,
    check_key,
    check_prefix,
)


class MemoryStorage:
    """Objects in this process's memory, which forked workers share. They can't be written."""

    alignment = 1
    traits = StorageTraits()
    OPTIONS: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        url: str = "memory://",
        *,
        direct: bool = False,
        objects: Mapping[str, Buffer] | None = None,
    ) -> None:
        self.url = url
        self._objects = {check_key(key): data for key, data in (objects or {}).items()}

    def list(self, prefix: str = "") -> Iterator[Entry]:
        folder = check_prefix(prefix)
        return (
            Entry(key, len(data))
            for key, data in self._objects.items()
            if not folder or key.startswith(f"{folder}/")
        )

    def size(self, key: str) -> int:
        return len(self._object(key))

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        source = self._object(key)[offset : offset + len(buffer)]
        # numpy releases the GIL while it copies; a memoryview assignment does not.
        np.copyto(
            np.frombuffer(buffer, dtype=np.uint8)[: len(source)],
            np.frombuffer(source, dtype=np.uint8),
        )
        return len(source)

    def facts(self) -> dict[str, Any]:
        return {"scheme": "memory", "url": self.url}

    def create(
        self, key: str, *, size_hint: int = 0, durable: bool = True
    ) -> AbstractContextManager[Sink]:
        check_key(key)
        raise StorageError(f"cannot create {key}: memory storage is read-only")

    def flush(self) -> None:
        return

    def delete(self, key: str) -> None:
        check_key(key)
        raise StorageError(f"cannot delete {key}: memory storage is read-only")

    def close(self) -> None:
        return

    def __getstate__(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "_objects": {key: bytes(data) for key, data in self._objects.items()},
        }

    def _object(self, key: str) -> Buffer:
        try:
            return self._objects[key]
        except KeyError:
            check_key(key)
            raise MissingObjectError(f"cannot read {key}: it is not in memory") from None

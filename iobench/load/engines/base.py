"""What all read engines have in common: extents, their readings, and what a reader calls.

An engine reads byte ranges of objects into given memory, several at the same time. One engine
serves every format: ``threads`` every storage, ``uring`` local files, and ``event_loop`` S3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base import buffers
from ...base.buffers import Buffer
from ...base.errors import StorageError
from ...storage.base import OpensFiles, Storage, innermost

Then = Callable[[int], None]


class Extent(NamedTuple):
    """``length`` bytes of object ``key`` from ``offset``, to be read to ``landing`` in memory.

    The object must have at least ``needed`` of these bytes. ``whole`` is False for a block of a
    longer extent.
    """

    key: str
    offset: int
    length: int
    landing: int
    needed: int
    whole: bool = True


class Columns(NamedTuple):
    """The same extents as arrays.

    ``keys``: the objects. ``key``: for each extent, the number of its object among them. ``whole``:
    which of them are no blocks of longer extents; None: all.
    """

    keys: list[str]
    key: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    landing: npt.NDArray[np.int64]
    needed: npt.NDArray[np.int64]
    whole: npt.NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, extents: Sequence[Extent]) -> Columns:
        keys: dict[str, int] = {}
        key = [keys.setdefault(extent.key, len(keys)) for extent in extents]
        numbers = np.array([extent[1:5] for extent in extents], np.int64).reshape(-1, 4)
        return cls(list(keys), np.array(key, np.int64), *numbers.T)

    def extents(self) -> list[Extent]:
        keys = map(self.keys.__getitem__, self.key.tolist())
        numbers = (self.offset, self.length, self.landing, self.needed)
        whole = repeat(True) if self.whole is None else self.whole.tolist()
        return list(map(Extent, keys, *(column.tolist() for column in numbers), whole))

    def blocks(self, size: int) -> Columns:
        """Return the extents in pieces of at most ``size`` bytes: one for each request."""
        if not len(self.length) or int(self.length.max()) <= size:
            return self
        pieces = np.maximum(1, -(-self.length // size))
        extent = np.repeat(np.arange(len(pieces)), pieces)
        start = (np.arange(len(extent)) - (np.cumsum(pieces) - pieces)[extent]) * size
        length = np.minimum(size, self.length[extent] - start)
        return Columns(
            self.keys,
            self.key[extent],
            self.offset[extent] + start,
            length,
            self.landing[extent] + start,
            np.clip(self.needed[extent] - start, 0, length),
            (pieces == 1)[extent],
        )


Extents = Sequence[Extent] | Columns
"""What is to be read, in either form."""


def ends_early(key: str, end: int, expected: int) -> StorageError:
    return StorageError(
        f"{key} ends at byte {end}, but {expected} bytes were expected",
        remedy="check the dataset: iobench verify",
    )


class Reading:
    """The requests of one batch, which were issued together.

    ``memory`` is kept alive until all of them have ended.
    """

    def __init__(self, memory: Buffer | None, then: Then | None) -> None:
        self.memory = memory
        self.then = then
        self.total = 0
        self.failure: BaseException | None = None

    def result(self) -> int:
        """The bytes that were read, when all requests have ended. Raises the first failure."""
        if self.failure is not None:
            raise self.failure
        return self.total


class ReadEngine(ABC):
    """Reads extents with up to ``concurrency`` requests of at most ``block_size`` bytes in flight.

    Use one engine per process. ``once`` means that each object is read by one extent only (one
    sample per file), so that it is not worth keeping it open.
    """

    def __init__(
        self, storage: Storage, *, concurrency: int, block_size: int, once: bool = False
    ) -> None:
        self.storage = storage
        self.once = once
        self.concurrency = concurrency
        self.issued = 0
        """Reads and opens that were asked of the storage so far. Objects that stay open count
        as reads alone."""
        self._each = 2 if once and isinstance(innermost(storage), OpensFiles) else 1
        # A multiple of the alignment, so that every block of a long extent starts aligned.
        self.block_size = max(block_size // storage.alignment, 1) * storage.alignment
        self._blocks_free: deque[Buffer] = deque()

    def reserve(self) -> None:
        """Allocate and touch one block for each request in flight, for reads without ``memory``."""
        while len(self._blocks_free) < self.concurrency:
            self._blocks_free.append(buffers.private(self.block_size).array.data)

    def register(self, memory: Buffer) -> None:  # noqa: B027  (most engines prepare nothing)
        """Be told of memory that many reads will land in, so that an engine may prepare it.

        It must stay in place until the engine is closed, which keeps it alive.
        """

    def read(self, extents: Extents, memory: Buffer | None, then: Then | None = None) -> int:
        """Read the extents into ``memory`` and return the number of bytes that were read.

        If ``memory`` is None, the bytes are only counted: they are read into a few blocks that are
        reused, as fio does. ``then`` is called with the ``landing`` of each extent that was read in
        one piece, by the thread that read it, while the bytes are in the CPU's cache. An exception
        in it ends the read. Raises StorageError if a read fails or an object is too short.
        """
        return self.wait(self.begin(extents, memory, then))

    @abstractmethod
    def begin(self, extents: Extents, memory: Buffer | None, then: Then | None = None) -> Reading:
        """Issue the requests for these extents, behind those of readings that were begun before.

        Only one thread may call it. The memory must not be used before ``wait`` or ``settle`` has
        returned.
        """

    @abstractmethod
    def wait(self, reading: Any) -> int:
        """Wait for a reading, and return the number of bytes that were read.

        Raises its first error when none of its requests is in flight any more. An interrupt gives
        up all readings, as ``settle`` does.
        """

    @abstractmethod
    def settle(self) -> None:
        """Leave out all requests that were not begun, and wait for those in flight.

        None writes to any memory after the return. After an interrupt it can be called again.
        """

    def requests_of(self, extents: Extents) -> Columns:
        """As ``blocks``, as arrays; all of them are issued now."""
        columns = extents if isinstance(extents, Columns) else Columns.of(extents)
        columns = columns.blocks(self.block_size)
        self.count(len(columns.length))
        return columns

    def count(self, requests: int) -> None:
        """So many requests are issued now."""
        self.issued += self._each * requests

    def blocks(self, extents: Extents) -> list[Extent]:
        """Return the extents in pieces of at most ``block_size`` bytes: one for each request."""
        if not isinstance(extents, Columns):
            if all(extent.length <= self.block_size for extent in extents):
                return list(extents)
            extents = Columns.of(extents)
        return extents.blocks(self.block_size).extents()

    @abstractmethod
    def close(self) -> None:
        """Give back what the engine holds."""

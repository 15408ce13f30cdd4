"""Where the chunks of a window lie: in files or objects of their own, or in slots of one file."""

from __future__ import annotations

import heapq
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from threading import Lock

import numpy as np

from ...base import buffers
from ...base.errors import MissingObjectError
from ...base.interrupts import defer_interrupts
from ...load.engines.base import Extent
from ...settings.kv_cache import KvScenario
from ...storage.base import Storage, delete, exists
from ...storage.local.storage import ALIGNMENT, LocalStorage

_CONTENT = 4 << 20
"""Random bytes beyond those of a piece: more than file systems compress together."""


class _Content:
    """What pieces consist of: random bytes, of which no two pieces have a block in common.

    So neither compressing nor storing equal blocks once helps. Each of the ``writers`` has memory
    of its own, since a piece gets its number at the begin of each block.
    """

    def __init__(self, piece_bytes: int, writers: int) -> None:
        self._room = -(-piece_bytes // ALIGNMENT) * ALIGNMENT
        drawn = np.frombuffer(os.urandom(self._room + _CONTENT), np.uint8)
        self._free = deque(buffers.private(len(drawn)).array for _ in range(writers))
        for memory in self._free:
            memory[:] = drawn
        self._numbers = count()  # next() is atomic

    @contextmanager
    def piece(self) -> Iterator[memoryview]:
        """A piece, rounded up to whole blocks. It begins elsewhere than the one before it."""
        number, memory = next(self._numbers), self._free.pop()
        step, blocks = self._room // ALIGNMENT + 1, _CONTENT // ALIGNMENT
        piece = memory[ALIGNMENT * (number * step % blocks) :][: self._room]
        piece.view(np.int64)[:: ALIGNMENT // 8] = number
        try:
            yield piece.data
        finally:
            self._free.append(memory)


class ChunkLayout(ABC):
    """The chunks of one window. Any thread may call it."""

    def __init__(
        self, spec: KvScenario, storage: Storage, window: int, held: Callable[[], None]
    ) -> None:
        """``held`` is called before each deletion: it raises where the place is another's now."""
        self.spec, self.storage, self.held = spec, storage, held
        self.window = f"window-{window:05d}"
        self._content = _Content(spec.piece_bytes, spec.writers)

    @abstractmethod
    def reserve(self, chunks: int) -> None:
        """Make room for so many chunks at a time. Raises StorageError."""

    @abstractmethod
    def put(self, chunk: int) -> None:
        """Write a chunk. Raises StorageError."""

    @abstractmethod
    def extents(self, chunk: int) -> list[Extent]:
        """What is read to load a chunk."""

    @abstractmethod
    def delete(self, chunk: int) -> None: ...

    @abstractmethod
    def keys(self, chunks: Iterable[int]) -> list[str]:
        """The objects in which these chunks lie."""

    @abstractmethod
    def remove(self) -> None:
        """Delete all that is left."""

    def name(self, chunk: int) -> str:
        """What a message calls a chunk."""
        return f"{self.window}-{chunk:09d}"


class ChunkFiles(ChunkLayout):
    """Each piece of a chunk is a file or an object of its own."""

    def __init__(
        self, spec: KvScenario, storage: Storage, window: int, held: Callable[[], None]
    ) -> None:
        super().__init__(spec, storage, window, held)
        self._there: set[int] = set()
        self._lock = Lock()

    def reserve(self, chunks: int) -> None:
        return

    def _pieces(self, chunk: int) -> list[str]:
        return [f"{self.name(chunk)}-{piece:04d}.kv" for piece in range(self.spec.pieces)]

    def put(self, chunk: int) -> None:
        size = self.spec.piece_bytes
        with self._lock:
            self._there.add(chunk)
        for key in self._pieces(chunk):
            with (
                self._content.piece() as piece,
                self.storage.create(key, size_hint=size, durable=self.spec.durable) as sink,
            ):
                sink.write(piece[:size])

    def extents(self, chunk: int) -> list[Extent]:
        size, step = self.spec.piece_bytes, self.storage.alignment
        length = -(-size // step) * step
        return [Extent(key, 0, length, 0, size) for key in self._pieces(chunk)]

    def look_up(self, chunks: Sequence[int], missing: int | None) -> None:
        """Look for these chunks, and for one that is not there."""
        for chunk in chunks:
            self.storage.size(self._pieces(chunk)[0])
        if missing is not None:
            exists(self.storage, self._pieces(missing)[0])

    def delete(self, chunk: int) -> None:
        for key in self._pieces(chunk):
            delete(self.storage, key, self.held)
        with self._lock:
            self._there.discard(chunk)

    def keys(self, chunks: Iterable[int]) -> list[str]:
        return [key for chunk in chunks for key in self._pieces(chunk)]

    def remove(self) -> None:
        with ThreadPoolExecutor(self.spec.writers) as pool:
            for _ in pool.map(self._remove, sorted(self._there)):
                pass

    def _remove(self, chunk: int) -> None:
        for key in self._pieces(chunk):
            with suppress(MissingObjectError):
                delete(self.storage, key, self.held)


class ChunkExtents(ChunkLayout):
    """All chunks lie in one file, which is allocated before, each in a slot of its own.

    A slot is aligned as direct IO demands it. A chunk that is deleted gives back its slot.
    """

    storage: LocalStorage

    def __init__(
        self, spec: KvScenario, storage: LocalStorage, window: int, held: Callable[[], None]
    ) -> None:
        super().__init__(spec, storage, window, held)
        self.key = f"{self.window}.extents"
        self._room = -(-spec.piece_bytes // ALIGNMENT) * ALIGNMENT
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._most = 0
        self._lock = Lock()
        self._fd = -1

    def reserve(self, chunks: int) -> None:
        size = max(1, chunks) * self.spec.pieces * self._room
        flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        flags |= os.O_DIRECT if self.storage.direct else 0
        flags |= os.O_DSYNC if self.spec.durable else 0
        with self.storage.create_parallel(
            self.key, size=size, block_size=self._room, durable=self.spec.durable
        ):
            pass
        try:
            with defer_interrupts():
                self._fd = os.open(self.storage.root / self.key, flags)
        except OSError as error:
            raise self.storage.failed("open", self.key, error) from error

    def put(self, chunk: int) -> None:
        with self._lock:
            if self._free:
                slot = heapq.heappop(self._free)
            else:
                slot, self._most = self._most, self._most + 1
            self._slots[chunk] = slot
        for extent in self.extents(chunk):
            with self._content.piece() as piece:
                self._write(extent.offset, piece)

    def _write(self, offset: int, data: memoryview) -> None:
        try:
            while data:
                count = os.pwrite(self._fd, data, offset)
                offset, data = offset + count, data[count:]
        except OSError as error:
            raise self.storage.failed("write", self.key, error) from error

    def extents(self, chunk: int) -> list[Extent]:
        room, pieces = self._room, self.spec.pieces
        first = self._slots[chunk] * pieces
        return [
            Extent(self.key, (first + piece) * room, room, 0, self.spec.piece_bytes)
            for piece in range(pieces)
        ]

    def delete(self, chunk: int) -> None:
        with self._lock:
            heapq.heappush(self._free, self._slots.pop(chunk))

    def keys(self, chunks: Iterable[int]) -> list[str]:
        return [self.key]

    def remove(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with suppress(MissingObjectError):
            delete(self.storage, self.key, self.held)


def layout_of(
    spec: KvScenario, storage: Storage, window: int, held: Callable[[], None]
) -> ChunkFiles | ChunkExtents:
    """Where the chunks of a window lie: extents, in a file of a local or mounted file system."""
    if spec.layout == "files":
        return ChunkFiles(spec, storage, window, held)
    assert isinstance(storage, LocalStorage)
    return ChunkExtents(spec, storage, window, held)

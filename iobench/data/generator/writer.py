"""Write one unit of work: consecutive shards, hashed and made durable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from types import TracebackType
from typing import Self

import numpy as np
import xxhash

from ...base.buffers import Buffer, private
from ...base.errors import StorageError, TargetLostError
from ...record.manifest import Array
from ...settings.dataset import DatasetSpec, in_columns
from ...storage.base import Sink, Storage, delete
from ..dataset import ResolvedSpec
from ..formats.base import Assembled, Framed
from .plan import ShardPlan

SMALL_BYTES = 8 << 20
"""Shards of at least this size are made durable one by one; one flush serves all smaller shards of
a unit.
"""

IN_FLIGHT = 16
"""So many of these smaller shards are written or verified at once where the storage is no local
disk: the round trips of one after the other would take far longer than their bytes.
"""


@dataclass(frozen=True, slots=True)
class UnitResult:
    """The manifest's rows for one unit (sizes and shard numbers are in the plan)."""

    unit: int
    offset: Array  # int64 [samples of the unit]
    stored: Array  # int64 [samples]
    xxh3: Array  # uint64 [samples]
    shard_size: Array  # int64 [shards of the unit]
    shard_xxh3: Array  # uint64 [shards]


class UnitWriter:
    """Writes units of one plan.

    It reuses one scratch buffer, because allocating fresh memory costs more than filling it.
    """

    def __init__(
        self,
        spec: DatasetSpec,
        plan: ShardPlan,
        storage: Storage,
        held: Callable[[], None] = lambda: None,
    ) -> None:
        """``held`` is called before a shard gets its name, and before one is removed.

        It raises where the place is another process's now.
        """
        self.spec = spec
        self.held = held
        self.plan = plan
        self.storage = storage
        dataset = ResolvedSpec.of(spec)
        self.format = dataset.format
        self.codec = dataset.codec
        self.suffix = dataset.suffix
        self._keys = dataset.keys
        content = dataset.content
        self._build = content.build_for_columns if in_columns(spec) else content.build
        self._scratch = private(int(plan.sizes.max())).array.data

    def write(self, unit: int) -> UnitResult:
        """Write all shards of a unit; they are durable when this returns.

        After an error, the unit's shards are removed, unless the place is another's now.
        """
        shards = range(int(self.plan.units[unit]), int(self.plan.units[unit + 1]))
        first, last = int(self.plan.first[shards.start]), int(self.plan.first[shards.stop])
        rows = UnitResult(
            unit,
            np.empty(last - first, np.int64),
            np.empty(last - first, np.int64),
            np.empty(last - first, np.uint64),
            np.empty(len(shards), np.int64),
            np.empty(len(shards), np.uint64),
        )
        written: list[str] = []
        flush = False
        try:
            with _Stores(self._store, written) as several:
                for shard in shards:
                    key = self._keys(shard)
                    durable = self._nominal(shard) >= SMALL_BYTES
                    flush |= not durable
                    if not durable and not self.storage.traits.page_cache:
                        whole = _SmallShard()
                        self._make_shard(whole, shard, rows, first)
                        several.store(key, whole.data)
                        continue
                    self.held()
                    hint = self._hint(shard)
                    with self.storage.create(key, size_hint=hint, durable=durable) as sink:
                        self._make_shard(sink, shard, rows, first)
                        self.held()
                    written.append(key)
            if flush:
                self.storage.flush()
        except BaseException as error:
            for key in written:
                try:
                    delete(self.storage, key, self.held)
                except TargetLostError as lost:  # what lies there may be the other process's
                    if isinstance(error, Exception):
                        raise lost from None
                    break
                except StorageError:
                    pass  # raise the first error; a resumed run removes the rest
            raise
        return rows

    def _nominal(self, shard: int) -> int:
        """Bytes of a shard's samples before the codec."""
        return int(self.plan.sizes[self.plan.first[shard] : self.plan.first[shard + 1]].sum())

    def _store(self, key: str, data: bytearray) -> None:
        self.held()
        with self.storage.create(key, size_hint=len(data), durable=False) as sink:
            sink.write(memoryview(data))
            self.held()

    def _make_shard(self, sink: Sink, shard: int, rows: UnitResult, origin: int) -> None:
        first, last = int(self.plan.first[shard]), int(self.plan.first[shard + 1])
        mine = slice(first - origin, last - origin)
        counted = _CountingSink(sink)
        contents = self._contents(first, last, rows.xxh3[mine])
        if isinstance(self.format, Assembled):
            sizes = self.plan.sizes[first:last]
            rows.offset[mine], rows.stored[mine] = self.format.assemble(
                contents, sizes, counted.write, spec=self.spec, codec=self.codec
            )
        elif isinstance(self.format, Framed):
            self._frame(self.format, first, contents, counted, rows.offset[mine], rows.stored[mine])
        row = shard - int(self.plan.units[rows.unit])
        rows.shard_size[row] = counted.position
        rows.shard_xxh3[row] = counted.digest.intdigest()

    def _contents(self, first: int, last: int, xxh3: Array) -> Iterator[Buffer]:
        """Yield the samples' contents, each in the same memory, and fill in their checksums."""
        for row, index in enumerate(range(first, last)):
            content = self._scratch[: int(self.plan.sizes[index])]
            self._build(
                content, seed=self.spec.seed, index=index, compress_ratio=self.spec.compress_ratio
            )
            xxh3[row] = xxhash.xxh3_64_intdigest(content)
            yield content

    def _frame(
        self,
        form: Framed,
        first: int,
        contents: Iterator[Buffer],
        sink: _CountingSink,
        offset: Array,
        length: Array,
    ) -> None:
        """Write sample after sample, each within its frame, to the sink as they come."""
        for row, content in enumerate(contents):
            stored = memoryview(self.codec.compress(content))
            frame = form.frame(first + row, self.suffix, stored)
            offset[row] = sink.position + len(frame.head)
            length[row] = len(stored)
            for part in (frame.head, stored, frame.tail):
                sink.write(part)
        sink.write(form.finish(sink.position))

    def _hint(self, shard: int) -> int:
        """Roughly the size of the shard: with framing, less what the codec is expected to save."""
        size = self._nominal(shard)
        if not self.codec.plain and self.spec.compress_ratio > 1:
            return int(size / self.spec.compress_ratio)
        return size + self.format.framing_bytes * int(
            self.plan.first[shard + 1] - self.plan.first[shard]
        )


class _SmallShard:
    """A sink that keeps a small shard."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes | Buffer) -> None:
        self.data += data


class _Stores:
    """Stores several objects at once, and at its end has stored all of them, or raises.

    ``written`` gets the keys of those that are stored, also after an error.
    """

    def __init__(self, store: Callable[[str, bytearray], None], written: list[str]) -> None:
        self._store, self._written = store, written
        self._pool = ThreadPoolExecutor(IN_FLIGHT)
        self._begun: list[Future[None]] = []
        self._failed = Event()

    def store(self, key: str, data: bytearray) -> None:
        """Raises what an earlier one has raised."""
        if self._failed.is_set():
            self._raise()
        self._begun.append(self._pool.submit(self._one, key, data))

    def _one(self, key: str, data: bytearray) -> None:
        if self._failed.is_set():
            return
        try:
            self._store(key, data)
        except BaseException:
            self._failed.set()
            raise
        self._written.append(key)

    def _raise(self) -> None:
        for each in self._begun:
            if each.done():
                each.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._failed.set()
        self._pool.shutdown()
        if kind is None:
            self._raise()


class _CountingSink:
    """A sink that counts the bytes written to it, and computes their checksum."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.position = 0
        self.digest = xxhash.xxh3_64()

    def write(self, data: bytes | Buffer) -> None:
        if len(data):
            self.digest.update(data)
            self._sink.write(data)
            self.position += len(data)

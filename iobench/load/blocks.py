"""Samples of formats that are read a block at a time (Parquet's row groups), with the interface of ``BatchReader``.

As every Parquet reader does: a shard's footer once in each process, then of each row group the column chunks that are asked for, decoded
from memory. The last row group is kept, so a walk reads each group once; a sample drawn at random costs a whole group, which shows as
read amplification. Within a batch each group is read once. Going back in the kept group reads it again: an epoch's bytes are read in it.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..errors import UsageError
from ..formats.base import BlockRows, Blocks, BlockShard
from ..schema.manifest import Manifest
from ..schema.workload import ReaderSpec
from ..storage.base import Storage
from .delivered import Delivered, Stats, too_small
from .engine import Extent
from .reader import _GROUP, BatchReader
from .requests import Indices

_FOOTERS = 256 << 20
"""Bytes of footers that are kept, as stored."""

_TAIL = 64 << 10
"""Bytes that are read first of a foreign file's end: most footers are shorter, and any other column may lie before them."""

_ROW_BY_ROW = 16 << 10
"""Rows at least this long are copied one by one: gathering many in one call would copy them twice."""


@dataclass(slots=True)
class _Wanted:
    """A row group of which a batch wants some rows. ``where``: their places in the batch; ``begin``, ``end``: where it lies."""

    shard: int
    group: int
    rows: Indices
    where: Indices
    begin: int
    end: int


class _Kept(NamedTuple):
    """The last row group, up to which row it was delivered, and its rows (None: bytes only)."""

    shard: int
    group: int
    row: int
    rows: BlockRows | None

    def has(self, wanted: _Wanted) -> bool:
        return (self.shard, self.group) == (wanted.shard, wanted.group) and int(
            wanted.rows.min()
        ) > self.row


class _Opened(NamedTuple):
    """A shard: its footer, the first row of each group (and the end), and its first sample."""

    footer: BlockShard
    bounds: Indices
    first: int


class BlockReader(BatchReader):
    """Reads batches by whole blocks. Like any BatchReader: one per worker, and nothing is read until the first batch."""

    def __init__(
        self, manifest: Manifest, storage: Storage, spec: ReaderSpec, *, bytes_only: bool = False
    ) -> None:
        super().__init__(manifest, storage, spec, bytes_only=bytes_only)
        form = self._format
        assert isinstance(form, Blocks)
        self._blocks = form
        self._codec = None  # the format's own business
        self._pages, self._framed = spec.check == "format" and form.has_checksums, None
        self.in_place = self._nowhere = False
        self._raw = not (self.spec.decode and not self._content.plain)
        self._take = self._check_columns(spec.columns, manifest.spec.columns or 1)
        if self._take is not None:
            self._columns["size"] = form.prefix(
                manifest.samples["size"], columns=self._take, of=manifest.spec.columns or 1
            )
        self._shards: OrderedDict[int, _Opened] = OrderedDict()
        self._kept: _Kept | None = None

    def _check_columns(self, columns: int | None, have: int) -> int | None:
        if columns is None or columns == have:
            return None
        if columns > have:
            raise UsageError(
                f"reader.columns is {columns}, the samples have {have} column{'' if have == 1 else 's'}",
                remedy=f"use {have} at most",
            )
        if self.spec.check == "content":
            raise UsageError(
                "reader.check=content needs all columns of a sample",
                remedy="use reader.check=format",
            )
        if not self._raw:
            raise UsageError(
                f"some columns of a sample make no {self._content.name} that can be decoded",
                remedy="use --set reader.decode=false",
            )
        return columns

    def read(self, indices: Indices, output: memoryview | None) -> Delivered:
        """As in BatchReader. A damaged footer or block is a CorruptSampleError that names the first sample behind it."""
        begun = time.monotonic_ns()
        before = self._retried()
        if self._cpu_before is None:
            self._cpu_before = time.process_time_ns()
        offsets, lengths = np.zeros(len(indices), np.int64), np.zeros(len(indices), np.int64)
        if self._raw:
            lengths[:] = self._columns["size"][indices]
            if self.spec.crop is not None:
                np.minimum(lengths, self.spec.crop, out=lengths)
            offsets[:] = np.cumsum(lengths) - lengths
            if output is not None and len(lengths) and offsets[-1] + lengths[-1] > len(output):
                raise too_small(int(offsets[-1] + lengths[-1]), len(output))
        shards, read_bytes, read_ns = self._open(indices)
        stored, used, kept = 0.0, 0, self._kept
        for part in self._parts(self._wanted(indices, shards)):
            memory, places, count, spent = self._fetch_blocks(part, kept)
            read_bytes, read_ns = read_bytes + count, read_ns + spent
            for wanted, place in zip(part, places, strict=True):
                shard = shards[wanted.shard]
                stored += self._share(wanted, shard, indices)
                rows = None
                if place is None and kept is not None:
                    rows = kept.rows
                elif place is not None and memory is not None:
                    rows = self._decode(wanted, shard, place, memory)
                self._kept = _Kept(wanted.shard, wanted.group, int(wanted.rows.max()), rows)
                if rows is not None:
                    used = self._hand_over(rows, wanted, indices, output, used, offsets, lengths)
        after = self._retried()
        stats = Stats(
            samples=len(indices),
            bytes_read=read_bytes,
            sample_bytes=int(stored),
            started_ns=begun,
            read_ns=read_ns,
            prep_ns=time.monotonic_ns() - begun - read_ns,
            cpu_ns=time.process_time_ns() - self._cpu_before,
            process=os.getpid(),
            retries=after.retries - before.retries,
            throttled=after.throttled - before.throttled,
        )
        return Delivered(offsets, lengths, stats)

    # Footers

    def _open(self, indices: Indices) -> tuple[dict[int, _Opened], int, int]:
        """The opened shards of these samples, bytes read for it, and nanoseconds. All footers that are missing are read at once."""
        numbers, firsts = np.unique(self._columns["shard"][indices], return_index=True)
        samples_of = dict(zip(numbers.tolist(), indices[firsts].tolist(), strict=True))
        tails = {shard: self._tail(shard) for shard in samples_of if shard not in self._shards}
        count = spent = 0
        while tails:
            extents, landing = [], 0
            for shard, (length, _, size) in tails.items():
                extents.append(self._extent(shard, size - length, size, landing))
                landing += extents[-1].length
            memory = self._memory("footers", landing)
            clock = time.monotonic_ns()
            count += self._engine.read(extents, memory)
            spent += time.monotonic_ns() - clock
            longer = {}
            for extent, (shard, (length, most, size)) in zip(extents, tails.items(), strict=True):
                at = extent.landing + size - length - extent.offset
                tail = memory[at : at + length]
                need = self._guard(samples_of[shard], self._blocks.footer_bytes, tail, size)
                if length < need <= most:
                    longer[shard] = (need, most, size)
                else:
                    self._shards[shard] = self._opened(shard, bytes(tail), size, samples_of[shard])
            tails = longer
        found: dict[int, _Opened] = {}
        for shard in numbers.tolist():
            self._shards.move_to_end(shard)
            found[shard] = self._shards[shard]
        while (
            len(self._shards) > len(found)
            and sum(opened.footer.nbytes for opened in self._shards.values()) > _FOOTERS
        ):
            self._shards.popitem(last=False)
        return found, count, spent

    def _tail(self, shard: int) -> tuple[int, int, int]:
        """Bytes of a shard's end to read for its footer, how many may be read for it at most, and the shard's size."""
        first, samples, size = (
            int(self.manifest.shards[name][shard]) for name in ("first", "samples", "size")
        )
        mine = slice(first, first + samples)
        most = size - int((self._columns["offset"][mine] + self._columns["stored"][mine]).max())
        return (min(_TAIL, most) if self.manifest.header.origin else most), most, size

    def _opened(self, shard: int, tail: bytes, size: int, index: int) -> _Opened:
        opened = self._guard(index, self._blocks.open, memoryview(tail), size)
        first, samples = (
            int(self.manifest.shards["first"][shard]),
            int(self.manifest.shards["samples"][shard]),
        )
        changes = np.flatnonzero(np.diff(self._columns["offset"][first : first + samples])) + 1
        bounds = np.concatenate(([0], changes, [samples]))
        if opened.groups != len(bounds) - 1:
            raise self._corrupt(
                index,
                f"its footer tells of {opened.groups} row groups, the manifest of {len(bounds) - 1}",
            )
        return _Opened(opened, bounds, first)

    def _extent(self, shard: int, begin: int, end: int, landing: int) -> Extent:
        step = max(self.storage.alignment, 1)
        start = begin // step * step
        return Extent(self._key(shard), start, -(-end // step) * step - start, landing, end - start)

    # Blocks

    def _wanted(self, indices: Indices, shards: dict[int, _Opened]) -> list[_Wanted]:
        """The groups of a batch, in the order in which it first asks for them."""
        shard_of = self._columns["shard"][indices].astype(np.int64)
        rows = indices - self.manifest.shards["first"][shard_of]
        groups = np.empty(len(indices), np.int64)
        for shard, opened in shards.items():
            mine = shard_of == shard
            groups[mine] = np.searchsorted(opened.bounds, rows[mine], side="right") - 1
            rows[mine] -= opened.bounds[groups[mine]]
        _, first, member = np.unique(
            shard_of << 32 | groups, return_index=True, return_inverse=True
        )
        places = (
            np.split(np.argsort(member, kind="stable"), np.cumsum(np.bincount(member))[:-1])
            if len(indices)
            else []
        )
        found = []
        for number in np.argsort(first).tolist():
            where = places[number]
            shard, group = int(shard_of[where[0]]), int(groups[where[0]])
            found.append(
                _Wanted(shard, group, rows[where], where, *self._block(group, shards[shard]))
            )
        return found

    @staticmethod
    def _parts(wanted: list[_Wanted]) -> Iterator[list[_Wanted]]:
        """Groups to be read at once: as many as the scratch memory is meant for, one at least."""
        part: list[_Wanted] = []
        total = 0
        for one in wanted:
            size = one.end - one.begin
            if part and total + size > _GROUP:
                yield part
                part, total = [], 0
            part.append(one)
            total += size
        if part:
            yield part

    def _block(self, group: int, shard: _Opened) -> tuple[int, int]:
        """From where to where the row group lies, or those of its columns that are read: they lie in their order."""
        index = shard.first + int(shard.bounds[group])
        begin = int(self._columns["offset"][index])
        end = begin + int(self._columns["stored"][index])
        if self._take is None:
            return begin, end
        chunk = self._guard(index, shard.footer.chunk, group, self._take - 1)
        if not begin <= chunk[0] < chunk[1] <= end:
            raise self._corrupt(
                index, f"its footer tells of other columns than lie at bytes {begin} to {end}"
            )
        return begin, int(chunk[1])

    def _fetch_blocks(
        self, part: list[_Wanted], kept: _Kept | None
    ) -> tuple[memoryview | None, list[tuple[int, int, int] | None], int, int]:
        """(memory, for each group its (landing, offset, length) or None where it is kept, bytes read, nanoseconds)."""
        extents: list[Extent] = []
        places: list[tuple[int, int, int] | None] = []
        landing = 0
        for wanted in part:
            if kept is not None and kept.has(wanted):
                places.append(None)
                continue
            extent = self._extent(wanted.shard, wanted.begin, wanted.end, landing)
            extents.append(extent)
            places.append(
                (landing + wanted.begin - extent.offset, wanted.begin, wanted.end - wanted.begin)
            )
            landing += extent.length
        memory = None if self._bytes_only else self._memory("landing", landing)
        clock = time.monotonic_ns()
        count = self._engine.read(extents, memory) if extents else 0
        return memory, places, count, time.monotonic_ns() - clock

    def _decode(
        self, wanted: _Wanted, shard: _Opened, place: tuple[int, int, int], memory: memoryview
    ) -> BlockRows:
        at, offset, length = place
        first, end = (
            shard.first + int(bound) for bound in shard.bounds[wanted.group : wanted.group + 2]
        )
        count, most = end - first, int(self._columns["size"][first:end].sum())
        parts = [(offset, memory[at : at + length])]
        rows = self._guard(
            first,
            lambda: shard.footer.decode(
                wanted.group, self._take, parts, check=self._pages, most=most
            ),
        )
        if rows.count != count:
            raise self._corrupt(
                first, f"row group {wanted.group} has {rows.count} rows, not {count}"
            )
        return rows

    def _share(self, wanted: _Wanted, shard: _Opened, indices: Indices) -> float:
        """Stored bytes of the wanted rows: their share of what is read of the row group."""
        sizes = self._columns["size"][
            shard.first + shard.bounds[wanted.group] : shard.first + shard.bounds[wanted.group + 1]
        ]
        return float(
            (wanted.end - wanted.begin)
            * self._columns["size"][indices[wanted.where]].sum()
            / max(1, sizes.sum())
        )

    # Samples

    def _hand_over(
        self,
        rows: BlockRows,
        wanted: _Wanted,
        indices: Indices,
        output: memoryview | None,
        used: int,
        offsets: Indices,
        lengths: Indices,
    ) -> int:
        """The wanted rows into ``output``; where the next sample would go, if it is not laid down in ``offsets``."""
        mine = indices[wanted.where]
        wrong = np.flatnonzero(rows.sizes[wanted.rows] != self._columns["size"][mine])
        if len(wrong):
            row, index = int(wanted.rows[wrong[0]]), int(mine[wrong[0]])
            raise self._corrupt(
                index, f"{rows.sizes[row]} bytes, not {self._columns['size'][index]}"
            )
        if self._raw and self.spec.check != "content":
            if output is not None:
                self._copy(rows, wanted, output, offsets, lengths)
            return used
        for row, position, index in zip(
            wanted.rows.tolist(), wanted.where.tolist(), mine.tolist(), strict=True
        ):
            content = rows.content(row)
            self._check_content(index, content)
            if self._raw:
                used = int(offsets[position])
            else:
                offsets[position] = used
            lengths[position] = self._deliver(index, content, output, used)
            used += int(lengths[position])
        return used

    def _copy(
        self,
        rows: BlockRows,
        wanted: _Wanted,
        output: memoryview,
        offsets: Indices,
        lengths: Indices,
    ) -> None:
        target = np.frombuffer(output, np.uint8)
        length = int(lengths[0])
        if length < _ROW_BY_ROW and int(lengths.min()) == int(lengths.max()) and rows.even:
            rows.scatter(
                wanted.rows, target[: len(lengths) * length].reshape(-1, length), wanted.where
            )
            return
        for row, position in zip(wanted.rows.tolist(), wanted.where.tolist(), strict=True):
            start = int(offsets[position])
            rows.copy(row, target[start : start + int(lengths[position])])

"""A ``BatchReader`` for formats that are read one block at a time, such as Parquet's row groups.

It reads as every Parquet reader does: each shard's footer once per process, then the requested
column chunks of each row group, which are decoded from memory. Within a batch each row group is
read once. The last row group is kept, so that sequential access reads each group once. With random
access each sample may cost a whole group, which shows as read amplification. A request for a row
of the kept group at or before the last delivered one reads the group again, so that each epoch
reads its own bytes.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..base.errors import UsageError
from ..data.formats.base import BlockRows, Blocks, BlockShard
from ..record.manifest import Manifest
from ..settings.workload import ReaderSpec
from ..storage.base import Storage
from .engines.base import Extent
from .reader import _GROUP, BatchReader
from .requests import Extents, Indices, Stats, too_small

_FOOTERS = 256 << 20
"""Cached footers take at most this many bytes, as stored, except for those of one batch."""

_TAIL = 64 << 10
"""Bytes that are read first from the end of a file that iobench did not write.

Most footers are shorter. The space before a footer may hold columns that the manifest leaves out.
"""

_ROW_BY_ROW = 16 << 10
"""Rows of at least this many bytes are copied one by one: a gather of many copies them twice."""


@dataclass(slots=True)
class _Wanted:
    """The rows of one row group that a batch needs.

    ``where`` holds the positions of these rows in the batch. ``begin`` and ``end`` are the byte
    range of the row group in its shard.
    """

    shard: int
    group: int
    rows: Indices
    where: Indices
    begin: int
    end: int


class _Kept(NamedTuple):
    """The last row group that was read.

    ``row`` is the last row that was delivered; ``rows`` is None if only bytes are read.
    """

    shard: int
    group: int
    row: int
    rows: BlockRows | None

    def has(self, wanted: _Wanted) -> bool:
        return (self.shard, self.group) == (wanted.shard, wanted.group) and int(
            wanted.rows.min()
        ) > self.row


class _Opened(NamedTuple):
    """A shard whose footer was read.

    ``bounds`` holds the first row of each row group, and the number of rows; ``first`` is the
    number of the shard's first sample.
    """

    footer: BlockShard
    bounds: Indices
    first: int


class BlockReader(BatchReader):
    """Reads batches by whole blocks.

    As for every BatchReader: use one per worker; nothing is read before the first batch.
    """

    def __init__(
        self, manifest: Manifest, storage: Storage, spec: ReaderSpec, *, bytes_only: bool = False
    ) -> None:
        super().__init__(manifest, storage, spec, bytes_only=bytes_only)
        form = self._format
        assert isinstance(form, Blocks)
        self._blocks = form
        self._codec = None  # the format itself decompresses
        self._pages, self._framed = spec.check == "format" and form.has_checksums, None
        self.in_place = self._nowhere = self.reads_ahead = False
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
                f"reader.columns is {columns}, but the samples have {have} "
                f"column{'' if have == 1 else 's'}",
                remedy=f"use at most {have}",
            )
        if self.spec.check == "content":
            raise UsageError(
                "reader.check=content needs all columns of a sample",
                remedy="use reader.check=format",
            )
        if not self._raw:
            raise UsageError(
                f"reader.columns reads a part of each sample, and a part of a "
                f"{self._content.name} cannot be decoded",
                remedy="use --set reader.decode=false",
            )
        return columns

    def read(self, indices: Indices, output: memoryview | None) -> Extents:
        """Read samples ``indices`` as BatchReader does, with the same exceptions.

        For a damaged footer or block, CorruptSampleError names one of the samples in it.
        """
        begun = time.monotonic_ns()
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
        issued = self._engine.issued
        shards, read_bytes, read_ns = self._footers(indices)
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
        again = self._retries.take()
        stats = Stats(
            samples=len(indices),
            bytes_read=read_bytes,
            sample_bytes=int(stored),
            started_ns=begun,
            read_ns=read_ns,
            prep_ns=time.monotonic_ns() - begun - read_ns,
            cpu_ns=time.process_time_ns() - self._cpu_before,
            process=os.getpid(),
            retries=again.retries,
            throttled=again.throttled,
            requests=self._engine.issued - issued,
            worker=threading.get_native_id(),
        )
        return self._prepared(indices, Extents(offsets, lengths, stats))

    def offers(self, indices: Indices) -> tuple[int, float]:
        """Return the requests of a batch, and how many of them ``read`` issues at once.

        As if no row group were kept and all footers were known. Of a part of the columns, the
        bytes are in proportion to the sizes.
        """
        shard, offset, stored = (
            self._columns[name][indices] for name in ("shard", "offset", "stored")
        )
        _, first = np.unique(np.stack((shard, offset)), axis=1, return_index=True)
        share = self._columns["size"][indices].sum() / max(
            1, self.manifest.samples["size"][indices].sum()
        )
        sizes = np.maximum(1, stored[first] * share)
        requests = int(np.ceil(sizes / self._engine.block_size).sum())
        return requests, requests / max(1, round(float(sizes.sum()) / _GROUP))

    # Footers

    def _footers(self, indices: Indices) -> tuple[dict[int, _Opened], int, int]:
        """Open the shards of these samples; read all missing footers at the same time.

        Returns the shards by number, the bytes that were read, and the nanoseconds that it took.
        """
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
        """Return (bytes to read first from the shard's end, at most, size of the shard).

        The second is the space behind the last sample, which the footer cannot exceed.
        """
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
                f"its footer lists {opened.groups} row groups, but the manifest {len(bounds) - 1}",
            )
        return _Opened(opened, bounds, first)

    def _extent(self, shard: int, begin: int, end: int, landing: int) -> Extent:
        step = max(self.storage.alignment, 1)
        start = begin // step * step
        return Extent(self._key(shard), start, -(-end // step) * step - start, landing, end - start)

    # Blocks

    def _wanted(self, indices: Indices, shards: dict[int, _Opened]) -> list[_Wanted]:
        """Return the row groups of a batch, in the order in which their first samples appear."""
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
        """Split the row groups into parts of about ``_GROUP`` bytes that are read together."""
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
        """Return the byte range of a row group, or of its first ``_take`` column chunks.

        Column chunks are stored in the order of the columns.
        """
        index = shard.first + int(shard.bounds[group])
        begin = int(self._columns["offset"][index])
        end = begin + int(self._columns["stored"][index])
        if self._take is None:
            return begin, end
        chunk = self._guard(index, shard.footer.chunk, group, self._take - 1)
        if not begin <= chunk[0] < chunk[1] <= end:
            raise self._corrupt(
                index, f"its footer does not describe the columns at bytes {begin} to {end}"
            )
        return begin, int(chunk[1])

    def _fetch_blocks(
        self, part: list[_Wanted], kept: _Kept | None
    ) -> tuple[memoryview | None, list[tuple[int, int, int] | None], int, int]:
        """Read the row groups of one part, except for a group that is kept.

        Returns the memory (None if only bytes are counted); for each group (its position in the
        memory, its offset in the shard, its length), or None if it is kept; the bytes that were
        read; and the nanoseconds that it took.
        """
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
                first, f"row group {wanted.group} has {rows.count} rows instead of {count}"
            )
        return rows

    def _share(self, wanted: _Wanted, shard: _Opened, indices: Indices) -> float:
        """Return the stored bytes of the wanted rows.

        The bytes that are read of the row group are divided in proportion to the rows' sizes.
        """
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
        """Check the wanted rows and copy them into ``output``.

        ``used`` is where the next sample starts if ``offsets`` does not give its place. Returns
        the new value of ``used``.
        """
        mine = indices[wanted.where]
        wrong = np.flatnonzero(rows.sizes[wanted.rows] != self._columns["size"][mine])
        if len(wrong):
            row, index = int(wanted.rows[wrong[0]]), int(mine[wrong[0]])
            raise self._corrupt(
                index, f"it has {rows.sizes[row]} bytes instead of {self._columns['size'][index]}"
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

"""storage x format x codec x content -> samples: one batch of sample numbers in, their bytes in memory out.

Bytes are read once and land where they stay when nothing has to be undone (no codec, nothing to decode, nothing cropped); otherwise they
land in scratch memory and the finished sample is written to the batch. Everything is counted where it happens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import buffers
from ..errors import CorruptSampleError, UsageError
from ..formats.base import split_codec
from ..registry import CODECS, CONTENTS, FORMATS
from ..spec.manifest import Manifest
from ..spec.workload import ReaderSpec
from ..storage.base import Retries, Retrying, Storage
from .engine import Extent, ReadEngine

Indices = npt.NDArray[np.int64]

_NEVER = Retries(0, 0)

_GAP = 8 << 10
"""Two samples of a shard that lie closer than this are read in one request: framing costs less than another request. ``room`` counts on
it: what lies between samples takes memory, too."""

_GROUP = 32 << 20
"""With a codec, a decoder or a crop, a batch is read and prepared in groups of about this many bytes, to bound the scratch memory."""


class Stats(NamedTuple):
    """What one batch cost, counted by the worker that made it. Times are on the system-wide monotonic clock."""

    samples: int
    bytes_read: int
    sample_bytes: int  # as stored
    started_ns: int
    read_ns: int
    prep_ns: int
    cpu_ns: int  # of this process since its first read, all threads
    process: int
    retries: int = 0  # requests that were sent again
    throttled: int = 0  # of these: because the server asked to slow down


@dataclass(slots=True)
class Delivered:
    """Where each sample of a batch lies in the output memory."""

    offsets: Indices
    lengths: Indices
    stats: Stats


class _Run(NamedTuple):
    """Samples ``[start, stop)`` of a batch that come from one request."""

    start: int
    stop: int
    shard: int
    offset: int
    end: int


class BatchReader:
    """Reads batches of one dataset. Cheap to make; memory and threads appear with the first batch. Not thread-safe: one per worker.

    ``bytes_only``: fetch what is stored and undo nothing, whatever the spec says (the fetch ceiling).
    """

    def __init__(self, manifest: Manifest, storage: Storage, spec: ReaderSpec, *, bytes_only: bool = False) -> None:
        if bytes_only:
            spec = spec.model_copy(update={"decode": False, "crop": None, "check": "none"})
        self._bytes_only = bytes_only
        self._retrying = storage if isinstance(storage, Retrying) else None  # asked once: checking a protocol takes microseconds
        self._owns_storage = True
        self.manifest = manifest
        self.storage = storage
        self.spec = spec
        dataset = manifest.spec
        self._format = FORMATS.load(dataset.format)
        self._content = CONTENTS.load(dataset.content)
        name, _ = split_codec(dataset.codec)
        self._codec = None if name == "none" or bytes_only else CODECS.load(name)
        self._suffix = self._content.suffix + CODECS.load(name).suffix
        self._engine = ReadEngine(storage, concurrency=spec.concurrency, block_size=spec.block_size, once=self._format.one_sample_per_shard)
        self._scratch: dict[str, npt.NDArray[np.uint8]] = {}
        self._columns = {name: manifest.samples[name] for name in ("shard", "offset", "stored", "size", "xxh3")}
        self._key = manifest.key
        self._cpu_before: int | None = None
        self._framed = spec.check == "format" and self._format.has_checksums
        # In place: what is delivered is a slice of what is stored.
        self.in_place = self._codec is None and spec.crop is None and (not spec.decode or self._content.in_place)
        # Nobody will look at the bytes: for byte counts they need not even stay in memory.
        self._nowhere = self.in_place and spec.check == "none" and not (spec.decode and self._content.name != "raw")

    def clone(self) -> BatchReader:
        """Another reader of the same data, with its own memory and threads. The storage is shared, and this reader's to close."""
        other = type(self)(self.manifest, self.storage, self.spec, bytes_only=self._bytes_only)
        other._owns_storage = False
        return other

    def close(self) -> None:
        self._engine.close()
        if self._owns_storage:
            self.storage.close()

    # How much memory a batch takes

    def room(self, indices: Indices | None = None) -> npt.NDArray[np.int64]:
        """Upper bound of the output bytes of each sample (of all samples, or of ``indices``), alignment included."""
        column = self._columns["stored" if self.in_place else "size"]
        size = column if indices is None else column[indices]
        if self.in_place:
            # Each sample may start a request of its own, and takes the framing between neighbours along.
            return np.asarray(size + 3 * max(self.storage.alignment, 4096))
        if self.spec.crop is not None:
            return np.minimum(size, self.spec.crop) if not self.spec.decode else np.full(len(size), self.spec.crop, dtype=np.int64)
        if self.spec.decode and not self._content.in_place:
            expansion = self.manifest.header.expansion or self._content.max_expansion
            return np.asarray(np.ceil(size * expansion), dtype=np.int64)
        return np.asarray(size)

    def reserve(self, largest_batch: int, *, into_output: bool) -> None:
        """Allocate and touch scratch memory before the first read, for batches of up to ``largest_batch`` bytes of output."""
        stored = self._columns["stored"]
        if not self.in_place:
            self._memory("landing", min(int(stored.max()), _GROUP) + _GROUP if stored.max() < _GROUP else int(stored.max() * 1.01))
        elif not into_output and self._nowhere:
            self._engine.reserve()
        elif not into_output:
            self._memory("landing", largest_batch)

    # One batch

    def read(self, indices: Indices, output: memoryview | None) -> Delivered:
        """Read samples ``indices`` into ``output`` (scratch memory where None, for byte counts only).

        Raises StorageError, CorruptSampleError (names shard and sample), UsageError where ``output`` is too small.
        """
        started = 0
        lengths = np.empty(len(indices), dtype=np.int64)
        offsets = np.empty(len(indices), dtype=np.int64)
        read_bytes = read_ns = prep_ns = used = 0
        before = self._retried()
        for start, stop in self._groups(indices):
            part = indices[start:stop]
            clock = time.monotonic_ns()
            runs, needed = self._plan(part)
            memory: memoryview | None
            if self.in_place and output is not None:
                memory, base = output, used
                if base + needed > len(output):
                    raise too_small(base + needed, len(output))
            elif output is None and self._nowhere:
                memory, base = None, 0
            else:
                memory, base = self._memory("landing", needed), 0
            fetching = time.monotonic_ns()
            started = started or fetching  # fresh scratch memory is not storage
            if self._cpu_before is None:
                self._cpu_before = time.process_time_ns()
            checks = _Checks(self, part, runs, memory, base) if self._framed and self.in_place and memory is not None else None
            read_bytes += self._fetch(runs, memory, base, checks)
            took = time.monotonic_ns() - fetching
            checking = checks.share(took, min(self.spec.concurrency, len(runs))) if checks else 0
            read_ns += took - checking
            prep_ns += fetching - clock + checking
            clock = time.monotonic_ns()
            if memory is None:
                offsets[start:stop], lengths[start:stop] = 0, self._columns["stored"][part]
            elif self.in_place:
                if checks:
                    checks.finish()
                self._place(part, runs, memory, base, offsets[start:stop], lengths[start:stop])
                used = base + needed
            else:
                used = self._prepare(part, runs, memory, output, used, offsets[start:stop], lengths[start:stop])
            prep_ns += time.monotonic_ns() - clock
        after = self._retried()
        stats = Stats(
            samples=len(indices),
            bytes_read=read_bytes,
            sample_bytes=int(self._columns["stored"][indices].sum()),
            started_ns=started,
            read_ns=read_ns,
            prep_ns=prep_ns,
            cpu_ns=time.process_time_ns() - (self._cpu_before or 0),
            process=os.getpid(),
            retries=after.retries - before.retries,
            throttled=after.throttled - before.throttled,
        )
        return Delivered(offsets, lengths, stats)

    def _retried(self) -> Retries:
        return self._retrying.retried() if self._retrying is not None else _NEVER

    def _groups(self, indices: Indices) -> Iterator[tuple[int, int]]:
        if self.in_place:
            yield 0, len(indices)
            return
        total = np.cumsum(self._columns["stored"][indices])
        start = 0
        while start < len(indices):
            before = total[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(total, before + _GROUP, side="right")))
            yield start, stop
            start = stop

    def _plan(self, indices: Indices) -> tuple[list[_Run], int]:
        """Requests for these samples, neighbours in one shard merged, and the memory they take when laid out one after the other."""
        shards = self._columns["shard"][indices].tolist()
        offsets = self._columns["offset"][indices].tolist()
        stored = self._columns["stored"][indices].tolist()
        margins = [self._margins(int(index), size) for index, size in zip(indices, stored, strict=True)] if self._framed else None
        # Checksums are checked by the thread that read the bytes, so a request then holds whole samples.
        most = self.spec.block_size if self._framed and self.in_place else 1 << 62
        runs: list[_Run] = []
        for position, (shard, offset, size) in enumerate(zip(shards, offsets, stored, strict=True)):
            head, tail = margins[position] if margins else (0, 0)
            begin, end = offset - head, offset + size + tail
            last = runs[-1] if runs else None
            if last is not None and last.shard == shard and 0 <= begin - last.end <= _GAP and end - last.offset <= most:
                runs[-1] = _Run(last.start, position + 1, shard, last.offset, end)
            else:
                runs.append(_Run(position, position + 1, shard, begin, end))
        step = max(self.storage.alignment, 1)
        needed = sum(-(-run.end // step) * step - run.offset // step * step for run in runs)
        return runs, needed

    def _fetch(self, runs: list[_Run], memory: memoryview | None, base: int, then: Callable[[int], None] | None = None) -> int:
        step = max(self.storage.alignment, 1)
        extents = []
        landing = base
        for run in runs:
            first = run.offset // step * step
            length = -(-run.end // step) * step - first
            extents.append(Extent(self._key(run.shard), first, length, landing, run.end - first))
            landing += length
        return self._engine.read(extents, memory, then)

    def _starts(self, indices: Indices, runs: list[_Run], base: int) -> Indices:
        """Where each sample's stored bytes begin in the memory that ``_fetch`` filled."""
        step = max(self.storage.alignment, 1)
        starts = np.empty(len(indices), dtype=np.int64)
        landing = base
        offsets = self._columns["offset"][indices]
        for run in runs:
            first = run.offset // step * step
            starts[run.start : run.stop] = offsets[run.start : run.stop] - first + landing
            landing += -(-run.end // step) * step - first
        return starts

    def _place(self, indices: Indices, runs: list[_Run], memory: memoryview, base: int, offsets: Indices, lengths: Indices) -> None:
        """The samples stay where they landed."""
        starts = self._starts(indices, runs, base)
        stored = self._columns["stored"][indices]
        decode = self.spec.decode and self._content.name != "raw"
        if not decode and self.spec.check != "content":
            offsets[:], lengths[:] = starts, stored
            return
        for position, index in enumerate(indices.tolist()):
            start, size = int(starts[position]), int(stored[position])
            content = memory[start : start + size]
            self._check_content(index, content)
            begin, end = self._guard(index, self._content.locate, content) if decode else (0, size)
            offsets[position], lengths[position] = start + begin, end - begin

    def _prepare(
        self,
        indices: Indices,
        runs: list[_Run],
        memory: memoryview,
        output: memoryview | None,
        used: int,
        offsets: Indices,
        lengths: Indices,
    ) -> int:
        """Decompress, check, decode, crop, and pack the samples into ``output`` from ``used`` on; where it ends."""
        starts = self._starts(indices, runs, 0)
        stored = self._columns["stored"][indices]
        sizes = self._columns["size"][indices]
        for position, index in enumerate(indices.tolist()):
            start = int(starts[position])
            content = memory[start : start + int(stored[position])]
            if self._codec is not None:
                plain = self._memory("plain", int(sizes[position]))
                count = self._guard(index, self._codec.decompress, content, plain)
                if count != len(plain):
                    raise self._corrupt(index, f"decompresses to {count} bytes, not {len(plain)}")
                content_start, content = 0, plain
                if self._framed:
                    self._check_format(index, memory, start)
                self._check_content(index, content)
            else:
                content_start = start
                self._check(index, memory, content_start, content)
            offsets[position] = used
            lengths[position] = self._deliver(index, content, output, used)
            used += int(lengths[position])
        return used

    def _deliver(self, index: int, content: memoryview, output: memoryview | None, used: int) -> int:
        """Decode and crop one sample, and put it into ``output`` at ``used``; how long it is then."""
        crop = self.spec.crop
        if not self.spec.decode:
            result = content
        elif self._content.in_place:
            begin, end = self._guard(index, self._content.locate, content)
            result = content[begin:end]
        else:
            room = self._guard(index, self._content.decoded_bytes, content)
            whole = output is None or crop is not None
            if not whole and output is not None and used + room > len(output):
                raise too_small(used + room, len(output))
            target = self._memory("decoded", room) if whole or output is None else output[used : used + room]
            room = self._guard(index, self._content.decode, content, target)
            if not whole:
                return int(room)
            result = target[:room]
        if crop is not None:
            result = result[:crop]
        if output is not None:
            if used + len(result) > len(output):
                raise too_small(used + len(result), len(output))
            np.copyto(np.frombuffer(output, np.uint8)[used : used + len(result)], np.frombuffer(result, np.uint8))
        return len(result)

    # Checks

    def _check(self, index: int, memory: memoryview, start: int, content: memoryview) -> None:
        if self._framed:
            self._check_format(index, memory, start)
        self._check_content(index, content)

    def _check_format(self, index: int, memory: memoryview, start: int) -> None:
        stored = int(self._columns["stored"][index])
        head, tail = self._margins(index, stored)
        self._guard(index, self._format.check, memory[start - head : start + stored + tail])

    def _check_content(self, index: int, content: memoryview) -> None:
        if self.spec.check != "content":
            return
        import xxhash

        if xxhash.xxh3_64_intdigest(content) != int(self._columns["xxh3"][index]):
            raise self._corrupt(index, "its bytes are not what the manifest says")

    def _margins(self, index: int, stored: int) -> tuple[int, int]:
        return self._format.margins(index, self._suffix, stored)  # type: ignore[no-any-return]

    def _guard(self, index: int, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except ValueError as error:
            raise self._corrupt(index, str(error)) from error

    def _corrupt(self, index: int, why: str) -> CorruptSampleError:
        key = self.manifest.key(int(self._columns["shard"][index]))
        return CorruptSampleError(f"sample {index} in shard {key} is damaged: {why}", remedy="find all damage with: iobench verify")

    def _memory(self, role: str, nbytes: int) -> memoryview:
        """Scratch memory that is kept and only ever grows: fresh memory costs more than the read into it."""
        have = self._scratch.get(role)
        if have is None or len(have) < nbytes:
            have = buffers.private(max(nbytes + nbytes // 4, 1 << 20)).array
            self._scratch[role] = have
        return have.data[:nbytes]


class _Checks:
    """The format's checksums of a batch, each request's checked by the thread that read it: the bytes are still in its cache."""

    def __init__(self, reader: BatchReader, indices: Indices, runs: list[_Run], memory: memoryview, base: int) -> None:
        self.reader = reader
        self.memory = memory
        self.indices = indices.tolist()
        self.starts = reader._starts(indices, runs, base).tolist()
        self._left: dict[int, _Run] = {}
        step = reader.storage.alignment
        for run in runs:
            self._left[base] = run
            base += -(-run.end // step) * step - run.offset // step * step
        self._took: list[int] = []

    def __call__(self, landing: int) -> None:
        """Raises CorruptSampleError. Requests of which the engine made several reads are left to ``finish``."""
        run = self._left.get(landing)
        if run is None or run.end - run.offset > self.reader.spec.block_size:
            return
        started = time.monotonic_ns()
        self._check(run)
        del self._left[landing]
        self._took.append(time.monotonic_ns() - started)

    def finish(self) -> None:
        for run in self._left.values():
            self._check(run)

    def share(self, wall_ns: int, threads: int) -> int:
        """How much of the time that reading took went into checking, where ``threads`` took part."""
        return min(wall_ns, sum(self._took) // max(1, threads))

    def _check(self, run: _Run) -> None:
        for position in range(run.start, run.stop):
            self.reader._check_format(self.indices[position], self.memory, self.starts[position])


def too_small(needed: int, room: int) -> UsageError:
    return UsageError(
        f"a batch of {needed} bytes does not fit a slot of {room} bytes",
        remedy=f"raise it: --set loader.slot_size={-(-needed // (1 << 20))}MiB, or use a smaller batch_size",
    )


class NullReader:
    """Delivers batches of the right size at once, reading and preparing nothing: what remains is the harness.

    ``delivered`` holds the bytes that each sample has when it reaches the training process.
    """

    def __init__(self, manifest: Manifest, delivered: Indices) -> None:
        self.manifest = manifest
        self._delivered = delivered
        self._stored = stored_bytes(manifest, delivered)
        self._cpu_before: int | None = None
        self.in_place = False

    def clone(self) -> NullReader:
        return self

    def close(self) -> None:
        return

    def reserve(self, largest_batch: int, *, into_output: bool) -> None:
        return

    def room(self, indices: Indices | None = None) -> npt.NDArray[np.int64]:
        return self._delivered if indices is None else self._delivered[indices]

    def read(self, indices: Indices, output: memoryview | None) -> Delivered:
        lengths = self._delivered[indices]
        ends = np.cumsum(lengths)
        if output is not None and len(ends) and ends[-1] > len(output):
            raise too_small(int(ends[-1]), len(output))
        stored = int(self._stored[indices].sum())
        cpu = time.process_time_ns()
        if self._cpu_before is None:
            self._cpu_before = cpu
        stats = Stats(len(indices), 0, stored, time.monotonic_ns(), 0, 0, cpu - self._cpu_before, os.getpid())
        return Delivered(ends - lengths, lengths, stats)


AnyReader = BatchReader | NullReader


def stored_bytes(manifest: Manifest, delivered: Indices) -> Indices:
    """How many stored bytes each sample has; of formats that are read by blocks, its share of the blocks (of the columns that are read)."""
    if not getattr(FORMATS.load(manifest.spec.format), "blocks", False):
        return np.asarray(manifest.samples["stored"])
    ratio = manifest.header.stored_bytes / max(1, manifest.header.sample_bytes)
    sizes = manifest.samples["size"]
    raw = manifest.spec.content == "raw"  # what is decoded or cropped was read whole
    return np.asarray((np.minimum(sizes, delivered) if raw else sizes) * ratio).astype(np.int64)


def delivered_bytes(manifest: Manifest, storage: Storage, spec: ReaderSpec) -> Indices:
    """How many bytes of each sample reach the training process; where decoding decides, by the ratio of the first few samples."""
    sizes = manifest.samples["size"]
    content = CONTENTS.load(manifest.spec.content)
    if spec.decode and not content.in_place:
        few = np.arange(min(4, manifest.sample_count))
        reader = BatchReader(manifest, storage, spec.model_copy(update={"crop": None}))
        try:
            ratio = float(reader.read(few, None).lengths.sum() / sizes[few].sum())
        finally:
            reader.close()
        sizes = np.ceil(sizes * ratio).astype(np.int64)
    return np.asarray(sizes if spec.crop is None else np.minimum(sizes, spec.crop))

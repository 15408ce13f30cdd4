"""The batch reader: it takes the sample numbers of a batch and reads their bytes into memory.

It combines a storage, a format, a codec and a content. Without a codec, decoding or a crop, bytes
are read straight into the batch. Otherwise they are read into scratch memory, and the finished
sample is written to the batch. The reader also counts bytes, requests and times. The format's own
checksums are checked by the thread that read a request, while the bytes are still in its CPU's
cache.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

import numpy as np
import numpy.typing as npt

from ..base import buffers
from ..base.buffers import Memory, Pool
from ..base.errors import CorruptSampleError, IobenchError, NoMemoryError
from ..data.dataset import ResolvedSpec
from ..data.formats.base import Framed
from ..record.manifest import Manifest
from ..settings.workload import Engine, ReaderSpec
from ..storage.base import Mapped, Storage
from ..storage.local.storage import LocalStorage
from ..storage.local.uring import refused
from ..storage.s3.storage import S3Storage
from .engines.base import Columns, ReadEngine
from .engines.event_loop import EventLoopEngine
from .engines.threads import ThreadEngine
from .engines.uring import UringEngine
from .requests import Extents, Indices, Requests, RetryCount, Stats, plan_requests, too_small

_ENGINES: dict[Engine, type[ReadEngine]] = {
    "threads": ThreadEngine,
    "io_uring": UringEngine,
    "event_loop": EventLoopEngine,
}


def reads_by(engine: Engine, storage: Storage) -> bool:
    """Whether this engine can read from this storage here."""
    if engine == "io_uring":
        return isinstance(storage, LocalStorage) and not refused()
    if engine == "event_loop":
        return isinstance(storage, S3Storage) and not storage.not_wired()
    return engine == "threads"


def make_engine(
    asked: Engine, storage: Storage, *, concurrency: int, block_size: int, once: bool = False
) -> ReadEngine:
    """The engine of this name, or threads where it can't read from this storage."""
    kind = _ENGINES[asked if reads_by(asked, storage) else "threads"]
    return kind(storage, concurrency=concurrency, block_size=block_size, once=once)


class Checks:
    """A callback for the read engine (its ``then``), which checks one request.

    The engine calls it with the position in memory (``landing``) of each request that it read in
    one piece. ``check(n)`` checks the n-th sample of the batch and raises CorruptSampleError.
    """

    def __init__(self, requests: Requests, base: int, check: Callable[[int], None]) -> None:
        landings = (requests.landing + base).tolist()
        self._left = dict(zip(landings, requests.samples(), strict=True))
        self._check = check
        self._took: list[int] = []

    def __call__(self, landing: int) -> None:
        started = time.monotonic_ns()
        self._samples(self._left[landing])
        del self._left[landing]
        self._took.append(time.monotonic_ns() - started)

    def finish(self) -> None:
        """Check the requests that the engine read in several pieces."""
        for samples in self._left.values():
            self._samples(samples)

    def share(self, wall_ns: int, threads: int) -> int:
        """Return how many of the ``wall_ns`` nanoseconds of reading were spent on checks.

        The time of all checks is divided by the number of ``threads`` that took part.
        """
        return min(wall_ns, sum(self._took) // max(1, threads))

    def _samples(self, samples: tuple[int, int]) -> None:
        for position in range(*samples):
            self._check(position)


Ts = TypeVarTuple("Ts")
R = TypeVar("R")

_GROUP = 32 << 20
"""Bytes of a group of samples that is read and prepared together.

With a codec, decoding or a crop, a batch is split into such groups, to limit the scratch memory.
"""


_KEYS = 1 << 16
"""Keys of shards that a reader keeps: some 150 bytes each."""

_UNCHECKED_BYTES = 64 << 20
"""Before more memory than this is allocated, a request checks the manifest (``check_there``)."""


_PREP_SEED = 20_250_910

_CROPPED_IN_PLACE = 2
"""A batch keeps its samples whole, and delivers a slice of each, if they are at most this many
times as long as what is delivered; longer ones are copied, so that slots stay small."""


class _Keys(dict[int, str]):
    """The keys of shards that were read: to make one costs a part of what opening a file costs."""

    def __init__(self, key: Callable[[int], str]) -> None:
        self._make = key

    def __missing__(self, shard: int) -> str:
        if len(self) >= _KEYS:
            self.clear()
        self[shard] = key = self._make(shard)
        return key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._make,)


def prep_times(spec: ReaderSpec, count: int) -> npt.NDArray[np.float64] | None:
    """Seconds that the preparation of each sample takes longer; None if none takes longer.

    They have the mean and the coefficient of variation of ``spec``, and depend on nothing else.
    """
    if not spec.prep_time:
        return None
    variance = math.log1p(spec.prep_cv**2)  # of the logarithm
    chance = np.random.Generator(np.random.PCG64DXSM(_PREP_SEED))
    normal = chance.standard_normal(count)
    return np.asarray(spec.prep_time * np.exp(math.sqrt(variance) * normal - variance / 2))


def _distinct(numbers: Indices) -> tuple[Indices, Indices]:
    """The distinct numbers, and for each number its place among them; none is negative."""
    most = int(numbers.max(initial=-1)) + 1
    if most > 4 * len(numbers):
        return np.unique(numbers, return_inverse=True)
    there = np.zeros(most, bool)  # without sorting
    there[numbers] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]


class _Group(NamedTuple):
    """Requests that are read together, into ``memory`` from ``base`` on.

    ``memory`` is None if the bytes are only counted.
    """

    requests: Requests
    memory: memoryview | None
    base: int
    checks: Checks | None


class BegunBatch:
    """A batch whose requests were issued ahead, for ``BatchReader.finish``.

    ``failure``: why they could not be issued. ``landing``: the reader's own memory for them.
    """

    __slots__ = ("failure", "group", "landing", "reading")

    def __init__(self) -> None:
        self.failure: IobenchError | None = None
        self.group: _Group | None = None
        self.reading: Any = None
        self.landing: Memory | None = None


class BatchReader:
    """Reads batches of one dataset.

    It is cheap to make: memory is allocated and threads are started with the first batch. It is not
    thread-safe: use one per worker. ``bytes_only``: fetch the stored bytes without decompressing,
    decoding, cropping or checking, whatever the spec says (to measure the fetch ceiling).
    """

    def __init__(
        self, manifest: Manifest, storage: Storage, spec: ReaderSpec, *, bytes_only: bool = False
    ) -> None:
        if bytes_only:
            spec = spec.model_copy(update={"decode": False, "crop": None, "check": "none"})
        self._bytes_only = bytes_only
        self._retries = RetryCount(storage)
        self.mapped = storage if isinstance(storage, Mapped) else None
        self._owns_storage = True
        self.manifest = manifest
        self.storage = storage
        self.spec = spec
        dataset = ResolvedSpec.of(manifest)
        self._format = dataset.format
        self._content = dataset.content
        self._codec = None if dataset.codec.plain or bytes_only else dataset.codec
        self._suffix = dataset.suffix
        once = self._format.one_sample_per_shard
        self._engine = make_engine(
            spec.engine,
            storage,
            concurrency=spec.concurrency,
            block_size=spec.block_size,
            once=once,
        )
        self._issued = 0  # requests that earlier batches have counted
        self._landings = Pool()  # one for each batch that was begun
        self._scratch: dict[str, npt.NDArray[np.uint8]] = {}
        self._columns = {
            name: manifest.samples[name] for name in ("shard", "offset", "stored", "size", "xxh3")
        }
        self._drawn: Indices | None = None  # the samples that it may read, if they are not all
        self._key = _Keys(manifest.key).__getitem__
        self._cpu_before: int | None = None
        # By sample number, while somebody asks for it: the shapes of the samples of one batch.
        self.shapes: dict[int, tuple[int, ...]] | None = None
        # The format if its own checksums are to be checked, else None.
        self._framed = (
            self._format
            if spec.check == "format"
            and isinstance(self._format, Framed)
            and self._format.has_checksums
            else None
        )
        # Seconds of emulated preparation, by sample; None: there is none.
        self._prep_s = None if bytes_only else prep_times(spec, manifest.sample_count)
        # In place: a delivered sample is a slice of its stored bytes.
        self.reads_ahead = spec.read_ahead is not False
        whole = spec.crop is None or manifest.mean_stored_bytes <= _CROPPED_IN_PLACE * spec.crop
        self.in_place = (
            self._codec is None and whole and (not spec.decode or self._content.in_place)
        )
        # Nobody looks at the bytes: if they are only counted, they need not be kept in memory.
        self._nowhere = (
            self.in_place and spec.check == "none" and not (spec.decode and not self._content.plain)
        )

    @property
    def prepares(self) -> bool:
        """Whether more happens to a sample's bytes than that they are read into their batch."""
        return not self._nowhere or self._prep_s is not None

    @property
    def shaped(self) -> bool:
        """Whether the samples that it delivers are arrays with a shape (images)."""
        return self.spec.decode and self._content.has_shape

    @property
    def bytes_only(self) -> bool:
        """Whether the stored bytes are fetched alone."""
        return self._bytes_only

    def clone(self) -> BatchReader:
        """Return another reader of the same data, with its own memory and threads.

        Both share the storage. Only this reader closes it.
        """
        other = type(self)(self.manifest, self.storage, self.spec, bytes_only=self._bytes_only)
        other._owns_storage = False
        other._drawn = self._drawn
        other._retries = self._retries
        return other

    def restrict(self, shards: Indices) -> None:
        """Be told that only samples of these shards will be read: others need not even be there."""
        firsts, counts = (self.manifest.shards[name][shards] for name in ("first", "samples"))
        self._drawn = np.concatenate(
            [
                np.arange(first, first + count)
                for first, count in zip(firsts.tolist(), counts.tolist(), strict=True)
            ]
        )

    def close(self) -> None:
        self._engine.settle()
        self._engine.close()
        if self._owns_storage:
            self.storage.close()

    # How much memory a batch takes

    def room(self, indices: Indices | None = None) -> npt.NDArray[np.int64]:
        """Return an upper bound of the output bytes of each sample, alignment included.

        For all samples, or only for ``indices``.
        """
        column = self._columns["stored" if self.in_place else "size"]
        size = column if indices is None else column[indices]
        if self.in_place:
            # Each sample may need its own request. A request for several samples also includes
            # the framing between them.
            return np.asarray(size + 3 * max(self.storage.alignment, 4096))
        if self.spec.crop is not None:
            return (
                np.minimum(size, self.spec.crop)
                if not self.spec.decode
                else np.full(len(size), self.spec.crop, dtype=np.int64)
            )
        if self.spec.decode and not self._content.in_place:
            expansion = self.manifest.header.expansion or self._content.max_expansion
            return np.asarray(np.ceil(size * expansion), dtype=np.int64)
        return np.asarray(size)

    def check_there(self, nbytes: int, indices: Indices | None = None) -> None:
        """Check that samples exist before ``nbytes`` of memory are allocated for them.

        Asks the storage for the size of the shard that holds the largest sample (of all that may
        be read, or of ``indices``), so that a wrong manifest cannot make the reader allocate huge
        amounts of memory. Below 64 MiB nothing is checked. Raises CorruptSampleError, StorageError.
        """
        stored = self._columns["stored"]
        indices = self._drawn if indices is None else indices
        index = int(np.argmax(stored) if indices is None else indices[np.argmax(stored[indices])])
        if max(nbytes, stored[index]) < _UNCHECKED_BYTES:
            return
        end = int(self._columns["offset"][index]) + int(stored[index])
        size = self.storage.size(self._key(int(self._columns["shard"][index])))
        if end > size:
            raise self._corrupt(index, f"it would end at byte {end}, but the shard ends at {size}")

    def reserve(self, largest_batch: int, *, into_output: bool, ahead: int = 0) -> None:
        """Allocate and touch scratch memory before the first read.

        ``largest_batch`` is the largest output of a batch in bytes; ``ahead`` the number of
        batches that will be begun before their turn.
        """
        self.check_there(0)
        stored = self._columns["stored"]
        if ahead:
            if not into_output and self._nowhere:
                self._engine.reserve()
            elif not (self.in_place and into_output):
                for memory in self._landings.reserve(ahead + 1, min(largest_batch, _GROUP)):
                    self._engine.register(memory.data)
        elif not self.in_place:
            largest = int((stored if self._drawn is None else stored[self._drawn]).max())
            nbytes = largest + _GROUP if largest < _GROUP else int(largest * 1.01)
            self._engine.register(self._memory("landing", nbytes))
        elif not into_output and self._nowhere:
            self._engine.reserve()
        elif not into_output:
            self._engine.register(self._memory("landing", largest_batch))

    def register(self, memory: memoryview) -> None:
        """Be told of memory that holds the outputs of many batches, as ``ReadEngine.register``."""
        self._engine.register(memory)

    # One batch

    def read(self, indices: Indices, output: memoryview | None) -> Extents:
        """Read samples ``indices`` into ``output``; if it is None, only count bytes.

        Raises StorageError, CorruptSampleError that names shard and sample, and UsageError if
        ``output`` is too small.
        """
        return self._prepared(indices, self._read(indices, output, None))

    def begin(self, indices: Indices, output: memoryview | None) -> BegunBatch:
        """Issue all requests of a batch, to be read after those of batches that were begun before.

        ``output`` is written to if the samples stay where they are read to (``in_place``), and
        must not be used before ``finish`` or ``settle`` has returned. Raises nothing that the
        batch is to blame for: ``finish`` does.
        """
        begun = BegunBatch()
        try:
            begun.group = self._open(indices, output, 0, begun)
            if self._cpu_before is None:
                self._cpu_before = time.process_time_ns()
            group = begun.group
            begun.reading = self._engine.begin(self._extents(group), group.memory, group.checks)
        except IobenchError as error:
            begun.failure = error
        return begun

    def finish(self, begun: BegunBatch, indices: Indices, output: memoryview | None) -> Extents:
        """Wait for a batch that was begun, and deliver it as ``read`` does."""
        try:
            if begun.failure is not None:
                raise begun.failure
            return self._prepared(indices, self._read(indices, output, begun))
        finally:
            if begun.landing is not None:
                self._landings.give(begun.landing)
                begun.landing = None

    def _prepared(self, indices: Indices, delivered: Extents) -> Extents:
        """What was delivered, after the time that the preparation of these samples takes."""
        if self._prep_s is None:
            return delivered
        began = time.monotonic_ns()
        time.sleep(float(self._prep_s[indices].sum()))
        stats = delivered.stats
        took = time.monotonic_ns() - began
        stats = stats._replace(prep_ns=stats.prep_ns + took)
        return Extents(delivered.offsets, delivered.lengths, stats)

    def settle(self) -> None:
        """Give up all batches that were begun; no thread writes for them after the return."""
        self._engine.settle()

    def _read(
        self, indices: Indices, output: memoryview | None, begun: BegunBatch | None
    ) -> Extents:
        started = 0
        lengths = np.empty(len(indices), dtype=np.int64)
        offsets = np.empty(len(indices), dtype=np.int64)
        read_bytes = read_ns = prep_ns = used = 0
        # A batch that was begun is one group: all of its requests were issued together.
        for start, stop in self._groups(indices) if begun is None else ((0, len(indices)),):
            part = indices[start:stop]
            clock = time.monotonic_ns()
            group = begun.group if begun is not None else self._open(part, output, used, None)
            assert group is not None
            requests, memory, base, checks = group
            fetching = time.monotonic_ns()
            started = started or fetching  # allocating scratch memory is not storage time
            if self._cpu_before is None:
                self._cpu_before = time.process_time_ns()
            if begun is not None and begun.reading is not None:
                read_bytes += self._engine.wait(begun.reading)
            else:
                read_bytes += self._engine.read(self._extents(group), memory, checks)
            took = time.monotonic_ns() - fetching
            checking = (
                checks.share(took, min(self.spec.concurrency, len(requests))) if checks else 0
            )
            read_ns += took - checking
            prep_ns += fetching - clock + checking
            clock = time.monotonic_ns()
            if memory is None:
                offsets[start:stop], lengths[start:stop] = 0, self._columns["stored"][part]
            elif self.in_place:
                if checks:
                    checks.finish()
                self._place(part, requests, memory, base, offsets[start:stop], lengths[start:stop])
                used = base + requests.nbytes
            else:
                used = self._prepare(
                    part, requests, memory, output, used, offsets[start:stop], lengths[start:stop]
                )
            prep_ns += time.monotonic_ns() - clock
        if self.in_place and self.spec.crop is not None:
            np.minimum(lengths, self.spec.crop, out=lengths)
        again = self._retries.take()
        stats = Stats(
            samples=len(indices),
            bytes_read=read_bytes,
            sample_bytes=int(self._columns["stored"][indices].sum()),
            started_ns=started,
            read_ns=read_ns,
            prep_ns=prep_ns,
            cpu_ns=time.process_time_ns() - (self._cpu_before or 0),
            process=os.getpid(),
            retries=again.retries,
            throttled=again.throttled,
            requests=self._engine.issued - self._issued,
            worker=threading.get_native_id(),
        )
        self._issued = self._engine.issued
        return Extents(offsets, lengths, stats)

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

    def _open(
        self, indices: Indices, output: memoryview | None, used: int, begun: BegunBatch | None
    ) -> _Group:
        """Plan the requests of these samples, and choose the memory that they are read into.

        That is ``output`` from ``used`` on, or scratch memory: of ``begun`` alone, if it is given.
        """
        requests = self._plan(indices)
        needed = requests.nbytes
        memory: memoryview | None
        base = 0
        if self.in_place and output is not None:
            memory, base = output, used
            if base + needed > len(output):
                raise too_small(base + needed, len(output))
        elif output is None and self._nowhere:
            memory = None
        elif begun is not None:
            self.check_there(needed, indices)
            begun.landing = self._landings.take(needed)
            memory = begun.landing.data[:needed]
        else:
            if needed > len(self._scratch.get("landing", ())):
                self.check_there(needed, indices)
            memory = self._memory("landing", needed)
        checks = (
            self._checks(indices, requests, memory, base)
            if self._framed and self.in_place and memory is not None
            else None
        )
        return _Group(requests, memory, base, checks)

    def offers(self, indices: Indices) -> tuple[int, float]:
        """Return the requests of a batch, and how many of them ``read`` issues at once."""
        requests = groups = 0
        for start, stop in self._groups(indices):
            group = _Group(self._plan(indices[start:stop]), None, 0, None)
            requests += len(self._engine.blocks(self._extents(group)))
            groups += 1
        return requests, requests / max(1, groups)

    def _plan(self, indices: Indices) -> Requests:
        """Return the requests for these samples."""
        shards, offsets, stored = (
            self._columns[name][indices].astype(np.int64, copy=False)
            for name in ("shard", "offset", "stored")
        )
        margins = None
        if (framed := self._framed) is not None:
            both = [
                framed.margins(index, self._suffix, size)
                for index, size in zip(indices.tolist(), stored.tolist(), strict=True)
            ]
            heads, tails = np.array(both, np.int64).reshape(-1, 2).T
            margins = heads, tails
        # The thread that read a request checks its checksums, so that the request must be read in
        # one piece.
        most = self._engine.block_size if self._framed and self.in_place else None
        step = max(self.storage.alignment, 1)
        return plan_requests(shards, offsets, stored, margins, step=step, most=most)

    def _extents(self, group: _Group) -> Columns:
        requests = group.requests
        if self._engine.once:
            shards, key = requests.shard, np.arange(len(requests))
        else:
            shards, key = _distinct(requests.shard)
        keys = list(map(self._key, shards.tolist()))
        landing = requests.landing + group.base
        return Columns(keys, key, requests.offset, requests.length, landing, requests.needed)

    def _checks(
        self, indices: Indices, requests: Requests, memory: memoryview, base: int
    ) -> Checks:
        begin = (self._columns["offset"][indices] + requests.moves + base).tolist()
        numbers = indices.tolist()
        return Checks(
            requests,
            base,
            lambda position: self._check_format(numbers[position], memory, begin[position]),
        )

    def _place(
        self,
        indices: Indices,
        requests: Requests,
        memory: memoryview,
        base: int,
        offsets: Indices,
        lengths: Indices,
    ) -> None:
        """Fill ``offsets`` and ``lengths`` for samples that stay where they were read to."""
        offsets[:] = self._columns["offset"][indices] + requests.moves + base
        lengths[:] = self._columns["stored"][indices]
        checked, locate = self.spec.check == "content", self._content.locate
        decode = self.spec.decode and not self._content.plain
        if decode and not checked and len(lengths) > 1 and (lengths == lengths[0]).all():
            alike = self._content.locate_alike(memory, offsets, int(lengths[0]))
            if alike is not None:
                offsets += alike[0]
                lengths[:] = alike[1] - alike[0]
                return
        if decode or checked:
            found = []
            each = zip(indices.tolist(), offsets.tolist(), lengths.tolist(), strict=True)
            for index, start, size in each:
                content = memory[start : start + size]
                if checked:
                    self._check_content(index, content)
                found.append(self._guard(index, locate, content) if decode else (0, size))
            begins, ends = np.array(found, np.int64).reshape(-1, 2).T
            offsets += begins
            lengths[:] = ends - begins

    def _prepare(
        self,
        indices: Indices,
        requests: Requests,
        memory: memoryview,
        output: memoryview | None,
        used: int,
        offsets: Indices,
        lengths: Indices,
    ) -> int:
        """Decompress, check, decode and crop the samples, and pack them into ``output``.

        The first sample is written at ``used``. Returns the end of the last one.
        """
        begins = self._columns["offset"][indices] + requests.moves
        stored = self._columns["stored"][indices]
        sizes = self._columns["size"][indices]
        for position, index in enumerate(indices.tolist()):
            start = int(begins[position])
            content = memory[start : start + int(stored[position])]
            if self._codec is not None:
                plain = self._memory_of(index, "plain", int(sizes[position]))
                count = self._guard(index, self._codec.decompress, content, plain)
                if count != len(plain):
                    raise self._corrupt(
                        index, f"it decompresses to {count} bytes instead of {len(plain)}"
                    )
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

    def _deliver(
        self, index: int, content: memoryview, output: memoryview | None, used: int
    ) -> int:
        """Decode and crop one sample, and write it to ``output`` at ``used``; return its length."""
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
            target = (
                self._memory_of(index, "decoded", room)
                if whole or output is None
                else output[used : used + room]
            )
            room = self._guard(index, self._content.decode, content, target)
            if self.shapes is not None:
                self.shapes[index] = self._guard(index, self._content.shape, content)
            if not whole:
                return int(room)
            result = target[:room]
        if crop is not None:
            result = result[:crop]
        if output is not None:
            if used + len(result) > len(output):
                raise too_small(used + len(result), len(output))
            np.copyto(
                np.frombuffer(output, np.uint8)[used : used + len(result)],
                np.frombuffer(result, np.uint8),
            )
        return len(result)

    # Checks

    def _check(self, index: int, memory: memoryview, start: int, content: memoryview) -> None:
        if self._framed:
            self._check_format(index, memory, start)
        self._check_content(index, content)

    def _check_format(self, index: int, memory: memoryview, start: int) -> None:
        assert self._framed is not None
        stored = int(self._columns["stored"][index])
        head, tail = self._framed.margins(index, self._suffix, stored)
        self._guard(index, self._framed.check, memory[start - head : start + stored + tail])

    def _check_content(self, index: int, content: memoryview) -> None:
        if self.spec.check != "content":
            return
        import xxhash

        if xxhash.xxh3_64_intdigest(content) != int(self._columns["xxh3"][index]):
            raise self._corrupt(index, "its bytes differ from the manifest's checksum (XXH3)")

    def _guard(self, index: int, function: Callable[[*Ts], R], *arguments: *Ts) -> R:
        try:
            return function(*arguments)
        except ValueError as error:
            raise self._corrupt(index, str(error)) from error

    def _corrupt(self, index: int, why: str) -> CorruptSampleError:
        key = self.manifest.key(int(self._columns["shard"][index]))
        return CorruptSampleError(
            f"sample {index} in shard {key} is damaged: {why}",
            remedy="find all damaged samples with iobench verify",
        )

    def _memory_of(self, index: int, role: str, nbytes: int) -> memoryview:
        """Return scratch memory for one sample. Raises NoMemoryError that names the sample."""
        try:
            return self._memory(role, nbytes)
        except NoMemoryError as error:
            key = self.manifest.key(int(self._columns["shard"][index]))
            raise NoMemoryError(
                f"sample {index} in shard {key} needs {nbytes} bytes: {error.what}",
                remedy=error.remedy,
            ) from None

    def _memory(self, role: str, nbytes: int) -> memoryview:
        """Return the first ``nbytes`` of the scratch memory for ``role``.

        It is kept and only grows, since page faults of new memory cost more than the read into it.
        """
        have = self._scratch.get(role)
        if have is None or len(have) < nbytes:
            have = buffers.private(max(nbytes + nbytes // 4, 1 << 20)).array
            self._scratch[role] = have
        return have.data[:nbytes]

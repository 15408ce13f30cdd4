"""What a loader library is given, and what it must give back.

A plug-in is a class in one file that builds the library's own pipeline the way its documentation does. It gets a ``Source`` and yields
``Packed`` batches. Everything that belongs to the dataset (codec, decoding, crop) is the same function for all of them, ``Undo``, so that
what differs between two loaders is the loaders.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from ...formats.base import split_codec
from ...registry import CODECS, CONTENTS, FORMATS
from ...spec.manifest import Manifest
from ...spec.workload import LoaderSpec, ReaderSpec
from ...storage.base import Storage
from ...storage.catalog import local_root
from ..delivered import Stats, own_stats
from ..loader import worker_start

SHUFFLE_BUFFER = 1000
"""Samples in the shuffle buffer of loaders that stream: webdataset's own default, and datasets'."""


class Packed(NamedTuple):
    """A batch: uint8 tensor with all samples one after the other, their lengths in bytes, and what they cost."""

    data: torch.Tensor
    lengths: npt.NDArray[np.int64]
    stats: Stats


class Library(Protocol):
    """A loader library. ``__init__`` may be slow (it is start-up, not reading); ``epoch`` yields the batches of one rank.

    ``formats``: the dataset formats that it reads; () for all whose samples are byte ranges of shards. ``shards_each``: every worker of
    every rank needs a shard of its own. ``layout``: it reads files of its own making, which ``convert`` writes once. ``local``: it opens
    files by path, so the data must lie in a directory; others read through the storage where it is not one.
    """

    package: ClassVar[str]  # whose version is recorded
    formats: ClassVar[tuple[str, ...]]
    shards_each: ClassVar[bool]
    layout: ClassVar[bool]
    local: ClassVar[bool]

    def __init__(self, source: Source) -> None: ...

    def epoch(self, epoch: int) -> Iterator[Packed]: ...

    def close(self) -> None:
        """End what still runs: threads, processes, files."""


class Converts(Library, Protocol):
    """A library with a layout of its own."""

    @classmethod
    def convert(cls, source: Source, folder: Path) -> None:
        """Write all samples of the dataset into ``folder``, in their order, in one go."""


class Sample(NamedTuple):
    """One sample on its way into a batch, and what it cost until then."""

    data: npt.NDArray[np.uint8]
    stored: int  # bytes
    started_ns: int
    read_ns: int
    prep_ns: int


@dataclass(frozen=True)
class Source:
    """The dataset and the settings, for one rank of ``world``. ``layout``: the folder of a library's own files, if it has some."""

    manifest: Manifest
    storage: Storage
    reading: ReaderSpec
    loading: LoaderSpec
    batch_size: int
    rank: int = 0
    world: int = 1
    seed: int = 0
    layout: Path | None = None

    @property
    def drop_last(self) -> bool:
        return self.reading.tail == "drop"

    def path(self, shard: int) -> str | None:
        """Of a shard that is a local file; None where only the storage can read it."""
        root = local_root(self.storage)
        return str(root / self.manifest.key(shard)) if root is not None else None

    def open(self, shard: int) -> BinaryIO:
        """A shard as a file, buffered by Python as any ``open`` is."""
        path = self.path(shard)
        if path is not None:
            return open(path, "rb")
        raw = _Object(self.storage, self.manifest.key(shard), int(self.manifest.shards["size"][shard]))
        return io.BufferedReader(raw, self.reading.block_size)

    def stored(self, index: int) -> bytes:
        """The stored bytes of one sample, as a map-style dataset reads them: open, seek, read, close."""
        columns = self.manifest.samples
        shard, offset, size = int(columns["shard"][index]), int(columns["offset"][index]), int(columns["stored"][index])
        path = self.path(shard)
        if path is not None:
            with open(path, "rb", buffering=0) as file:
                if offset:
                    file.seek(offset)
                return file.read(size)
        buffer = bytearray(size)
        read = self.storage.read_into(self.manifest.key(shard), offset, memoryview(buffer))
        return bytes(buffer) if read == size else bytes(buffer[:read])

    def order(self, epoch: int) -> list[int]:
        """The samples of this rank as torch's DistributedSampler deals them, but that none is dealt twice to make shares equal."""
        count = self.manifest.sample_count
        generator = torch.Generator().manual_seed(self.seed + epoch)
        order = torch.randperm(count, generator=generator) if self.reading.shuffle else torch.arange(count)
        return order[self.rank :: self.world].tolist()

    def batches(self, epoch: int) -> Iterator[list[int]]:
        """``order`` cut into batches."""
        order = self.order(epoch)
        end = len(order) - len(order) % self.batch_size if self.drop_last else len(order)
        return (order[start : min(start + self.batch_size, end)] for start in range(0, end, self.batch_size))


class Undo:
    """Stored bytes to a delivered sample in memory of its own: decompress, decode, crop; the same for every library."""

    def __init__(self, source: Source) -> None:
        spec, header = source.manifest.spec, source.manifest.header
        name, _ = split_codec(spec.codec)
        # Formats that are read by blocks compress by themselves; so what a row is worth in stored bytes is known on average only.
        blocks = bool(getattr(FORMATS.load(spec.format), "blocks", False))
        plain = blocks or source.layout is not None
        self._codec = None if name == "none" or plain else CODECS.load(name)
        self._per_byte = header.stored_bytes / max(1, header.sample_bytes) if plain else 1.0
        self._sizes = source.manifest.samples["size"]
        self._content = CONTENTS.load(spec.content)
        self._decode, self._crop = source.reading.decode and spec.content != "raw", source.reading.crop

    def __call__(self, stored: bytes | memoryview, index: int | None, started_ns: int, read_ns: int) -> Sample:
        """``index`` is needed where a codec must be told how long the sample will be."""
        clock = time.monotonic_ns()
        content = memoryview(stored)
        if self._codec is not None:
            assert index is not None
            plain = np.empty(int(self._sizes[index]), np.uint8)
            if self._codec.decompress(content, plain.data) != len(plain):
                raise ValueError(f"sample {index} does not decompress to its {len(plain)} bytes")
            content = plain.data
        if self._decode and self._content.in_place:
            begin, end = self._content.locate(content)
            content = content[begin:end]
        elif self._decode:
            out = np.empty(self._content.decoded_bytes(content), np.uint8)
            content = out.data[: self._content.decode(content, out.data)]
        data = np.frombuffer(content[: self._crop], np.uint8)
        return Sample(data, round(len(stored) * self._per_byte), started_ns, read_ns, time.monotonic_ns() - clock)


class ByIndex(Dataset[Sample]):
    """A map-style dataset: one open, read and decode for each sample."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.undo = Undo(source)

    def __len__(self) -> int:
        return self.source.manifest.sample_count

    def __getitem__(self, index: int) -> Sample:
        started = time.monotonic_ns()
        stored = self.source.stored(index)
        return self.undo(stored, index, started, time.monotonic_ns() - started)


class Order(Sampler[int]):
    """A rank's samples in the order of the epoch that was set last."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        return iter(self.source.order(self.epoch))

    def __len__(self) -> int:
        return len(range(self.source.rank, self.source.manifest.sample_count, self.source.world))


class Timed:
    """Iterates over what a library's reading stage yields, and says how long each took: (item, started_ns, read_ns)."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[tuple[Any, int, int]]:
        items = iter(self.items)
        while True:
            started = time.monotonic_ns()
            try:
                item = next(items)
            except StopIteration:
                return
            yield item, started, time.monotonic_ns() - started


def collate(samples: Sequence[Sample]) -> Packed:
    """A batch as torch's default collate makes it: a fresh tensor; of samples that differ in length, one after the other."""
    parts = [torch.from_numpy(sample.data if sample.data.flags.writeable else sample.data.copy()) for sample in samples]
    lengths = np.array([len(part) for part in parts], np.int64)
    equal = bool(len(parts)) and bool((lengths == lengths[0]).all())
    data = default_collate(parts).reshape(-1) if equal else torch.cat(parts)
    stored = sum(sample.stored for sample in samples)
    stats = own_stats(
        samples=len(samples),
        stored=stored,
        started_ns=min(sample.started_ns for sample in samples),
        read_ns=sum(sample.read_ns for sample in samples),
        prep_ns=sum(sample.prep_ns for sample in samples),
    )
    return Packed(data, lengths, stats)


def shared_number() -> torch.Tensor:
    """A whole number that worker processes see change."""
    return torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call, no-any-return]


class Workers(DataLoader[Any]):
    """torch's DataLoader with the workload's settings; workers are ended with the process that made them."""

    def __init__(self, dataset: Any, loading: LoaderSpec, **arguments: Any) -> None:
        super().__init__(dataset, **worker_arguments(loading), **arguments)

    def check_worker_number_rationality(self) -> None:
        """torch warns of more workers than cores; here that is something to measure."""

    def stop(self) -> None:
        end_workers(self)


def worker_arguments(loading: LoaderSpec) -> dict[str, Any]:
    """What a DataLoader is told about its workers."""
    if not loading.workers:
        return {"num_workers": 0}
    return {
        "num_workers": loading.workers,
        "prefetch_factor": loading.prefetch_factor,
        "persistent_workers": loading.persistent_workers,
        "multiprocessing_context": loading.start_method,
        "worker_init_fn": worker_start(loading.start_method),
    }


def end_workers(loader: DataLoader[Any]) -> None:
    """End a DataLoader's processes now rather than when it is collected."""
    iterator = getattr(loader, "_iterator", None)
    if iterator is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
        loader._iterator = None


class _Object(io.RawIOBase):
    """An object of any storage as a file."""

    def __init__(self, storage: Storage, key: str, size: int) -> None:
        self._storage, self._key, self._size, self._position = storage, key, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        want = min(len(buffer), self._size - self._position)
        if want <= 0:
            return 0
        done = self._storage.read_into(self._key, self._position, memoryview(buffer).cast("B")[:want])
        self._position += done
        return done

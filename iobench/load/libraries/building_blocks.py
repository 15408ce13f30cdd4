"""What plug-ins build their pipelines of.

Samples decoded, timed and collated, and torch's parts with the workload's settings. Everything that
depends on the dataset (codec, decoding, crop) is done by one class for all libraries, ``Decoder``,
so that two libraries differ only in how they load.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from ...data import dataset as resolved
from ...settings.workload import LoaderSpec
from ...storage.base import Retries
from ..loader import worker_start
from ..requests import RetryCount, own_stats
from ..torch_compat import end_workers
from .base import Packed, Source

SHUFFLE_BUFFER = 1000
"""Samples in the shuffle buffer of streaming loaders: the default of webdataset and datasets."""


class Sample(NamedTuple):
    """One sample before it is in a batch, with its cost so far; times in nanoseconds."""

    data: npt.NDArray[np.uint8]
    stored: int  # bytes
    started_ns: int
    read_ns: int
    prep_ns: int


class Decoder:
    """Turns stored bytes into a sample in its own memory: decompress, decode, crop."""

    def __init__(self, source: Source) -> None:
        header, dataset = source.manifest.header, resolved.ResolvedSpec.of(source.manifest)
        # Formats that are read by blocks compress by themselves, and the bytes of a library's own
        # layout are decompressed: the stored bytes of one sample are known only on average.
        plain = dataset.blocks or source.layout is not None
        self._codec = None if dataset.codec.plain or plain else dataset.codec
        self._per_byte = header.stored_bytes / max(1, header.sample_bytes) if plain else 1.0
        self._sizes = source.manifest.samples["size"]
        self._content = dataset.content
        self._decode, self._crop = (
            source.reading.decode and not self._content.plain,
            source.reading.crop,
        )

    def __call__(
        self, stored: bytes | memoryview, index: int | None, started_ns: int, read_ns: int
    ) -> Sample:
        """A sample. ``index``: needed if a codec must know the sample's size.

        Raises ValueError if the bytes are damaged.
        """
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
        return Sample(
            data,
            round(len(stored) * self._per_byte),
            started_ns,
            read_ns,
            time.monotonic_ns() - clock,
        )


class ByIndex(Dataset[Sample]):
    """A map-style dataset: one open, read and decoding for each sample."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.decoder = Decoder(source)

    def __len__(self) -> int:
        return self.source.manifest.sample_count

    def __getitem__(self, index: int) -> Sample:
        started = time.monotonic_ns()
        stored = self.source.stored(index)
        return self.decoder(stored, index, started, time.monotonic_ns() - started)


class Order(Sampler[int]):
    """A rank's samples in the order of ``epoch``, which is set from outside."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        return iter(self.source.order(self.epoch))

    def __len__(self) -> int:
        return len(range(self.source.rank, self.source.manifest.sample_count, self.source.world))


class Timed:
    """Iterates over the items of a library's reading stage: (item, started_ns, read_ns)."""

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


class Collate:
    """Makes a batch as torch's default collate does.

    The batch is a new tensor; samples of different lengths follow one another. It counts the
    requests that the storage retried in this process since the previous batch.
    """

    def __init__(self, source: Source) -> None:
        self._retries = RetryCount(source.storage)

    def __call__(self, samples: Sequence[Sample]) -> Packed:
        return collate(samples, self._retries.take())


def collate(samples: Sequence[Sample], again: Retries | None = None) -> Packed:
    """A batch; ``again``: retried requests, none for libraries that read files by path."""
    parts = [
        torch.from_numpy(sample.data if sample.data.flags.writeable else sample.data.copy())
        for sample in samples
    ]
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
        again=again or Retries(),
    )
    return Packed(data, lengths, stats)


def shared_number() -> torch.Tensor:
    """A whole number in shared memory, whose changes worker processes see."""
    number = torch.zeros(1, dtype=torch.int64)
    return number.share_memory_()  # type: ignore[no-untyped-call, no-any-return]


class Workers(DataLoader[Any]):
    """torch's DataLoader with the workload's settings; workers end with their parent process."""

    def __init__(self, dataset: Any, loading: LoaderSpec, **arguments: Any) -> None:
        super().__init__(dataset, **worker_arguments(loading), **arguments)

    def check_worker_number_rationality(self) -> None:
        """torch warns of more workers than cores; here that may be what is measured."""

    def stop(self) -> None:
        end_workers(self)


def worker_arguments(loading: LoaderSpec) -> dict[str, Any]:
    """The DataLoader's arguments about its workers."""
    if not loading.workers:
        return {"num_workers": 0}
    return {
        "num_workers": loading.workers,
        "prefetch_factor": loading.prefetch_factor,
        "persistent_workers": loading.persistent_workers,
        "multiprocessing_context": loading.start_method,
        "worker_init_fn": worker_start(loading.start_method),
    }

"""What a loader library is given, and what it must return.

A plug-in is a subclass of ``Library`` in a file of its own, which builds the library's pipeline as
the library's documentation does. It gets a ``Source`` and yields ``Packed`` batches.
building_blocks.py holds the parts that plug-ins share.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ...base.errors import DatasetError
from ...data.dataset import index_file
from ...record.manifest import Manifest
from ...settings.workload import LoaderSpec, ReaderSpec
from ...storage.base import Files, Storage, read_object
from ...storage.files import StorageFile
from ..engines.base import ends_early
from ..requests import Stats


class Library(ABC):
    """A loader library for one rank. A plug-in overrides only what is different.

    ``__init__`` may be slow: its time counts as start-up, not as reading.
    """

    package: ClassVar[str]
    """The package whose version is recorded."""
    formats: ClassVar[tuple[str, ...]] = ()
    """The dataset formats that it reads; (): all whose samples are byte ranges of shards."""
    shards_each: ClassVar[bool] = False
    """Whether every worker of every rank needs a shard of its own."""
    local: ClassVar[bool] = False
    """Whether it opens files by path, so that the data must be in a local directory. Other
    libraries read through the storage if it is not local."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @abstractmethod
    def epoch(self, epoch: int) -> Iterator[Packed]:
        """The batches of this rank in one epoch."""

    def close(self) -> None:
        """End everything that still runs: threads, processes, open files."""
        return


class Converts(Library):
    """A library with its own layout, which is written once, before any instance is made."""

    local = True
    writes: ClassVar[tuple[str, ...]] = ()
    """Names of the files that the library writes; ``*``: any characters except a slash.

    Files of other names that a killed ``convert`` leaves are not recognized, and stay.
    """

    @classmethod
    @abstractmethod
    def convert(cls, source: Source, folder: Path) -> None:
        """Write all samples of the dataset into ``folder``, in order, in one call."""

    @classmethod
    def check(cls, folder: Path, files: Collection[str]) -> None:
        """Check, before the library reads a layout, that it is as ``convert`` writes it.

        A layout comes with its dataset, and may come from others. A library needs this check if its
        files tell it more than where samples lie, such as another folder or code to run. ``files``:
        the names in the layout's record. Raises ValueError.
        """


class Packed(NamedTuple):
    """A batch.

    ``data``: uint8, all samples one after the other. ``lengths``: of each sample in bytes.
    ``stats``: what the batch cost.
    """

    data: torch.Tensor
    lengths: npt.NDArray[np.int64]
    stats: Stats


@dataclass(frozen=True)
class Source:
    """The dataset and the settings for one rank of ``world``.

    ``layout``: the folder with the library's own files, if it has a layout.
    """

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
        """The path of a shard that is a local file; None if only the storage can read it.

        Raises StorageError if it is not a regular file, or a symbolic link leads out of the root.
        """
        if self._files is None:
            return None
        return str(self._files.local_path(self.manifest.key(shard)))

    @cached_property
    def _files(self) -> Files | None:
        """The storage if it has local files; kept, since the check takes microseconds."""
        return self.storage if isinstance(self.storage, Files) else None

    def check_index(self) -> None:
        """Check that the format's index is as generated: it tells other readers what to open.

        Raises DatasetError, StorageError.
        """
        expected = index_file(self.manifest)
        if expected is not None and read_object(self.storage, expected[0]) != expected[1]:
            raise DatasetError(
                f"{expected[0]} is not the index of this dataset",
                remedy="generate the dataset again",
            )

    def open(self, shard: int) -> BinaryIO:
        """A shard as a file with Python's usual buffering."""
        path = self.path(shard)
        if path is not None:
            return open(path, "rb")
        raw = StorageFile(
            self.storage, self.manifest.key(shard), int(self.manifest.shards["size"][shard])
        )
        return io.BufferedReader(raw, self.reading.block_size)

    def stored(self, index: int) -> bytes:
        """The stored bytes of one sample: open, seek, read and close, as map-style datasets do."""
        columns = self.manifest.samples
        shard, offset, size = (
            int(columns["shard"][index]),
            int(columns["offset"][index]),
            int(columns["stored"][index]),
        )
        path = self.path(shard)
        if path is not None:
            with open(path, "rb", buffering=0) as file:
                if offset:
                    file.seek(offset)
                return self.whole(index, file.read(size))
        buffer = bytearray(size)
        read = self.storage.read_into(self.manifest.key(shard), offset, memoryview(buffer))
        return self.whole(index, bytes(buffer[:read]))

    def whole(self, index: int, found: bytes) -> bytes:
        """The stored bytes of a sample. Raises StorageError if its shard ends before them."""
        shard, offset, size = (
            int(self.manifest.samples[name][index]) for name in ("shard", "offset", "stored")
        )
        if len(found) < size:
            raise ends_early(self.manifest.key(shard), offset + len(found), offset + size)
        return found

    def order(self, epoch: int) -> list[int]:
        """The samples of this rank in order, as torch's DistributedSampler distributes them.

        Unlike there, no sample is repeated to make the ranks' parts equal.
        """
        count = self.manifest.sample_count
        generator = torch.Generator().manual_seed(self.seed + epoch)
        order = (
            torch.randperm(count, generator=generator)
            if self.reading.shuffle
            else torch.arange(count)
        )
        return order[self.rank :: self.world].tolist()

    def batches(self, epoch: int) -> Iterator[list[int]]:
        """``order``, cut into batches."""
        order = self.order(epoch)
        end = len(order) - len(order) % self.batch_size if self.drop_last else len(order)
        return (
            order[start : min(start + self.batch_size, end)]
            for start in range(0, end, self.batch_size)
        )

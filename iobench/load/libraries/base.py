"""What a loader library is given, and what it must give back.

A plug-in is a subclass of ``Library`` in one file that builds the library's own pipeline the way its documentation does. It gets a
``Source`` and yields ``Packed`` batches. pieces.py has what plug-ins have in common.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from ...dataset import index_file
from ...errors import DatasetError
from ...schema.manifest import Manifest
from ...schema.workload import LoaderSpec, ReaderSpec
from ...storage.base import Files, Storage
from ...storage.catalog import local_root, read_object
from ...storage.files import StorageFile
from ..delivered import Stats


class Library(ABC):
    """A loader library for one rank. ``__init__`` may be slow (it is start-up, not reading). A plug-in states only what differs."""

    package: ClassVar[str]
    """Whose version is recorded."""
    formats: ClassVar[tuple[str, ...]] = ()
    """The dataset formats that it reads; () for all whose samples are byte ranges of shards."""
    shards_each: ClassVar[bool] = False
    """Every worker of every rank needs a shard of its own."""
    layout: ClassVar[bool] = False
    """It reads files of its own making (see ``Converts``)."""
    local: ClassVar[bool] = False
    """It opens files by path, so the data must lie in a directory; others read through the storage where it is not one."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @abstractmethod
    def epoch(self, epoch: int) -> Iterator[Packed]:
        """The batches of the rank."""

    def close(self) -> None:
        """End what still runs: threads, processes, files."""
        return


class Converts(Library):
    """A library with a layout of its own, which is written once, before any instance is made."""

    layout = True
    local = True
    writes: ClassVar[tuple[str, ...]] = ()
    """How the library names the files that it writes, ``*`` for any characters but a slash.

    What a killed ``convert`` leaves under other names is taken for somebody else's, and stays.
    """

    @classmethod
    @abstractmethod
    def convert(cls, source: Source, folder: Path) -> None:
        """Write all samples of the dataset into ``folder``, in their order, in one go."""

    @classmethod
    def check(cls, folder: Path, files: Collection[str]) -> None:
        """Whether a layout that was found is as ``convert`` writes it, before the library reads it.

        A layout comes with the dataset, and may come from others. A library that believes more of
        its files than where samples lie (another folder, code to run) needs this. ``files``: the
        names in the layout's record. Raises ValueError.
        """


class Packed(NamedTuple):
    """A batch: uint8 tensor with all samples one after the other, their lengths in bytes, and what they cost."""

    data: torch.Tensor
    lengths: npt.NDArray[np.int64]
    stats: Stats


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
        """Of a shard that is a local file; None where only the storage can read it.

        Raises StorageError for one that is no regular file, or lies elsewhere by a link.
        """
        if local_root(self.storage) is None:
            return None
        files = cast(Files, self.storage)  # asking for the protocol takes microseconds
        return str(files.local_path(self.manifest.key(shard)))

    def check_index(self) -> None:
        """The format's index is the one that generate wrote: it tells other readers what to open.

        Raises DatasetError, StorageError.
        """
        expected = index_file(self.manifest)
        if expected is not None and read_object(self.storage, expected[0]) != expected[1]:
            raise DatasetError(
                f"{expected[0]} is not the index of this dataset",
                remedy="generate the dataset again",
            )

    def open(self, shard: int) -> BinaryIO:
        """A shard as a file, buffered by Python as any ``open`` is."""
        path = self.path(shard)
        if path is not None:
            return open(path, "rb")
        raw = StorageFile(
            self.storage, self.manifest.key(shard), int(self.manifest.shards["size"][shard])
        )
        return io.BufferedReader(raw, self.reading.block_size)

    def stored(self, index: int) -> bytes:
        """The stored bytes of one sample, as a map-style dataset reads them: open, seek, read, close."""
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
                return file.read(size)
        buffer = bytearray(size)
        read = self.storage.read_into(self.manifest.key(shard), offset, memoryview(buffer))
        return bytes(buffer) if read == size else bytes(buffer[:read])

    def order(self, epoch: int) -> list[int]:
        """The samples of this rank as torch's DistributedSampler deals them, but that none is dealt twice to make shares equal."""
        count = self.manifest.sample_count
        generator = torch.Generator().manual_seed(self.seed + epoch)
        order = (
            torch.randperm(count, generator=generator)
            if self.reading.shuffle
            else torch.arange(count)
        )
        return order[self.rank :: self.world].tolist()

    def batches(self, epoch: int) -> Iterator[list[int]]:
        """``order`` cut into batches."""
        order = self.order(epoch)
        end = len(order) - len(order) % self.batch_size if self.drop_last else len(order)
        return (
            order[start : min(start + self.batch_size, end)]
            for start in range(0, end, self.batch_size)
        )

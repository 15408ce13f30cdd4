"""How samples are stored in a shard: the last of three independent choices, applied in this order::

    content   what one sample's bytes look like      raw | npz | jpeg          data/contents/base.py
    codec     how those bytes are compressed         none | gzip | zstd | lz4  data/codecs/base.py
    format    how samples are stored in a shard      files | tar | tfrecord    this module

A sample's stored bytes stay contiguous within its shard, so any sample is one range read (manifest:
shard, offset, stored). A format keeps no state, does no IO, and is used from many threads at once.

There are three kinds. Most put a frame around each sample (``Framed``). A format whose files can't
be written sample by sample builds a whole shard at a time (``Assembled``), and applies the codec
itself. A format that can't be read sample by sample either (``Blocks``) is read block by block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from ...base.buffers import Buffer
from ...settings.dataset import DatasetSpec
from ..codecs.base import Codec

Array = npt.NDArray[np.int64]


class Frame(NamedTuple):
    """What surrounds a sample's stored bytes in its shard."""

    head: bytes
    tail: bytes


class Format:
    """What all three kinds of formats have in common. A plug-in subclasses one of the kinds."""

    name: ClassVar[str]

    suffix: ClassVar[str] = ""
    """Suffix of a shard's file name, with its dot; '' if content and codec determine the suffix."""

    one_sample_per_shard: ClassVar[bool] = False

    has_checksums: ClassVar[bool] = False

    access: ClassVar[Literal["auto", "random"]] = "auto"
    """What ``reader.access: auto`` means for shards of many samples: "random" if samples are read
    in random order, "auto" if shards are read front to back.
    """

    framing_bytes: ClassVar[int] = 1024
    """Roughly the most bytes that the format adds to a sample; used to check the free space."""

    writes_with: ClassVar[str] = ""
    """The Python package that is needed for writing but not for reading; '' for none."""

    index_name: ClassVar[str] = ""
    """Name of the index file, in the shards' directory, that other readers need; '' for none."""

    class_folders: ClassVar[bool] = False
    """Whether the samples of each class lie in a folder of their own, if they have labels."""

    def labelled(self, labels: int) -> Self:
        """Return this format for samples of ``labels`` classes, whose labels it writes.

        Raises ValueError if it has no place for labels.
        """
        raise ValueError(f"format '{self.name}' has no place for labels")

    def check_spec(self, spec: DatasetSpec, codec: Codec) -> None:
        """Raise ValueError for a dataset that the format can't hold. ``codec`` is the spec's."""

    def index(self, names: Sequence[str], sizes: Array, samples: Array) -> bytes:
        """Return the index file's bytes for shards of these file names, bytes and samples."""
        raise NotImplementedError(f"format '{self.name}' states an index_name but has no index()")


class Framed(Format):
    """A format that puts a frame around each sample. The frames of this base class are empty."""

    def frame(self, index: int, suffix: str, stored: Buffer) -> Frame:
        """Frame of sample number ``index``; ``suffix``: content's and codec's ('.npz.zst')."""
        return _BARE

    def margins(self, index: int, suffix: str, stored: int) -> tuple[int, int]:
        """Lengths of the head and the tail that ``frame`` puts around ``stored`` bytes."""
        return 0, 0

    def finish(self, size: int) -> bytes:
        """Bytes that close a shard which is ``size`` bytes long so far."""
        return b""

    def check(self, framed: Buffer) -> None:
        """Verify the format's own checksums of one sample (head + stored + tail).

        Formats with ``has_checksums`` override it. Raises ValueError if a checksum fails.
        """


class Assembled(Format, ABC):
    """A format that builds a whole shard, and applies the dataset's codec itself."""

    max_shard_bytes: ClassVar[int] = 0
    """Limit for the bytes of samples in a shard that is built in memory; 0: there is none."""

    def check_shard(self, spec: DatasetSpec) -> None:
        """Raise ValueError if the dataset's shards are larger than ``max_shard_bytes``."""
        mean = spec.sample_size.mean_bytes
        shard = max(mean, spec.shard_size or (spec.samples_per_shard or 1) * mean)
        if shard > self.max_shard_bytes:
            raise ValueError(
                f"format '{self.name}' builds each shard in memory, at most "
                f"{self.max_shard_bytes >> 30} GiB, but these have {shard / 2**30:.1f} GiB; lower "
                "samples_per_shard or shard_size"
            )

    @abstractmethod
    def assemble(
        self,
        contents: Iterator[Buffer],
        sizes: Array,
        write: Callable[[bytes | Buffer], None],
        *,
        spec: DatasetSpec,
        codec: Codec,
    ) -> tuple[Array, Array]:
        """Write one shard, front to back; return (offset, stored) of each sample, int64 [samples].

        ``contents`` yields the samples' contents, of ``sizes`` bytes (int64 [samples]). Its memory
        is reused, so a buffer is valid only until the next one is taken. The same arguments must
        give the same bytes.
        """


class BlockRows(Protocol):
    """The samples of one block, decoded."""

    @property
    def count(self) -> int: ...

    @property
    def even(self) -> bool:
        """Whether all samples have the same size, so that ``scatter`` can be used."""

    @property
    def sizes(self) -> Array:
        """Bytes of each sample."""

    def content(self, row: int) -> Buffer:
        """The content of one sample; ``row`` counts within the block."""

    def copy(self, row: int, out: npt.NDArray[np.uint8]) -> None:
        """Copy the first ``len(out)`` bytes of one sample to ``out``."""

    def scatter(self, rows: Array, out: npt.NDArray[np.uint8], where: Array) -> None:
        """Copy the first bytes of many samples to the rows ``where`` of ``out`` [rows, bytes]."""


class BlockShard(Protocol):
    """A shard of blocks, opened from the bytes behind its last block. Not thread-safe.

    The only implementation is ``parquet_shard.py``. Methods raise ValueError if the shard is
    damaged.
    """

    groups: int
    nbytes: int

    def rows(self, group: int) -> int:
        """Number of samples that a block claims to hold."""

    def chunk(self, group: int, place: int) -> tuple[int, int]:
        """(begin, end) of a block's column number ``place``: offsets in the shard, in bytes."""

    def extent(self, group: int) -> tuple[int, int]:
        """(begin, end) of all columns of a block: offsets in the shard, in bytes."""

    def decode(
        self,
        group: int,
        columns: int | None,
        parts: Sequence[tuple[int, Buffer]],
        *,
        check: bool,
        most: int | None = None,
    ) -> BlockRows:
        """Decode the samples of a block, or only their first ``columns`` columns.

        ``parts``: the bytes of the shard that are in memory, as (offset, bytes). ``most``: limit
        for the decoded bytes of the samples.
        """


class Blocks(Assembled):
    """A format that is read block by block: ``offset`` and ``stored`` describe a sample's block.

    A sample may be cut into columns (``DatasetSpec.columns``).
    """

    block_bytes: ClassVar[int] = 4 << 20
    """Bytes of samples in a block, if the dataset's specification states no ``block_size``."""

    @abstractmethod
    def prefix(self, sizes: Array, *, columns: int, of: int) -> Array:
        """Bytes of the first ``columns`` columns of samples of these sizes, cut into ``of``."""

    @abstractmethod
    def footer_bytes(self, tail: Buffer, size: int) -> int:
        """Return how many of a shard's last bytes ``open`` needs.

        ``tail``: at least the last eight bytes of the shard; ``size``: bytes of the shard. Raises
        ValueError.
        """

    @abstractmethod
    def open(self, tail: Buffer, size: int) -> BlockShard:
        """Open a shard of ``size`` bytes.

        ``tail``: the shard's last bytes, at least ``footer_bytes`` of them. Raises ValueError.
        """


_BARE = Frame(b"", b"")

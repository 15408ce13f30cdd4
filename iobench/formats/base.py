"""How samples lie in a shard: the last of three independent choices, applied in this order::

    content   what one sample's bytes look like      raw | npz | jpeg          contents/base.py
    codec     how those bytes are compressed         none | gzip | zstd | lz4  codecs/base.py
    format    how samples lie in a shard             files | tar | tfrecord    this module

A sample's stored bytes stay contiguous within its shard, so any sample is one range read (manifest:
shard, offset, stored). A format keeps no state, does no IO, and is used from many threads at once.

There are three kinds. Most put a frame around each sample (``Framed``). Those whose files can't be
written sample by sample build a shard at a time (``Assembled``), and may compress by themselves.
Those that can't be read sample by sample either (``Blocks``) are read a block at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..buffers import Buffer
from ..codecs.base import Codec
from ..schema.dataset import DatasetSpec

Array = npt.NDArray[np.int64]


class Frame(NamedTuple):
    """What surrounds a sample's stored bytes in its shard."""

    head: bytes
    tail: bytes


class Format(ABC):
    """What all three kinds have in common. A plug-in subclasses one of the kinds."""

    name: ClassVar[str]

    suffix: ClassVar[str] = ""
    """Of a shard's file name, with its dot; '' where content and codec name the file."""

    one_sample_per_shard: ClassVar[bool] = False

    has_checksums: ClassVar[bool] = False

    access: ClassVar[Literal["auto", "random"]] = "auto"
    """What ``reader.access: auto`` means for shards of many samples: "random" where samples are
    drawn at random from them, "auto" where shards are read front to back."""

    framing_bytes: ClassVar[int] = 1024
    """How many bytes it adds to a sample, about, at most; for the check of free space."""

    writes_with: ClassVar[str] = ""
    """The Python package that writing needs and reading does not; '' for none."""

    index_name: ClassVar[str] = ""
    """The file beside the shards that other readers of the format look for; '' for none."""

    def check_spec(self, spec: DatasetSpec, codec: Codec) -> None:  # noqa: B027 - nothing to refuse
        """Raises ValueError for a dataset that the format can't hold. ``codec`` is the spec's."""

    @abstractmethod
    def unpack(self, shard: Buffer, *, check: bool) -> Iterator[Buffer]:
        """The stored bytes of each sample of a shard in memory, in order, as views.

        Raises ValueError (one line, with the offset) for a shard that is truncated or malformed,
        and, with ``check``, for one whose own checksums fail. The shards of other writers must be
        readable, too. ``Assembled`` formats yield the samples' contents: whatever compresses them
        is the format's own.
        """

    def index(self, names: Sequence[str], sizes: Array, samples: Array) -> bytes:
        """The contents of ``index_name`` for shards of these file names, bytes and samples."""
        raise NotImplementedError(f"format '{self.name}' states an index_name and has no index()")


class Framed(Format):
    """Puts a frame around each sample. As it stands here, frames are empty."""

    def frame(self, index: int, suffix: str, stored: Buffer) -> Frame:
        """Framing of sample number ``index``; ``suffix``: content's and codec's ('.npz.zst')."""
        return _BARE

    def margins(self, index: int, suffix: str, stored: int) -> tuple[int, int]:
        """Lengths of the head and the tail that ``frame`` puts around ``stored`` bytes."""
        return 0, 0

    def finish(self, size: int) -> bytes:
        """What closes a shard that is ``size`` bytes long so far."""
        return b""

    def check(self, framed: Buffer) -> None:
        """Verify the format's own checksums of one sample (head + stored + tail).

        Defined where ``has_checksums``. Raises ValueError.
        """


class Assembled(Format):
    """Builds a whole shard, and compresses by itself, as the dataset's codec says."""

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
        """Write one shard, front to back; (offset, stored) of each sample, int64 [samples].

        ``contents`` yields the samples' contents, of ``sizes`` bytes (int64 [samples]), in the same
        memory again and again. The same arguments give the same bytes.
        """


class BlockRows(Protocol):
    """The samples of one block, decoded."""

    @property
    def count(self) -> int: ...

    @property
    def even(self) -> bool:
        """Whether all samples have one size, so that ``scatter`` can be used."""

    @property
    def sizes(self) -> Array:
        """Bytes of each sample."""

    def content(self, row: int) -> Buffer:
        """The content of one sample, counted within the block."""

    def copy(self, row: int, out: npt.NDArray[np.uint8]) -> None:
        """The first bytes of one sample, as many as ``out`` has."""

    def scatter(self, rows: Array, out: npt.NDArray[np.uint8], where: Array) -> None:
        """The first bytes of many samples to the places ``where`` of ``out`` [places, bytes]."""


class BlockShard(Protocol):
    """A shard of blocks, by what lies behind its last block. Not thread-safe.

    ``formats/parquet_shard.py`` is the one that there is. Methods raise ValueError for damage.
    """

    groups: int
    nbytes: int

    def rows(self, group: int) -> int:
        """Samples that a block claims to hold."""

    def chunk(self, group: int, place: int) -> tuple[int, int]:
        """Where the ``place``-th column of a block begins and ends, in bytes."""

    def extent(self, group: int) -> tuple[int, int]:
        """Where all columns of a block begin and end."""

    def decode(
        self,
        group: int,
        columns: int | None,
        parts: Sequence[tuple[int, Buffer]],
        *,
        check: bool,
        most: int | None = None,
    ) -> BlockRows:
        """The samples of a block, or their first ``columns`` columns; ``most`` bytes at most.

        ``parts`` of the shard are in memory: (offset, bytes).
        """


class Blocks(Assembled):
    """Read a block at a time: ``offset`` and ``stored`` are the extent of a sample's block.

    Its samples may be cut into columns (``DatasetSpec.columns``).
    """

    @abstractmethod
    def prefix(self, sizes: Array, *, columns: int, of: int) -> Array:
        """Bytes of the first ``columns`` columns of samples of these sizes, cut into ``of``."""

    @abstractmethod
    def footer_bytes(self, tail: Buffer, size: int) -> int:
        """How many of a shard's last bytes ``open`` needs, by at least its last eight.

        Raises ValueError.
        """

    @abstractmethod
    def open(self, tail: Buffer, size: int) -> BlockShard:
        """A shard of ``size`` bytes by what lies behind its last block. Raises ValueError."""


_BARE = Frame(b"", b"")

"""How samples lie in a shard: the last of three independent choices, applied in this order::

    content   what one sample's bytes look like      raw | npz | jpeg          contents/base.py
    codec     how those bytes are compressed         none | gzip | zstd | lz4  codecs/base.py
    format    how samples lie in a shard             files | tar | tfrecord    this module

A sample's stored bytes stay contiguous within its shard, so any sample is one range read (manifest: shard, offset, stored).
A plug-in is a class with these attributes and static or class methods; it keeps no state and is used from many threads.

Most formats put a frame around each sample (``Format``). Those whose files can't be written sample by sample build a shard at a time
(``Assembled``), and compress by themselves, as the dataset's codec says. Those that can't be read sample by sample either (``Blocks``)
are read a block at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..buffers import Buffer

Array = npt.NDArray[np.int64]


class Frame(NamedTuple):
    """What surrounds a sample's stored bytes in its shard."""

    head: bytes
    tail: bytes


class Format(Protocol):
    """How samples lie in a shard, each in a frame of its own.

    Optional: ``access = "random"`` where samples of one shard are drawn at random unless the reader is told otherwise; ``framing``, about
    how many bytes it adds to a sample at most (1024); ``check_spec(spec)``, which raises ValueError for a DatasetSpec that it can't hold.
    """

    name: ClassVar[str]
    suffix: ClassVar[str]  # of a shard's file name; '' where content and codec name the file
    one_sample_per_shard: ClassVar[bool]
    has_checksums: ClassVar[bool]

    @classmethod
    def frame(cls, index: int, suffix: str, stored: Buffer) -> Frame:
        """Framing of sample number ``index``; ``suffix`` is content suffix + codec suffix ('.npz.zst')."""

    @classmethod
    def margins(cls, index: int, suffix: str, stored: int) -> tuple[int, int]:
        """Lengths of the head and the tail that ``frame`` puts around ``stored`` bytes of sample ``index``."""

    @classmethod
    def finish(cls, size: int) -> bytes:
        """What closes a shard that is ``size`` bytes long so far."""

    @classmethod
    def unpack(cls, shard: Buffer, *, check: bool) -> Iterator[Buffer]:
        """The stored bytes of each sample of a shard in memory, in order, as views.

        Raises ValueError (one line, with the offset) for a shard that is truncated or malformed, and, with ``check``,
        for one whose own checksums fail. The foreign shards of other writers must be readable too.
        """

    @classmethod
    def check(cls, framed: Buffer) -> None:
        """Verify the format's own checksums of one framed sample (head + stored + tail). Raises ValueError.

        Formats without checksums do nothing.
        """


class Assembled(Protocol):
    """A format that builds a whole shard. It has ``check_spec``, and instead of ``frame``, ``margins``, ``finish`` and ``check`` this.

    Optional: ``writes_with``, the package that ``assemble`` needs and reading does not; ``index_name`` and
    ``index(names, sizes, samples)``, a file beside the shards that other readers look for.
    """

    name: ClassVar[str]
    suffix: ClassVar[str]
    one_sample_per_shard: ClassVar[bool]
    has_checksums: ClassVar[bool]

    @classmethod
    def check_spec(cls, spec: Any) -> None:
        """Raises ValueError for a DatasetSpec that the format can't hold: a codec that it does not know, for one."""

    @classmethod
    def assemble(
        cls,
        contents: Iterator[Buffer],
        sizes: Array,
        write: Callable[[bytes | Buffer], None],
        *,
        spec: Any,
    ) -> tuple[Array, Array]:
        """Write one shard, front to back, of samples with these ``contents`` and ``sizes``; int64 (offset, stored) of each.

        ``contents`` yields the same memory again and again. The same arguments give the same bytes.
        """

    @classmethod
    def unpack(cls, shard: Buffer, *, check: bool) -> Iterator[Buffer]:
        """As in Format, but the samples' contents: whatever compresses them is the format's own."""


class Blocks(Assembled, Protocol):
    """A format whose samples are read a block at a time (``blocks = True``): ``offset`` and ``stored`` are a sample's block's extent."""

    blocks: ClassVar[bool]

    @classmethod
    def prefix(cls, sizes: Array, *, columns: int, of: int) -> Array:
        """Bytes of the first ``columns`` columns of samples of these sizes that are split over ``of`` columns."""

    @classmethod
    def footer_bytes(cls, tail: Buffer, size: int) -> int:
        """How many of a shard's last bytes ``open`` needs, by at least its last eight. Raises ValueError."""

    @classmethod
    def open(cls, tail: Buffer, size: int) -> Any:
        """A shard of ``size`` bytes by what lies behind its last block. Raises ValueError. See formats/parquet_shard.py for what it does."""

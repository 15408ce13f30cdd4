"""Codecs: how the bytes of one sample are compressed; and the codec ``none``.

Decompression is limited by the output buffer: a stored stream that holds more is an error, and no
memory is allocated for the excess. The output of a codec depends only on the content, the level and
the version of the underlying library: there are no time stamps, and the framing does not depend on
threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ...base.buffers import Buffer

PIECE = 64 << 10
"""Compressed bytes per call, so that the decompressed piece is still in the CPU cache when it is
copied to its place.
"""


@dataclass(frozen=True)
class Codec(ABC):
    """A way to compress one sample's bytes, at one level. Used from many threads at once.

    ``Zstd(level=3)`` raises ValueError for a level that Zstandard does not have; ``level`` None is
    the codec's default. A subclass sets the class attributes, and defines the two methods.
    """

    name: ClassVar[str]

    suffix: ClassVar[str] = ""
    """Suffix that is added to the name of a compressed file, with its dot."""

    levels: ClassVar[range] = range(0)
    """The levels that the codec supports; an empty range for a codec without levels."""

    default_level: ClassVar[int | None] = None
    """The level that is used if none is given."""

    plain: ClassVar[bool] = False
    """Whether the stored bytes are the content itself, so that there is nothing to decompress."""

    decode_cost: ClassVar[float | None] = None
    """CPU time per decompressed byte, relative to zstd at level 1 (= 1); None: not known.

    Advice compares codecs by it, and never recommends a codec whose cost is not known.
    """

    parquet_names: ClassVar[tuple[str, ...]] = ()
    """Parquet's names of this page codec, first the one that pyarrow uses; () if it has none."""

    parquet_levels: ClassVar[bool] = True
    """Whether the codec's levels can be used for Parquet's pages."""

    level: int | None = None

    def __post_init__(self) -> None:
        if self.level is None or self.level in self.levels:
            return
        if not self.levels:
            raise ValueError(f"codec '{self.name}' has no levels (got {self.level})")
        raise ValueError(
            f"codec '{self.name}' has levels {self.levels[0]} to {self.levels[-1]} "
            f"(got {self.level})"
        )

    @property
    def used_level(self) -> int | None:
        """The level that was given, or else the default."""
        return self.default_level if self.level is None else self.level

    @abstractmethod
    def compress(self, content: Buffer) -> bytes | Buffer:
        """Return the stored bytes: the same for the same content, on every machine."""

    @abstractmethod
    def decompress(self, stored: Buffer, out: Buffer) -> int:
        """Decompress into ``out``, which is as long as the content; return the bytes written.

        Raises ValueError, in one line, if ``stored`` is truncated, damaged, followed by other
        bytes, or holds more than ``out``.
        """

    def append(self, out: Buffer, done: int, data: bytes) -> int:
        """Copy ``data`` into ``out`` at ``done``; return its end. Raises ValueError if too long."""
        if done + len(data) > len(out):
            raise self.too_long(out)
        out[done : done + len(data)] = data
        return done + len(data)

    def too_long(self, out: Buffer) -> ValueError:
        """The error for a stored stream that holds more than ``out``."""
        return ValueError(
            f"codec '{self.name}': the stored stream holds more than the {len(out)} bytes expected"
        )


class Identity(Codec):
    """Stores samples unchanged."""

    name: ClassVar[str] = "none"
    plain: ClassVar[bool] = True
    decode_cost: ClassVar[float | None] = 0.0
    parquet_names: ClassVar[tuple[str, ...]] = ("none", "uncompressed")

    def compress(self, content: Buffer) -> bytes | Buffer:
        return content

    def decompress(self, stored: Buffer, out: Buffer) -> int:
        if len(stored) > len(out):
            raise self.too_long(out)
        out[: len(stored)] = stored
        return len(stored)

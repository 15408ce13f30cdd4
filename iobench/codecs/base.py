"""How one sample's bytes are compressed.

Decompression is bounded by the output buffer: a stored stream that holds more is an error, and
takes no memory. Outputs are the same for one version of the underlying library: there are no time
stamps, and no framing that depends on threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ..buffers import Buffer

PIECE = 64 << 10
"""Compressed bytes handed over at a time, so that the decompressed piece is still in cache when it
is copied to its place."""


@dataclass(frozen=True)
class Codec(ABC):
    """A way to compress one sample's bytes, at one level. Used from many threads at once.

    ``Zstd(level=3)`` raises ValueError for a level that Zstandard does not have; ``level`` None is
    the codec's default. A subclass states the class attributes, and defines two methods.
    """

    name: ClassVar[str]

    suffix: ClassVar[str] = ""
    """What it adds to the name of a file that it has compressed, with its dot."""

    levels: ClassVar[range] = range(0)
    """The levels that it has; an empty range for a codec without levels."""

    default_level: ClassVar[int | None] = None
    """The level where none is given."""

    plain: ClassVar[bool] = False
    """Whether the stored bytes are the content itself, so that nothing has to be undone."""

    decode_cost: ClassVar[float | None] = None
    """CPU time for each byte that is decompressed, where zstd at level 1 is 1; None: not known.

    Advice orders codecs by it, and names none whose cost is not known.
    """

    parquet_names: ClassVar[tuple[str, ...]] = ()
    """What Parquet calls it as a codec of pages, first as pyarrow writes it; () if it is none."""

    parquet_levels: ClassVar[bool] = True
    """Whether Parquet's pages have its levels."""

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
        """The stored bytes: the same for the same content, on every machine."""

    @abstractmethod
    def decompress(self, stored: Buffer, out: Buffer) -> int:
        """Decompress into ``out``, which is as long as the content; the number of bytes written.

        Raises ValueError, in one line, for bytes that are truncated, damaged, followed by others,
        or that hold more than ``out``.
        """

    def append(self, out: Buffer, done: int, data: bytes) -> int:
        """Put ``data`` into ``out`` at ``done``; where it ends. Raises ValueError if too long."""
        if done + len(data) > len(out):
            raise self.too_long(out)
        out[done : done + len(data)] = data
        return done + len(data)

    def too_long(self, out: Buffer) -> ValueError:
        """The error for a stored stream that holds more than ``out``."""
        return ValueError(
            f"codec '{self.name}': the stored stream holds more than the {len(out)} bytes expected"
        )

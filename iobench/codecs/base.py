"""How one sample's bytes are compressed.

Decompression is bounded by the output buffer: a stored stream that holds more is an error, and
takes no memory. Outputs are the same for one version of the underlying library: there are no time
stamps, and no framing that depends on threads.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from ..buffers import Buffer

PIECE = 64 << 10
"""Compressed bytes handed over at a time: the decompressed piece is still in cache when it is copied to its place."""


class Codec(Protocol):
    """How a sample's bytes are compressed. ``level`` None is the codec's default."""

    name: ClassVar[str]
    suffix: ClassVar[str]

    @classmethod
    def check_level(cls, level: int | None) -> None:
        """Raises ValueError naming the valid levels."""

    @classmethod
    def compress(cls, content: Buffer, level: int | None) -> bytes | Buffer: ...

    @classmethod
    def decompress(cls, stored: Buffer, out: Buffer) -> int:
        """Decompress into ``out`` (as long as the content); the number of bytes written. Raises ValueError."""


def split_codec(text: str) -> tuple[str, int | None]:
    """``"zstd:3"`` -> ("zstd", 3); ``"zstd"`` -> ("zstd", None). Raises ValueError for a level that is no number."""
    name, colon, level = text.partition(":")
    if colon and not level.lstrip("-").isdigit():
        raise ValueError(f"codec '{text}': the level after ':' must be a whole number")
    return name, int(level) if colon else None


def append(name: str, out: Buffer, done: int, data: bytes) -> int:
    """Put ``data`` into ``out`` at ``done``; where it ends. Raises ValueError where it doesn't fit."""
    if done + len(data) > len(out):
        raise too_long(name, out)
    out[done : done + len(data)] = data
    return done + len(data)


def too_long(name: str, out: Buffer) -> ValueError:
    """For a stored stream that holds more than ``out``."""
    return ValueError(
        f"codec '{name}': the stored stream holds more than the {len(out)} bytes expected"
    )


def check_level(name: str, level: int | None, lowest: int, highest: int) -> None:
    """Raises ValueError that names the valid levels."""
    if level is not None and not lowest <= level <= highest:
        raise ValueError(f"codec '{name}' has levels {lowest} to {highest} (got {level})")

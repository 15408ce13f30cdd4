"""gzip (RFC 1952), by zlib."""

from __future__ import annotations

import zlib
from typing import ClassVar

from ..buffers import Buffer
from .base import PIECE, append, check_level

_EITHER = 47
"""What zlib takes for: a gzip or a zlib header, whichever is there."""


class Gzip:
    """gzip members (RFC 1952) without name or time; level 6 unless given, as gzip(1). It reads zlib's framing (RFC 1950), HDF5's, too."""

    name: ClassVar[str] = "gzip"
    suffix: ClassVar[str] = ".gz"

    @classmethod
    def check_level(cls, level: int | None) -> None:
        check_level(cls.name, level, 1, 9)

    @classmethod
    def compress(cls, content: Buffer, level: int | None) -> bytes | Buffer:
        stream = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, 31)
        return stream.compress(content) + stream.flush()

    @classmethod
    def decompress(cls, stored: Buffer, out: Buffer) -> int:
        done = 0
        stream = zlib.decompressobj(_EITHER)
        try:
            for start in range(0, len(stored), PIECE):
                piece: bytes | Buffer = stored[start : start + PIECE]
                while len(piece):
                    if stream.eof:  # another member follows, as gzip(1) allows
                        stream = zlib.decompressobj(_EITHER)
                    # One byte more than there is room for, so that an overflow shows.
                    data = stream.decompress(piece, len(out) - done + 1)
                    done = append(cls.name, out, done, data)
                    piece = stream.unused_data if stream.eof else stream.unconsumed_tail
        except zlib.error as error:
            raise ValueError(f"not a valid gzip stream: {error}") from None
        if not stream.eof:
            raise ValueError("gzip stream is truncated")
        return done

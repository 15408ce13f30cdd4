"""LZ4 frames, with the package lz4."""

from __future__ import annotations

from typing import ClassVar

from ...base.buffers import Buffer
from .base import PIECE, Codec

_GROWN = 4 << 20
"""Limit for decompressed bytes per call: the size of LZ4's largest block."""


class Lz4(Codec):
    """LZ4 frames; level 0 (fast) unless given."""

    name: ClassVar[str] = "lz4"
    suffix: ClassVar[str] = ".lz4"
    levels: ClassVar[range] = range(17)
    default_level: ClassVar[int | None] = 0
    decode_cost: ClassVar[float | None] = 0.45  # zstd / 2.9 to zstd / 1.8
    parquet_names: ClassVar[tuple[str, ...]] = ("lz4", "lz4_raw")
    parquet_levels: ClassVar[bool] = False

    def compress(self, content: Buffer) -> bytes | Buffer:
        import lz4.frame

        compressed: bytes = lz4.frame.compress(
            content, compression_level=self.used_level or 0, content_checksum=True
        )
        return compressed

    def decompress(self, stored: Buffer, out: Buffer) -> int:
        import lz4.frame

        stream = lz4.frame.LZ4FrameDecompressor()
        done = 0
        try:
            for start in range(0, len(stored), PIECE):
                piece: bytes | Buffer = stored[start : start + PIECE]
                while True:
                    if stream.eof:
                        raise ValueError("not a valid lz4 stream: bytes after the end of the frame")
                    # The library allocates as much memory as ``max_length`` allows.
                    data = stream.decompress(piece, max_length=min(_GROWN, len(out) - done + 1))
                    done = self.append(out, done, data)
                    if stream.eof and stream.unused_data:
                        raise ValueError("not a valid lz4 stream: bytes after the end of the frame")
                    if stream.eof or stream.needs_input:
                        break
                    piece = b""
        except RuntimeError as error:
            raise ValueError(f"not a valid lz4 stream: {' '.join(str(error).split())}") from None
        if not stream.eof:
            raise ValueError("lz4 stream is truncated")
        return done

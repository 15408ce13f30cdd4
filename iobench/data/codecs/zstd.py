"""Zstandard (RFC 8878), with the package zstandard."""

from __future__ import annotations

import threading
from typing import ClassVar

from ...base.buffers import Buffer
from .base import Codec

_local = threading.local()


class Zstd(Codec):
    """Zstandard frames (RFC 8878) that contain their content size; level 1 unless given.

    On tensors, level 3 is slower and does not compress better.
    """

    name: ClassVar[str] = "zstd"
    suffix: ClassVar[str] = ".zst"
    levels: ClassVar[range] = range(1, 23)
    default_level: ClassVar[int | None] = 1
    decode_cost: ClassVar[float | None] = 1.0
    parquet_names: ClassVar[tuple[str, ...]] = ("zstd",)

    def compress(self, content: Buffer) -> bytes | Buffer:
        import zstandard

        return zstandard.ZstdCompressor(level=self.used_level or 1).compress(content)

    def decompress(self, stored: Buffer, out: Buffer) -> int:
        import zstandard

        context = getattr(_local, "zstd", None)
        if context is None:
            context = _local.zstd = zstandard.ZstdDecompressor()
        try:
            expected = zstandard.frame_content_size(stored)
            if expected > len(out):
                raise self.too_long(out)
            # If the frame states its size and it fits, the library decompresses straight into the
            # output, without a window buffer.
            with context.stream_reader(stored, read_across_frames=True) as reader:
                done = int(reader.readinto(out)) if len(out) else 0
                if done == len(out) and reader.read(1):
                    raise self.too_long(out)
        except zstandard.ZstdError as error:
            raise ValueError(f"not a valid zstd stream: {error}") from None
        # The reader ends silently at the end of its input, so a short result means a truncated
        # stream.
        if done < (expected if expected >= 0 else len(out)):
            raise ValueError(
                f"zstd stream is truncated: {done} bytes of "
                f"{expected if expected >= 0 else len(out)}"
            )
        return done

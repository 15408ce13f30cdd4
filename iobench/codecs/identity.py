"""The codec ``none``: samples are stored without compression."""

from __future__ import annotations

from typing import ClassVar

from ..buffers import Buffer
from .base import Codec


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

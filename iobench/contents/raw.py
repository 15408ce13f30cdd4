"""Opaque bytes."""

from __future__ import annotations

from typing import ClassVar

from .. import payload
from ..buffers import Buffer
from .base import Content, fits


class Raw(Content):
    """Opaque bytes. Decoding copies them once, which any consumer has to do."""

    name: ClassVar[str] = "raw"
    suffix: ClassVar[str] = ".bin"
    plain: ClassVar[bool] = True
    in_place: ClassVar[bool] = True

    def locate(self, content: Buffer) -> tuple[int, int]:
        return 0, len(content)

    def build(self, out: Buffer, *, seed: int, index: int, compress_ratio: float) -> None:
        payload.fill(out, seed=seed, index=index, compress_ratio=compress_ratio)

    def build_for_columns(
        self, out: Buffer, *, seed: int, index: int, compress_ratio: float
    ) -> None:
        payload.fill_for_columns(out, seed=seed, index=index, compress_ratio=compress_ratio)

    def identify(self, content: Buffer) -> tuple[int, int] | None:
        return payload.identify(content)

    def decoded_bytes(self, content: Buffer) -> int:
        return len(content)

    def decode(self, content: Buffer, out: Buffer) -> int:
        fits(len(content), out)
        out[: len(content)] = content
        return len(content)

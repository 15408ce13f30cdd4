"""Opaque bytes."""

from __future__ import annotations

from typing import ClassVar

from ..buffers import Buffer
from . import payload
from .base import fits


class Raw:
    """Opaque bytes: decoding is the one copy that any consumer makes."""

    name: ClassVar[str] = "raw"
    suffix: ClassVar[str] = ".bin"
    min_bytes: ClassVar[int] = 1
    in_place: ClassVar[bool] = True
    max_expansion: ClassVar[int] = 1

    @classmethod
    def locate(cls, content: Buffer) -> tuple[int, int]:
        return 0, len(content)

    @classmethod
    def build(cls, out: Buffer, *, seed: int, index: int, compress_ratio: float) -> None:
        payload.fill(out, seed=seed, index=index, compress_ratio=compress_ratio)

    @classmethod
    def build_for_columns(
        cls, out: Buffer, *, seed: int, index: int, compress_ratio: float
    ) -> None:
        payload.fill_for_columns(out, seed=seed, index=index, compress_ratio=compress_ratio)

    @classmethod
    def identify(cls, content: Buffer) -> tuple[int, int] | None:
        return payload.identify(content)

    @classmethod
    def decoded_bytes(cls, content: Buffer) -> int:
        return len(content)

    @classmethod
    def decode(cls, content: Buffer, out: Buffer) -> int:
        fits(len(content), out)
        out[: len(content)] = content
        return len(content)

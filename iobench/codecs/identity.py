"""Samples stored as they are."""

from __future__ import annotations

from typing import ClassVar

from ..buffers import Buffer
from .base import too_long


class Identity:
    """Stored as is."""

    name: ClassVar[str] = "none"
    suffix: ClassVar[str] = ""

    @classmethod
    def check_level(cls, level: int | None) -> None:
        if level is not None:
            raise ValueError(f"codec 'none' has no levels (got {level})")

    @classmethod
    def compress(cls, content: Buffer, level: int | None) -> bytes | Buffer:
        return content

    @classmethod
    def decompress(cls, stored: Buffer, out: Buffer) -> int:
        if len(stored) > len(out):
            raise too_long(cls.name, out)
        out[: len(stored)] = stored
        return len(stored)

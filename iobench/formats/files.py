"""One file per sample: the stored bytes and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ..buffers import Buffer
from .base import Frame

_BARE = Frame(b"", b"")


class Files:
    """A shard is a sample; its file is named for content and codec."""

    name: ClassVar[str] = "files"
    suffix: ClassVar[str] = ""
    one_sample_per_shard: ClassVar[bool] = True
    has_checksums: ClassVar[bool] = False

    @classmethod
    def frame(cls, index: int, suffix: str, stored: Buffer) -> Frame:
        return _BARE

    @classmethod
    def margins(cls, index: int, suffix: str, stored: int) -> tuple[int, int]:
        return 0, 0

    @classmethod
    def finish(cls, size: int) -> bytes:
        return b""

    @classmethod
    def unpack(cls, shard: Buffer, *, check: bool) -> Iterator[Buffer]:
        yield shard

    @classmethod
    def check(cls, framed: Buffer) -> None:
        """Nothing to check: there is no framing."""

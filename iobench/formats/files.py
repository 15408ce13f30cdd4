"""One file per sample: the stored bytes and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

from ..buffers import Buffer
from .base import Framed


class OneFileEach(Framed):
    """Each shard is one sample; the file's suffix is that of its content and codec."""

    name: ClassVar[str] = "files"
    one_sample_per_shard: ClassVar[bool] = True
    framing_bytes: ClassVar[int] = 0
    class_folders: ClassVar[bool] = True

    def labelled(self, labels: int) -> Self:
        return self

    def unpack(self, shard: Buffer, *, check: bool) -> Iterator[Buffer]:
        yield shard

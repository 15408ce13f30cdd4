"""Plain files, as torchvision's ImageFolder reads them: nothing but the samples."""

from __future__ import annotations

from typing import ClassVar, Self

from .base import Framed


class OneFileEach(Framed):
    """Each shard is one sample; the file's suffix is that of its content and codec."""

    name: ClassVar[str] = "files"
    one_sample_per_shard: ClassVar[bool] = True
    framing_bytes: ClassVar[int] = 0
    class_folders: ClassVar[bool] = True

    def labelled(self, labels: int) -> Self:
        return self

"""JPEG images that can be decoded."""

from __future__ import annotations

from typing import ClassVar, Self

from ...base.buffers import Buffer
from ...base.limits import MAX_JPEG_EXPANSION
from . import jpeg_file
from .base import Content, at_least


class Jpeg(Content):
    """A different JPEG for each sample, which decodes to RGB pixels (height x width x 3).

    With ``labels``, each class has a mean colour of its own.
    """

    name: ClassVar[str] = "jpeg"
    suffix: ClassVar[str] = ".jpg"
    min_bytes: ClassVar[int] = jpeg_file.MIN_BYTES
    max_expansion: ClassVar[int] = 12
    has_shape: ClassVar[bool] = True

    def __init__(self, labels: int | None = None) -> None:
        self.labels = labels

    def labelled(self, labels: int) -> Self:
        return type(self)(labels)

    def build(self, out: Buffer, *, seed: int, index: int, compress_ratio: float) -> None:
        """Raises ValueError for a compress_ratio other than 1: a JPEG is compressed already."""
        at_least(self.name, self.min_bytes, out)
        if compress_ratio != 1:
            raise ValueError(
                "content 'jpeg' is compressed already and cannot take a compress_ratio"
            )
        jpeg_file.build(out, seed=seed, index=index, labels=self.labels)

    def identify(self, content: Buffer) -> tuple[int, int] | None:
        return jpeg_file.identify(content)

    def shape(self, content: Buffer) -> tuple[int, ...]:
        """Height, width and 3 (red, green, blue)."""
        import simplejpeg

        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(content)
        except KeyError:  # simplejpeg raises it for a header without a known colour space
            raise ValueError("not a JPEG that can be decoded: unknown colour space") from None
        return int(height), int(width), 3

    def decoded_bytes(self, content: Buffer) -> int:
        height, width, _ = self.shape(content)
        if (size := int(height * width * 3)) > MAX_JPEG_EXPANSION * len(content):
            raise ValueError(
                f"a JPEG of {len(content)} bytes claims {height} x {width} pixels, which it "
                "can't hold"
            )
        return size

    def decode(self, content: Buffer, out: Buffer) -> int:
        import simplejpeg

        # libjpeg fills in the missing part of a truncated file; with ``strict`` that is an error.
        return int(
            simplejpeg.decode_jpeg(content, colorspace="RGB", buffer=out, strict=True).nbytes
        )

"""JPEG images of an exact size that can be decoded, a different one for each sample.

An image is a smooth gradient plus noise from the sample's payload. It takes about 0.55 bytes per
pixel at quality 88 (ImageNet's photographs: about 0.6). The number of pixels is computed from the
requested size, so that the first encoding nearly always comes close to it. The rest is filled with
keyed bytes in APP15 segments (ITU-T T.81, B.2.4.6), which decoders skip. The first such segment
starts with the payload's stamp.
"""

from __future__ import annotations

import math
import struct
import threading
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from ...base import payload
from ...base.buffers import Buffer
from ...base.limits import MAX_JPEG_EXPANSION
from ...record.packing import label_of
from .base import Content, at_least

MIN_BYTES = 1024
_QUALITIES = (88, 84, 79, 72, 62, 45, 20, 5, 1)
_BYTES_PER_PIXEL = 0.553  # of this noise at the first quality, measured
_FIXED_BYTES = 640  # tables and headers of any small JPEG
_FILLED = 0.98  # share of the size for the image, the rest is padding: sizes vary by about 1 %
_MAX_PIXELS = 1 << 26
_APP15 = 0xFFEF
_SEGMENT = 65533  # payload bytes of one segment
_ENTRY = 4  # marker and length
_AFTER_SOI = 2

_Pixels = npt.NDArray[np.uint8]
_local = threading.local()


def write_jpeg(out: Buffer, *, seed: int, index: int, labels: int | None = None) -> None:
    """Fill ``out`` with image number ``index``, padded to exactly ``len(out)`` bytes.

    With ``labels`` classes, the image is tinted with the hue of its class.

    Raises ValueError if no JPEG of the image fits, even at the lowest quality.
    """
    import simplejpeg

    total = len(out)
    least = _ENTRY + payload.STAMP_BYTES
    image = _image(_dimensions(total), seed, index)
    if labels is not None:
        _tint(image, label_of(index, labels) / labels)
    for quality in _QUALITIES:
        encoded = simplejpeg.encode_jpeg(
            image, quality=quality, colorspace="RGB", colorsubsampling="420", fastdct=True
        )
        if len(encoded) + least <= total:
            break
    else:
        raise ValueError(
            f"no JPEG of {image.shape[1]} x {image.shape[0]} pixels fits {total} bytes"
        )
    room = total - len(encoded)
    out[:_AFTER_SOI] = encoded[:_AFTER_SOI]
    _pad(out[_AFTER_SOI : _AFTER_SOI + room], seed, index)
    out[_AFTER_SOI + room :] = encoded[_AFTER_SOI:]


def stamp_of(content: Buffer) -> tuple[int, int] | None:
    """(seed, index) from the stamp in the first segment; None for a JPEG of another origin."""
    if len(content) < _AFTER_SOI + _ENTRY or bytes(content[:_AFTER_SOI]) != b"\xff\xd8":
        return None
    (marker,) = struct.unpack_from(">H", content, _AFTER_SOI)
    return payload.identify(content[_AFTER_SOI + _ENTRY :]) if marker == _APP15 else None


def _pad(room: Buffer, seed: int, index: int) -> None:
    """Fill ``room`` (at least a stamp and a segment header) with APP15 segments of keyed bytes."""
    segments = -(-len(room) // (_SEGMENT + _ENTRY))
    filler = memoryview(bytearray(len(room) - segments * _ENTRY))
    payload.fill(filler, seed=seed, index=index)
    # All segments get nearly equal parts, so that none is too short to be valid.
    position = taken = 0
    for number in range(segments):
        count = (len(filler) - taken) // (segments - number)
        struct.pack_into(">HH", room, position, _APP15, count + 2)
        room[position + _ENTRY : position + _ENTRY + count] = filler[taken : taken + count]
        position += _ENTRY + count
        taken += count


def _dimensions(total: int) -> tuple[int, int]:
    """(height, width), about 3:4, of an image whose encoding takes nearly ``total`` bytes."""
    pixels = min(
        max((total * _FILLED - _FIXED_BYTES - payload.STAMP_BYTES) / _BYTES_PER_PIXEL, 64),
        _MAX_PIXELS,
    )
    height = max(8, int(math.sqrt(pixels * 0.75)))
    return height, max(8, int(pixels / height))


def _image(shape: tuple[int, int], seed: int, index: int) -> _Pixels:
    """Pixels (height, width, 3) in this thread's scratch memory: valid until the next call."""
    height, width = shape
    count = height * width * 3
    scratch: _Pixels | None = getattr(_local, "pixels", None)
    if scratch is None or len(scratch) < 2 * count:
        scratch = _local.pixels = np.empty(2 * count, dtype=np.uint8)
    noise, image = scratch[:count], scratch[count : 2 * count].reshape(height, width, 3)
    payload.fill(noise.data, seed=seed, index=index)
    noise[: payload.STAMP_BYTES] = 0  # the stamp belongs to the padding, not to the pixels
    flat = image.reshape(-1)
    np.right_shift(noise, 2, out=flat)  # 0..63, and another 0..31: noise of about 6.5 bits
    np.right_shift(noise, 3, out=noise)
    flat += noise
    rows = np.linspace(10 + index % 37, 90, height).astype(np.uint8)
    columns = (30 * np.sin(np.arange(width) * (6.3 / width)) + 30).astype(np.uint8)
    image += (rows[:, None] + columns[None, :])[:, :, None]
    return image


def _tint(image: _Pixels, hue: float) -> None:
    """Multiply red, green and blue by factors of 1/2 to 1, which depend on ``hue``, 0 to 1.

    The mean colour of an image then tells its hue, also after a crop, a flip or a change of size.
    """
    values = np.arange(256)
    for channel in range(3):
        factor = 0.75 + 0.25 * math.cos(2 * math.pi * (hue - channel / 3))
        table = np.rint(values * factor).astype(np.uint8)
        image[:, :, channel] = table[image[:, :, channel]]


class Jpeg(Content):
    """A different JPEG for each sample, which decodes to RGB pixels (height x width x 3).

    With ``labels``, each class has a mean colour of its own.
    """

    name: ClassVar[str] = "jpeg"
    suffix: ClassVar[str] = ".jpg"
    min_bytes: ClassVar[int] = MIN_BYTES
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
        write_jpeg(out, seed=seed, index=index, labels=self.labels)

    def identify(self, content: Buffer) -> tuple[int, int] | None:
        return stamp_of(content)

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

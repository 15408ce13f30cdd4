"""What one sample's bytes look like: opaque, an .npz, or a JPEG; each to the byte of the size that was asked for."""

from __future__ import annotations

import zlib
from typing import ClassVar

import numpy as np

from ..limits import MAX_JPEG_EXPANSION
from . import crc, jpeg, npz, payload
from .base import Buffer

_CRC_BLOCKS = 64
"""From this many blocks on, deriving a CRC is cheaper than computing it."""


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
        _fits(len(content), out)
        out[: len(content)] = content
        return len(content)


class Npz:
    """A stored .npz of one uint8 array ``x``. Any npz of plain arrays is read: decoded, their bytes follow one another."""

    name: ClassVar[str] = "npz"
    suffix: ClassVar[str] = ".npz"
    min_bytes: ClassVar[int] = npz.OVERHEAD + payload.STAMP_BYTES
    in_place: ClassVar[bool] = True
    max_expansion: ClassVar[int] = 1

    @classmethod
    def locate(cls, content: Buffer) -> tuple[int, int]:
        arrays = npz.stored_arrays(content)
        if arrays is None or len(arrays) != 1:
            raise ValueError("npz does not hold one stored array")
        begin = _address(arrays[0]) - _address(content)
        return begin, begin + len(arrays[0])

    @classmethod
    def build(cls, out: Buffer, *, seed: int, index: int, compress_ratio: float) -> None:
        _at_least(cls.name, cls.min_bytes, out)
        data = out[npz.DATA_OFFSET : npz.DATA_OFFSET + npz.data_bytes(len(out))]
        payload.fill(data, seed=seed, index=index, compress_ratio=compress_ratio)

        def crc_of(before: int) -> int:
            whole = len(data) // payload.BLOCK - 1
            if whole < _CRC_BLOCKS:
                return zlib.crc32(data, before)
            end = (whole + 1) * payload.BLOCK
            before = zlib.crc32(data[: payload.BLOCK], before)  # the first block carries the stamp
            before = crc.extend_over_blocks(
                before, seed=seed, index=index, first=1, count=whole, compress_ratio=compress_ratio
            )
            return zlib.crc32(data[end:], before)

        npz.write_around(out, crc_of)

    @classmethod
    def identify(cls, content: Buffer) -> tuple[int, int] | None:
        return payload.identify(content[npz.DATA_OFFSET :])

    @classmethod
    def decoded_bytes(cls, content: Buffer) -> int:
        stored = npz.stored_arrays(content)
        if stored is not None:
            return sum(map(len, stored))
        with npz.readable():
            return sum(size for size, _ in npz.open_arrays(content))

    @classmethod
    def decode(cls, content: Buffer, out: Buffer) -> int:
        done = 0
        stored = npz.stored_arrays(content)
        if stored is not None:
            _fits(sum(map(len, stored)), out)
            for array in stored:
                out[done : done + len(array)] = array
                done += len(array)
            return done
        with npz.readable():
            for size, member in npz.open_arrays(content):
                _fits(done + size, out)
                end = done + size
                while done < end:
                    count = member.readinto(out[done:end])
                    if not count:
                        raise ValueError("npz is truncated")
                    done += count
        return done


class Arrays(Npz):
    """Any .npz: the bytes of its arrays as they are stored in it, inflated, one after another. What is built is an ``npz``."""

    name: ClassVar[str] = "arrays"
    in_place: ClassVar[bool] = False

    @classmethod
    def locate(cls, content: Buffer) -> tuple[int, int]:
        raise ValueError("the arrays of an npz have to be joined")


class Jpeg:
    """A JPEG of its own for each sample, that decodes to RGB pixels (height x width x 3)."""

    name: ClassVar[str] = "jpeg"
    suffix: ClassVar[str] = ".jpg"
    min_bytes: ClassVar[int] = jpeg.MIN_BYTES
    in_place: ClassVar[bool] = False
    max_expansion: ClassVar[int] = 12

    @classmethod
    def locate(cls, content: Buffer) -> tuple[int, int]:
        raise ValueError("a JPEG has to be decoded")

    @classmethod
    def build(cls, out: Buffer, *, seed: int, index: int, compress_ratio: float) -> None:
        """Raises ValueError for a compress_ratio: a JPEG is compressed already."""
        _at_least(cls.name, cls.min_bytes, out)
        if compress_ratio != 1:
            raise ValueError(
                "content 'jpeg' is compressed already and cannot take a compress_ratio"
            )
        jpeg.build(out, seed=seed, index=index)

    @classmethod
    def identify(cls, content: Buffer) -> tuple[int, int] | None:
        return jpeg.identify(content)

    @classmethod
    def decoded_bytes(cls, content: Buffer) -> int:
        import simplejpeg

        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(content)
        except KeyError:  # what the library says of a header without a known colour space
            raise ValueError("not a JPEG that can be decoded: unknown colour space") from None
        if (size := int(height * width * 3)) > MAX_JPEG_EXPANSION * len(content):
            raise ValueError(
                f"a JPEG of {len(content)} bytes claims {height} x {width} pixels, which it can't hold"
            )
        return size

    @classmethod
    def decode(cls, content: Buffer, out: Buffer) -> int:
        import simplejpeg

        # libjpeg fills in what is missing from a cut file; strict makes that the error it is.
        return int(
            simplejpeg.decode_jpeg(content, colorspace="RGB", buffer=out, strict=True).nbytes
        )


def _address(view: Buffer) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)


def _at_least(name: str, least: int, out: Buffer) -> None:
    if len(out) < least:
        raise ValueError(f"content '{name}' needs at least {least} bytes, not {len(out)}")


def _fits(size: int, out: Buffer) -> None:
    if size > len(out):
        raise ValueError(f"{size} decoded bytes do not fit a buffer of {len(out)}")

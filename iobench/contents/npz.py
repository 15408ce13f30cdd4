"""Files of NumPy arrays (.npz)."""

from __future__ import annotations

import zlib
from typing import ClassVar

import numpy as np

from .. import payload
from ..buffers import Buffer
from . import crc, npz_file
from .base import Content, at_least, fits

_CRC_BLOCKS = 64
"""From this number of blocks on, deriving a CRC is cheaper than computing it from the bytes."""


class Npz(Content):
    """A stored .npz of one uint8 array ``x``.

    Any npz of plain arrays can be read; decoded, their bytes follow one another.
    """

    name: ClassVar[str] = "npz"
    suffix: ClassVar[str] = ".npz"
    min_bytes: ClassVar[int] = npz_file.OVERHEAD + payload.STAMP_BYTES
    in_place: ClassVar[bool] = True

    def locate(self, content: Buffer) -> tuple[int, int]:
        arrays = npz_file.stored_arrays(content)
        if arrays is None or len(arrays) != 1:
            raise ValueError("npz does not hold one stored array")
        begin = _address(arrays[0]) - _address(content)
        return begin, begin + len(arrays[0])

    def build(self, out: Buffer, *, seed: int, index: int, compress_ratio: float) -> None:
        at_least(self.name, self.min_bytes, out)
        data = out[npz_file.DATA_OFFSET : npz_file.DATA_OFFSET + npz_file.data_bytes(len(out))]
        payload.fill(data, seed=seed, index=index, compress_ratio=compress_ratio)

        def crc_of(before: int) -> int:
            whole = len(data) // payload.BLOCK - 1
            if whole < _CRC_BLOCKS:
                return zlib.crc32(data, before)
            end = (whole + 1) * payload.BLOCK
            before = zlib.crc32(data[: payload.BLOCK], before)  # the first block contains the stamp
            before = crc.extend_over_blocks(
                before, seed=seed, index=index, first=1, count=whole, compress_ratio=compress_ratio
            )
            return zlib.crc32(data[end:], before)

        npz_file.write_around(out, crc_of)

    def identify(self, content: Buffer) -> tuple[int, int] | None:
        return payload.identify(content[npz_file.DATA_OFFSET :])

    def decoded_bytes(self, content: Buffer) -> int:
        stored = npz_file.stored_arrays(content)
        if stored is not None:
            return sum(map(len, stored))
        with npz_file.readable():
            return sum(size for size, _ in npz_file.open_arrays(content))

    def decode(self, content: Buffer, out: Buffer) -> int:
        done = 0
        stored = npz_file.stored_arrays(content)
        if stored is not None:
            fits(sum(map(len, stored)), out)
            for array in stored:
                out[done : done + len(array)] = array
                done += len(array)
            return done
        with npz_file.readable():
            for size, member in npz_file.open_arrays(content):
                fits(done + size, out)
                end = done + size
                while done < end:
                    count = member.readinto(out[done:end])
                    if not count:
                        raise ValueError("npz is truncated")
                    done += count
        return done


class Arrays(Npz):
    """Any .npz: the raw bytes of its arrays, decompressed, one after another.

    ``build`` makes the same file as for ``npz``.
    """

    name: ClassVar[str] = "arrays"
    in_place: ClassVar[bool] = False

    def locate(self, content: Buffer) -> tuple[int, int]:
        raise ValueError("the arrays of an npz file are not one slice of it: they must be decoded")


def _address(view: Buffer) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)

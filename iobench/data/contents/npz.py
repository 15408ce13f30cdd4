"""Files of NumPy arrays (.npz)."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...base import payload
from ...base.buffers import Buffer
from . import npz_file
from .base import Content, at_least, fits

_ONES = 0xFFFFFFFF
_U32 = npt.NDArray[np.uint32]


def extend_over_blocks(
    crc: int, *, seed: int, index: int, first: int, count: int, compress_ratio: float
) -> int:
    """Extend a ``zlib.crc32`` by whole blocks of a sample's payload, which is not read.

    Returns the CRC-32 of bytes whose CRC-32 is ``crc``, followed by ``count`` blocks of sample
    ``index``, starting at block number ``first`` (1 or more).

    Reading the payload would take longer than making the bytes. A CRC is linear over XOR. A
    payload's block is a pool block XORed with a repeated key, so its CRC is the XOR of the pool
    block's (known) and the key's (eight table look-ups). The blocks' CRCs are then combined
    pairwise with the CRC's own "append zeros" operator. ``_raw`` is the CRC register with neither
    the initial nor the final complement, because only that part is linear.
    """
    zero_words = payload.zero_words(compress_ratio)
    pool_raw, key_tables = _tables(seed, zero_words)
    blocks = np.arange(first, first + count, dtype=np.int64)
    keys = payload.keys(seed, index, first, count)
    raw = pool_raw[blocks % len(pool_raw)]
    for byte in range(8):
        raw = raw ^ key_tables[byte, (keys >> np.uint64(8 * byte)).astype(np.uint8)]
    # The preceding bytes act as one more block in front; zeros in front of that change nothing.
    size = 1 << count.bit_length()
    folded = np.zeros(size, dtype=np.uint32)
    folded[size - count :] = raw
    folded[size - count - 1] = crc ^ _ONES
    shift = _shift_tables()
    while len(folded) > 1:
        folded = _apply(shift, folded[0::2]) ^ folded[1::2]
        shift = _squared(shift)
    return int(folded[0]) ^ _ONES


def _raw(data: bytes | memoryview, register: int = 0) -> int:
    return zlib.crc32(data, register ^ _ONES) ^ _ONES


@lru_cache(maxsize=4)
def _tables(seed: int, zero_words: int) -> tuple[_U32, _U32]:
    """(raw CRC of each pool block, raw CRC of repeated key bytes [8, 256]), uint32.

    The second table is for each of the 8 bytes of a key, and each of its 256 values. The leading
    zeros of a block contribute nothing.
    """
    pool = payload.pool(seed)[:, zero_words:]
    pool_raw = np.array([_raw(block.tobytes()) for block in pool], dtype=np.uint32)
    bits = [_raw((1 << bit).to_bytes(8, "little") * pool.shape[1]) for bit in range(64)]
    return pool_raw, np.stack([_span(bits[8 * byte : 8 * byte + 8]) for byte in range(8)])


@lru_cache(maxsize=1)
def _shift_tables() -> _U32:
    """The register after one block of zeros, for each value of each of its bytes: [4, 256]."""
    zeros = bytes(payload.BLOCK)
    bits = [_raw(zeros, 1 << bit) for bit in range(32)]
    return np.stack([_span(bits[8 * byte : 8 * byte + 8]) for byte in range(4)])


def _span(bits: list[int]) -> _U32:
    """The XOR of every subset of eight words: entry v combines the words of the bits set in v."""
    table = np.zeros(1, dtype=np.uint32)
    for word in bits:
        table = np.concatenate((table, table ^ np.uint32(word)))
    return table


def _apply(tables: _U32, register: _U32) -> _U32:
    """Apply a linear operator, given as tables, to each register."""
    low = register.astype("<u4").view(np.uint8).reshape(-1, 4)
    result: _U32 = (
        tables[0, low[:, 0]] ^ tables[1, low[:, 1]] ^ tables[2, low[:, 2]] ^ tables[3, low[:, 3]]
    )
    return result


def _squared(tables: _U32) -> _U32:
    """The operator applied twice."""
    return _apply(tables, tables.reshape(-1)).reshape(tables.shape)


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
        return arrays[0]

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
            before = extend_over_blocks(
                before, seed=seed, index=index, first=1, count=whole, compress_ratio=compress_ratio
            )
            return zlib.crc32(data[end:], before)

        npz_file.write_around(out, crc_of)

    def identify(self, content: Buffer) -> tuple[int, int] | None:
        return payload.identify(content[npz_file.DATA_OFFSET :])

    def decoded_bytes(self, content: Buffer) -> int:
        stored = npz_file.stored_arrays(content)
        if stored is not None:
            return sum(end - begin for begin, end in stored)
        with npz_file.readable():
            return sum(size for size, _ in npz_file.open_arrays(content))

    def decode(self, content: Buffer, out: Buffer) -> int:
        done = 0
        stored = npz_file.stored_arrays(content)
        if stored is not None:
            fits(sum(end - begin for begin, end in stored), out)
            for begin, end in stored:
                out[done : done + end - begin] = content[begin:end]
                done += end - begin
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

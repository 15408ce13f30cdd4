"""TFRecord shards of tf.train.Example, written and read without TensorFlow.

A record is: length (u64), masked CRC-32C of the length, data, masked CRC-32C of the data (all
little-endian; tensorflow/core/lib/io/record_writer.h). The Example has two features, {"index":
int64, "data": bytes}; "data" comes last, so the stored bytes are contiguous and only the CRC
follows them.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import ClassVar

from crc32c import crc32c

from ...base.buffers import Buffer
from .base import Frame, Framed

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEAD = _LENGTH.size + _CRC.size
_DELIMITED = 2  # protocol buffers' wire type of length-delimited fields


def varint(value: int) -> bytes:
    """Encode a non-negative number as protocol buffers do, in base 128."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, data: bytes) -> bytes:
    """Encode a length-delimited field of a protocol buffer."""
    return varint(number << 3 | _DELIMITED) + varint(len(data)) + data


_KEY = field(1, b"data")


class TFRecord(Framed):
    """Each sample is one record."""

    name: ClassVar[str] = "tfrecord"
    suffix: ClassVar[str] = ".tfrecord"
    has_checksums: ClassVar[bool] = True

    def frame(self, index: int, suffix: str, stored: Buffer) -> Frame:
        opening = _opening(index, len(stored))
        length = _LENGTH.pack(len(opening) + len(stored))
        crc = _crc(stored, crc32c(opening))
        return Frame(length + _CRC.pack(_mask(crc32c(length))) + opening, _CRC.pack(_mask(crc)))

    def margins(self, index: int, suffix: str, stored: int) -> tuple[int, int]:
        return _HEAD + _opening_length(_varint_length(index), stored), _CRC.size

    def finish(self, size: int) -> bytes:
        return b""

    def check(self, framed: Buffer) -> None:
        if len(framed) < _HEAD + _CRC.size:
            raise ValueError(f"record of {len(framed)} bytes is shorter than its checksums")
        length = framed[: _LENGTH.size]
        if _CRC.unpack_from(framed, _LENGTH.size)[0] != _mask(crc32c(length)):
            raise ValueError("the CRC of the record's length is wrong")
        size = _HEAD + _LENGTH.unpack(length)[0] + _CRC.size
        if size != len(framed):
            raise ValueError(f"record of {size} bytes where {len(framed)} were expected")
        if _CRC.unpack_from(framed, size - _CRC.size)[0] != masked_crc(framed[_HEAD : -_CRC.size]):
            raise ValueError("the CRC of the record's data is wrong")


def _opening(index: int, size: int) -> bytes:
    """The Example's bytes before its ``size`` stored bytes."""
    # Lengths nest: Example{features{entry "index", entry "data"{Feature{bytes_list{value}}}}}.
    before_value = b"\x0a" + varint(size)
    before_list = b"\x0a" + varint(len(before_value) + size) + before_value
    before_feature = _KEY + b"\x12" + varint(len(before_list) + size) + before_list
    data_entry = b"\x0a" + varint(len(before_feature) + size) + before_feature
    number = field(3, field(1, varint(index)))  # int64_list, packed
    features = field(1, field(1, b"index") + field(2, number)) + data_entry
    return b"\x0a" + varint(len(features) + size) + features


@lru_cache(maxsize=4096)
def _opening_length(index_length: int, size: int) -> int:
    """``len(_opening(index, size))`` for an index whose varint is ``index_length`` bytes long.

    It is computed without building the opening, because readers call it for every sample.
    """
    length = size
    for tag in (1, 1, len(_KEY) + 1, 1):  # value, bytes_list, feature after its key, map entry
        length += tag + _varint_length(length)
    # The entry of "index": map entry{key, feature{int64_list{packed}}}; every length is below 128.
    length += 2 + len(field(1, b"index")) + 2 + 2 + 2 + index_length
    return length + 1 + _varint_length(length) - size


def _varint_length(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


def _crc(data: Buffer, before: int = 0) -> int:
    """CRC-32C of ``data`` that follows bytes whose CRC-32C is ``before``.

    With ``gil_release_mode=0`` the library itself decides by size whether to release the GIL.
    """
    return crc32c(data, before, gil_release_mode=0)


def _mask(crc: int) -> int:
    """Mask a CRC as TensorFlow does: the CRC of data that itself contains CRCs is a weak check."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc(data: Buffer) -> int:
    """The checksum that a TFRecord stores for ``data``."""
    return _mask(_crc(data))

"""The part of the protocol buffer wire format that writing a tf.train.Example needs."""

from __future__ import annotations

_BYTES = 2  # wire type of length-delimited fields


def varint(value: int) -> bytes:
    """Encode a non-negative number as a base-128 varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, data: bytes) -> bytes:
    """Encode a length-delimited field."""
    return varint(number << 3 | _BYTES) + varint(len(data)) + data

"""The part of the protocol buffer wire format that a tf.train.Example needs, on views."""

from __future__ import annotations

from collections.abc import Iterator

from ..buffers import Buffer

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


def example_bytes(record: Buffer) -> Buffer | None:
    """Return the sample in a serialised tf.train.Example.

    It is the feature "data", or else "image/encoded", or else the largest feature of bytes. None
    for a record that is no Example, or has no feature of bytes.
    """
    found: dict[bytes, Buffer] = {}
    try:
        for number, features in _fields(record):
            if number != 1:
                return None
            for _, entry in _fields(features):
                parts = dict(_fields(entry))
                value = _first_bytes(parts[2])
                if value is not None:
                    found[bytes(parts[1])] = value
    except (ValueError, KeyError, IndexError):
        return None
    for name in (b"data", b"image/encoded"):
        if name in found:
            return found[name]
    return max(found.values(), key=len, default=None)


def _first_bytes(feature: Buffer) -> Buffer | None:
    """The first value of a Feature's bytes_list (field 1).

    None for an empty list or a list of numbers.
    """
    for number, values in _fields(feature):
        if number == 1:
            for _, value in _fields(values):
                return value
    return None


def _fields(message: Buffer) -> Iterator[tuple[int, Buffer]]:
    """Yield (number, value) of each field.

    In an Example every field is length-delimited; anything else raises ValueError or IndexError.
    """
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        if tag & 7 != _BYTES or tag >> 3 == 0:
            raise ValueError("not a length-delimited field")
        length, position = _read_varint(message, position)
        if position + length > len(message):
            raise ValueError("field runs past its message")
        yield tag >> 3, message[position : position + length]
        position += length


def _read_varint(message: Buffer, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("varint is too long")

"""Thrift's compact protocol for untrusted bytes: only the parts that Parquet needs.

A number is a varint with 7 bits in each byte (zigzag if it is signed). A field begins with a byte
of (difference to the last field's number << 4 | type), a list with a byte of (length << 4 | type of
its elements). Malformed or truncated input raises ValueError with the offset. Lengths and counts
are compared with the number of bytes left before memory is allocated, and the nesting depth is
limited.

Source: github.com/apache/thrift, doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .protobuf import varint

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)

MAX_DEPTH = 32
"""Limit for structs, lists and maps inside one another. Parquet's own metadata nests 7 deep."""

_VARINT_BYTES = {I16: 3, I32: 5, I64: 10}
_BITS = {I16: 16, I32: 32, I64: 64}
_FIXED = {BYTE: 1, DOUBLE: 8, UUID: 16}


class Compact:
    """A position in ``data`` that advances over each value that is read.

    Every method raises ValueError if the bytes end too early or are malformed.
    """

    __slots__ = ("data", "position")

    def __init__(self, data: bytes | memoryview, position: int = 0) -> None:
        self.data = data
        self.position = position

    def byte(self) -> int:
        place = self.position
        if place >= len(self.data):
            raise self.error("it ends too early")
        self.position = place + 1
        return self.data[place]

    def varint(self, most: int = 10) -> int:
        """Read an unsigned number of at most ``most`` bytes."""
        data, place = self.data, self.position
        last = min(len(data), place + most)
        value = shift = 0
        while place < last:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            if byte < 128:
                self.position = place
                return value
            shift += 7
        raise self.error("a number has no end")

    def number(self, kind: int) -> int:
        """Read a signed number of type I16, I32 or I64."""
        value = self.varint(_VARINT_BYTES[kind])
        if value >> _BITS[kind]:
            raise self.error(f"a number has more than {_BITS[kind]} bits")
        return (value >> 1) ^ -(value & 1)

    def binary(self) -> bytes:
        return bytes(self.take(self.varint(5)))

    def take(self, length: int) -> bytes | memoryview:
        """Read ``length`` bytes, as they are."""
        start = self.position
        if length > len(self.data) - start:
            raise self.error(f"{length} bytes are more than what is left")
        self.position = start + length
        return self.data[start : start + length]

    def elements(self) -> tuple[int, int]:
        """Read the head of a list or set: (type, number of its elements).

        Every element takes at least one byte, so a count above the number of bytes left is an
        error.
        """
        head = self.byte()
        count = head >> 4
        if count == 15:
            count = self.varint(5)
        if count > len(self.data) - self.position:
            raise self.error(f"a list of {count} elements is longer than what is left")
        return head & 15, count

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield (number, type) of each field of a struct.

        The caller must read or skip the field's value before it asks for the next field. A field
        number that occurs twice is an error, because readers differ in which value they use.
        """
        seen = 0
        field = 0
        while head := self.byte():
            step, kind = head >> 4, head & 15
            field = field + step if step else self.number(I16)
            if field <= 0 or kind > UUID:
                raise self.error(f"not a valid field of a struct (number {field}, type {kind})")
            if seen >> field & 1:
                raise self.error(f"field {field} comes twice")
            seen |= 1 << field
            yield field, kind

    def want(self, found: int, kind: int, what: str) -> None:
        """Raise ValueError if the type ``found`` is not ``kind``. ``what`` names the value."""
        if found != kind:
            raise self.error(f"{what} has type {found}, not {kind}")

    def skip(self, kind: int) -> None:
        """Advance over the value of a field of this type."""
        try:
            self.position = _after(self.data, self.position, kind, 0)
        except IndexError:
            raise self.error("it ends too early") from None

    def error(self, why: str) -> ValueError:
        return ValueError(f"{why} (at byte {self.position} of {len(self.data)})")


def _after(data: bytes | memoryview, place: int, kind: int, depth: int) -> int:
    """Return the position at which the value of a field ends.

    Raises IndexError at the end of ``data``, and ValueError for malformed bytes. Most bytes of a
    footer are skipped by this function, so it makes as few calls as it can.
    """
    if kind in (I16, I32, I64):
        while data[place] > 127:
            place += 1
        return place + 1
    if kind in (TRUE, FALSE):
        return place
    if kind == BINARY:
        place, length = _length(data, place)
        return _within(data, place + length)
    if kind in _FIXED:
        return _within(data, place + _FIXED[kind])
    if depth >= MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep (at byte {place})")
    depth += 1
    if kind == STRUCT:
        while head := data[place]:
            place += 1
            if not head >> 4:  # the field's number follows as a varint
                place = _after(data, place, I16, depth)
            place = _after(data, place, head & 15, depth)
        return place + 1
    if kind in (LIST, SET):
        head = data[place]
        place, count = _length(data, place + 1) if head >> 4 == 15 else (place + 1, head >> 4)
        return _after_each(data, place, count, (head & 15,), depth)
    if kind == MAP:
        place, count = _length(data, place)
        if not count:
            return place
        return _after_each(data, place + 1, count, (data[place] >> 4, data[place] & 15), depth)
    raise ValueError(f"unknown type {kind} (at byte {place})")


def _after_each(
    data: bytes | memoryview, place: int, count: int, kinds: tuple[int, ...], depth: int
) -> int:
    """Return where the elements of a list or a map end. Each takes at least a byte, even a bool."""
    _within(data, place + count)
    for _ in range(count):
        for kind in kinds:
            place = _after(data, place, BYTE if kind in (TRUE, FALSE) else kind, depth)
    return place


def _length(data: bytes | memoryview, place: int) -> tuple[int, int]:
    """Return (position behind a varint, its value)."""
    value = shift = 0
    while (byte := data[place]) > 127:
        value |= (byte & 127) << shift
        shift += 7
        place += 1
        if shift > 28:
            raise ValueError(f"a length has no end (at byte {place})")
    return place + 1, value | byte << shift


def _within(data: bytes | memoryview, place: int) -> int:
    if place > len(data):
        raise IndexError(place)
    return place


class ThriftWriter:
    """Builds a struct in the compact protocol; fields must come in the order of their numbers.

    ``begun``: bytes of an unfinished struct (``so_far`` of another Writer) to continue; ``last`` is
    then the number of its last field.
    """

    __slots__ = ("_last", "_out")

    def __init__(self, begun: bytes = b"", last: int = 0) -> None:
        self._out = bytearray(begun)
        self._last = last

    def number(self, field: int, kind: int, value: int) -> ThriftWriter:
        """Append a field of type I16, I32 or I64."""
        return self._field(field, kind, zigzag(value))

    def binary(self, field: int, value: bytes) -> ThriftWriter:
        return self._field(field, BINARY, varint(len(value)) + value)

    def struct(self, field: int, value: bytes) -> ThriftWriter:
        """Append a struct field; ``value``: the result of another Writer's ``finish``."""
        return self._field(field, STRUCT, value)

    def list(self, field: int, value: bytes) -> ThriftWriter:
        """Append a list field; ``value``: the result of ``listed``."""
        return self._field(field, LIST, value)

    def so_far(self) -> bytes:
        return bytes(self._out)

    def finish(self) -> bytes:
        self._out.append(0)
        return bytes(self._out)

    def _field(self, field: int, kind: int, value: bytes) -> ThriftWriter:
        step = field - self._last
        if not 0 < step < 16:
            raise ValueError(f"field {field} does not follow field {self._last}")
        self._out.append(step << 4 | kind)
        self._out += value
        self._last = field
        return self


def listed(kind: int, elements: Sequence[bytes]) -> bytes:
    """Encode a list; ``elements``: its encoded elements, all of type ``kind``."""
    count = len(elements)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + varint(count)
    return head + b"".join(elements)


def zigzag(value: int) -> bytes:
    """Encode a signed number of up to 64 bits as a zigzag varint."""
    return varint(value << 1 ^ value >> 63)

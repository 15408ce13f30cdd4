"""Thrift's compact protocol over bytes that nobody vouches for: the little that Parquet needs.

A number is a varint of 7 bits a byte (zigzag where it has a sign), a field is a byte of (distance
to the last field's number << 4 | type), a list a byte of (length << 4 | type of its elements).
Whatever does not fit into the bytes that are there is a ValueError with the offset: lengths and
counts are compared with what is left before anything is taken for them, and depth has a bound.

Source: github.com/apache/thrift, doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .protobuf import varint

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)

MAX_DEPTH = 32
"""Structs, lists and maps within one another. Parquet's own metadata has 7."""

_VARINT_BYTES = {I16: 3, I32: 5, I64: 10}
_BITS = {I16: 16, I32: 32, I64: 64}
_FIXED = {BYTE: 1, DOUBLE: 8, UUID: 16}


class Compact:
    """A place in ``data`` that moves over what is read.

    Every method raises ValueError where the bytes end, or say what can't be.
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
        """An unsigned number of ``most`` bytes at most."""
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
        """A signed number of type I16, I32 or I64."""
        value = self.varint(_VARINT_BYTES[kind])
        if value >> _BITS[kind]:
            raise self.error(f"a number has more than {_BITS[kind]} bits")
        return (value >> 1) ^ -(value & 1)

    def binary(self) -> bytes:
        return bytes(self.take(self.varint(5)))

    def take(self, length: int) -> bytes | memoryview:
        """So many bytes, as they are."""
        start = self.position
        if length > len(self.data) - start:
            raise self.error(f"{length} bytes are more than what is left")
        self.position = start + length
        return self.data[start : start + length]

    def elements(self) -> tuple[int, int]:
        """(type, number) of the elements of a list or set, of which each has a byte at least."""
        head = self.byte()
        count = head >> 4
        if count == 15:
            count = self.varint(5)
        if count > len(self.data) - self.position:
            raise self.error(f"a list of {count} elements is longer than what is left")
        return head & 15, count

    def fields(self) -> Iterator[tuple[int, int]]:
        """(number, type) of each field of a struct; its value is to be read before the next one.

        A number that comes twice is an error: readers differ in which of them counts.
        """
        seen = 0
        field = 0
        while head := self.byte():
            step, kind = head >> 4, head & 15
            field = field + step if step else self.number(I16)
            if field <= 0 or kind > UUID:
                raise self.error(f"no field of a struct (number {field}, type {kind})")
            if seen >> field & 1:
                raise self.error(f"field {field} comes twice")
            seen |= 1 << field
            yield field, kind

    def want(self, found: int, kind: int, what: str) -> None:
        """Raises ValueError where ``what`` is of another type."""
        if found != kind:
            raise self.error(f"{what} has type {found}, not {kind}")

    def skip(self, kind: int) -> None:
        """Move over a value of this type, the value of a field."""
        try:
            self.position = _after(self.data, self.position, kind, 0)
        except IndexError:
            raise self.error("it ends too early") from None

    def error(self, why: str) -> ValueError:
        return ValueError(f"{why} (at byte {self.position} of {len(self.data)})")


def _after(data: bytes | memoryview, place: int, kind: int, depth: int) -> int:
    """Where a value of a field ends. Raises IndexError at the end of ``data``, ValueError.

    This is the way over most bytes of a footer, so it calls as little as it can.
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
            if not head >> 4:  # the field's number follows
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
    raise ValueError(f"no type has the number {kind} (at byte {place})")


def _after_each(
    data: bytes | memoryview, place: int, count: int, kinds: tuple[int, ...], depth: int
) -> int:
    """Where the elements of a list or a map end. Each has a byte at least, also a bool."""
    _within(data, place + count)
    for _ in range(count):
        for kind in kinds:
            place = _after(data, place, BYTE if kind in (TRUE, FALSE) else kind, depth)
    return place


def _length(data: bytes | memoryview, place: int) -> tuple[int, int]:
    """Where a varint ends, and its value."""
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


class Writer:
    """A struct in the compact protocol, field after field in the order of their numbers.

    It may go on after what another one wrote ``so_far``, whose ``last`` field is then to be told.
    """

    __slots__ = ("_last", "_out")

    def __init__(self, begun: bytes = b"", last: int = 0) -> None:
        self._out = bytearray(begun)
        self._last = last

    def number(self, field: int, kind: int, value: int) -> Writer:
        """A field of type I16, I32 or I64."""
        return self._field(field, kind, zigzag(value))

    def binary(self, field: int, value: bytes) -> Writer:
        return self._field(field, BINARY, varint(len(value)) + value)

    def struct(self, field: int, value: bytes) -> Writer:
        """``value``: what another Writer has finished."""
        return self._field(field, STRUCT, value)

    def list(self, field: int, value: bytes) -> Writer:
        """``value``: what ``listed`` made."""
        return self._field(field, LIST, value)

    def so_far(self) -> bytes:
        return bytes(self._out)

    def finish(self) -> bytes:
        self._out.append(0)
        return bytes(self._out)

    def _field(self, field: int, kind: int, value: bytes) -> Writer:
        step = field - self._last
        if not 0 < step < 16:
            raise ValueError(f"field {field} does not follow field {self._last}")
        self._out.append(step << 4 | kind)
        self._out += value
        self._last = field
        return self


def listed(kind: int, elements: Sequence[bytes]) -> bytes:
    """A list of elements of one type, each as it is written."""
    count = len(elements)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + varint(count)
    return head + b"".join(elements)


def zigzag(value: int) -> bytes:
    """A varint of a number with a sign."""
    return varint(value << 1 ^ value >> 63)

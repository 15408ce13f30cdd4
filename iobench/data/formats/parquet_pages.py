"""The pages of a Parquet column chunk: how much memory decoding them takes, from their headers.

pyarrow decodes the pages, but has no limit for the memory that this takes: its memory pools can't
be bounded, and it allocates what a page claims. A page states its own decompressed size, which may
be wrong. A value that refers to a dictionary or shares a prefix costs a byte or less, and equal
lengths cost nothing. The metadata of the file says none of this. So each header is read here, and
all of these are limited before anything is decoded: in a loader, a page of ten bytes would
otherwise take 8 GiB.

Headers are structs of Thrift's compact protocol: a field begins with a byte of (difference to the
last field's number << 4 | type), and a number is a varint with 7 bits in each byte, zigzag if it is
signed.

Sources: github.com/apache/parquet-format, src/main/thrift/parquet.thrift (PageHeader),
Encodings.md; github.com/apache/thrift, doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...base.buffers import Buffer
from ...base.limits import check_plausible

UNCOMPRESSED = "uncompressed"

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY = range(1, 9)
_STRUCT = 12
_NUMBERS = {_I16: (3, 16), _I32: (5, 32), _I64: (10, 64)}
"""By type: the most bytes of the varint, and the bits of the number."""

_MAX_DEPTH = 4
"""Limit for structs inside one another. Those of a page's header nest 3 deep."""

_DATA, _INDEX, _DICTIONARY, _DATA_V2 = range(4)
_DELTA_LENGTH, _DELTA_BYTE_ARRAY = 6, 7
_OF_DICTIONARY = (2, 8)
_RLE = 3
_LENGTH = 4
"""Bytes of the length in front of a value of varying length, and in front of levels."""

_MAX_PAGE = 1 << 31

_ABOUT = {_DATA: (5, (1, 2, 3)), _DICTIONARY: (7, (1, 2)), _DATA_V2: (8, (1, 4, 5, 6))}
"""By kind of page: the field of its header that says what it holds, and the fields of interest in
that: the number of values and the encoding come first, then the encoding of the levels, or how many
bytes the levels take.
"""

_PACKED = 7
"""The field of a data page, version 2, that says whether its values are compressed."""


class Chunk(NamedTuple):
    """A column chunk: the bytes ``start`` to ``end`` of the file, which hold ``values`` values."""

    codec: str
    values: int
    start: int
    end: int


class Leaf(NamedTuple):
    """A column. ``place``: its number in the file; ``length``: bytes of a value, 0 if they vary."""

    place: int
    length: int
    nullable: bool


class Bound(NamedTuple):
    """Upper limits, in bytes, for the memory that decoding the pages of a chunk takes.

    ``inflated``: the pages, decompressed; ``values``: all values; ``largest``: one value, among
    those that can be longer than their stored bytes.
    """

    inflated: int
    values: int
    largest: int


class _Page(NamedTuple):
    """A page. ``start``, ``end``: what follows its header.

    ``about``: the numbers that ``_ABOUT`` names.
    """

    kind: int
    inflated: int
    start: int
    end: int
    about: tuple[int, ...]
    packed: bool


def bound(data: Buffer, chunk: Chunk, leaf: Leaf) -> Bound:
    """Compute the limits of a chunk from its bytes. Raises ValueError for impossible sizes."""
    position = seen = inflated = values = largest = dictionary = 0
    while seen < chunk.values and position < len(data):
        match = _PLAIN.match(data, position)
        if match is not None:
            size, stored, start = _signed(match[1]), _signed(match[2]), match.end()
            _check_sizes(size, stored, len(data) - start, chunk)
            seen, position = seen + _signed(match[3]), start + stored
            inflated, values = inflated + size, values + size
            continue
        page = _read_page(data, position, chunk)
        inflated, position = inflated + page.inflated, page.end
        if page.kind == _INDEX:
            continue
        count, encoding = page.about[:2]
        if page.kind == _DICTIONARY:
            each = leaf.length or _LENGTH
            if count * each > page.inflated:
                raise ValueError(f"a dictionary of {page.inflated} bytes claims {count} values")
            dictionary = page.inflated
            continue
        seen += count
        one = {_DELTA_BYTE_ARRAY: page.inflated}.get(encoding, 0)
        if encoding in _OF_DICTIONARY:
            one = dictionary
        values += count * one if one else page.inflated
        largest = max(largest, one)
        if encoding in (_DELTA_LENGTH, _DELTA_BYTE_ARRAY):
            check_plausible(inflated, len(data), "its pages")
            for plain in _values(data, page, chunk, leaf):
                check_lengths(plain, count, prefixes=encoding == _DELTA_BYTE_ARRAY)
    if seen > chunk.values:
        raise ValueError(f"its pages have {seen} values, but its footer says {chunk.values}")
    if leaf.length:
        values, largest = chunk.values * leaf.length, leaf.length
    return Bound(inflated, values, largest)


def _check_sizes(inflated: int, stored: int, left: int, chunk: Chunk) -> None:
    if not 0 <= stored <= left or not 0 <= inflated < _MAX_PAGE:
        raise ValueError(
            f"a page claims {stored} bytes, and {inflated} when decompressed; {left} bytes are left"
        )
    if chunk.codec == UNCOMPRESSED and inflated != stored:
        raise ValueError(f"an uncompressed page of {stored} bytes claims {inflated} bytes")


def _read_page(data: Buffer, position: int, chunk: Chunk) -> _Page:
    reader = _Compact(data, position)
    header = reader.struct()
    kind, inflated, stored = (_number(header, field) for field in (1, 2, 3))
    start = reader.position
    _check_sizes(inflated, stored, len(data) - start, chunk)
    if kind == _INDEX:
        return _Page(kind, inflated, start, start + stored, (), True)
    field, wanted = _ABOUT.get(kind, (0, ()))
    about = header.get(field)
    if not isinstance(about, dict):
        raise ValueError(f"a page of type {kind} does not say what it holds")
    numbers = tuple(_number(about, wanted_field) for wanted_field in wanted)
    if min(numbers) < 0:
        raise ValueError(f"a page of type {kind} does not say what it holds")
    packed = about.get(_PACKED) is not False
    return _Page(kind, inflated, start, start + stored, numbers, packed)


def _number(header: dict[int, Any], field: int) -> int:
    found = header.get(field)
    if found is None or isinstance(found, bool | dict):
        raise ValueError(f"a page's header lacks field {field}")
    return int(found)


def _values(data: Buffer, page: _Page, chunk: Chunk, leaf: Leaf) -> Iterator[Buffer]:
    """Yield the decompressed values of a page.

    Readers differ in whether some pages are compressed; then both readings are yielded.
    """
    stored = data[page.start : page.end]
    if page.kind == _DATA_V2:  # levels of version 2 are never compressed
        levels = sum(page.about[2:])
        if levels > min(len(stored), page.inflated):
            raise ValueError(f"a page of {len(stored)} bytes claims levels of {levels} bytes")
        if not page.packed or chunk.codec == UNCOMPRESSED:
            yield stored[levels:]
        if chunk.codec != UNCOMPRESSED:
            try:
                yield _inflated(chunk.codec, stored[levels:], page.inflated - levels)
            except ValueError:
                if page.packed:
                    raise
        return
    plain = stored
    if chunk.codec != UNCOMPRESSED:
        plain = _inflated(chunk.codec, stored, page.inflated)
    if leaf.nullable:
        levels = int.from_bytes(plain[:_LENGTH], "little") + _LENGTH
        if page.about[2] != _RLE or levels > len(plain):
            raise ValueError(f"a page of {len(plain)} bytes claims levels of {levels} bytes")
        plain = plain[levels:]
    yield plain


def _inflated(codec: str, stored: Buffer, size: int) -> Buffer:
    import pyarrow as pa

    try:
        data = pa.decompress(
            pa.py_buffer(stored), decompressed_size=size, codec=codec, asbytes=False
        )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"a page can't be read: {error}") from None
    return memoryview(data).cast("B")


_VARINT = rb"([\x80-\xff]{0,4}+[\x00-\x7f])"
_LEVELS = rb"\x15[\x00\x02\x04\x06\x08\x0a\x0c\x0e\x10\x12]"
_PLAIN = re.compile(
    # Type, sizes and checksum of a data page; its values, which are plain; the encodings of its
    # levels; its statistics, which are empty.
    rb"\x15\x00\x15%b\x15%b(?:\x15[\x80-\xff]{0,4}+[\x00-\x7f]\x1c|\x2c)"
    rb"\x15%b\x15\x00%b%b(?:\x1c\x00)?\x00\x00" % (_VARINT, _VARINT, _VARINT, _LEVELS, _LEVELS)
)
"""Matches the header of most pages of most writers; several times faster than field by field."""


_MAX_BITS = 32


def check_lengths(values: Buffer, count: int, *, prefixes: bool) -> None:
    """Raise ValueError if the ``values`` of a page claim more than ``count`` lengths.

    ``prefixes``: the page is DELTA_BYTE_ARRAY, which stores the prefixes' lengths first.

    The lengths of values, and of the prefixes that they share, are stored as DELTA_BINARY_PACKED: a
    header with the number of values, then blocks of differences, which take no bytes if all
    differences are equal. pyarrow allocates and fills memory for as many lengths as the header
    claims, so a page of ten bytes could take 8 GiB.
    """
    reader = _Compact(values)
    if prefixes:
        _skip(reader, count)
    _skip(reader, count)


def _skip(reader: _Compact, most: int) -> None:
    """Advance over one DELTA_BINARY_PACKED sequence; ValueError for more than ``most`` numbers."""
    block, parts, count = (reader.varint(5) for _ in range(3))
    reader.varint()  # the first value
    if count > most:
        raise ValueError(f"a page of {most} values claims {count} lengths")
    each = block // parts if parts else 0
    if parts > len(reader.data) or each == 0 or each % 32 or each * parts != block:
        raise ValueError(f"a page has blocks of {block} lengths in {parts} parts")
    left = count - 1
    while left > 0:
        reader.varint()  # the smallest difference of the block
        for bits in reader.take(parts):
            if left <= 0:
                break
            if bits > _MAX_BITS:
                raise ValueError(f"a page has lengths of {bits} bits")
            reader.take(each * bits // 8)
            left -= each


class _Compact:
    """A position in ``data`` that advances over each value that is read.

    Every method raises ValueError if the bytes end too early or are malformed.
    """

    def __init__(self, data: Buffer, position: int = 0) -> None:
        self.data = data
        self.position = position

    def varint(self, most: int = 10) -> int:
        """Read an unsigned number of at most ``most`` bytes."""
        value = 0
        for place, byte in enumerate(self.data[self.position : self.position + most]):
            value |= (byte & 127) << 7 * place
            if byte < 128:
                self.position += place + 1
                return value
        raise self._error("a number has no end")

    def take(self, length: int) -> Buffer:
        """Read ``length`` bytes, as they are."""
        start = self.position
        if length > len(self.data) - start:
            raise self._error(f"{length} bytes are more than what is left")
        self.position = start + length
        return self.data[start : start + length]

    def struct(self, depth: int = 1) -> dict[int, Any]:
        """Read a struct: numbers, truth values and structs by field; other values are None.

        A field that occurs twice is an error, because readers differ in which value they use. So is
        a type that a page's header does not have.
        """
        found: dict[int, Any] = {}
        field = 0
        while head := self.take(1)[0]:
            step, kind = head >> 4, head & 15
            field = field + step if step else self._number(_I16)
            if field in found:
                raise self._error(f"field {field} comes twice")
            if kind in _NUMBERS:
                found[field] = self._number(kind)
            elif kind in (_TRUE, _FALSE):
                found[field] = kind == _TRUE
            elif kind == _STRUCT and depth < _MAX_DEPTH:
                found[field] = self.struct(depth + 1)
            elif kind in (_BYTE, _DOUBLE, _BINARY):
                self.take({_BYTE: 1, _DOUBLE: 8}.get(kind) or self.varint(5))
                found[field] = None
            else:
                raise self._error(f"field {field} of a page's header has the type {kind}")
        return found

    def _number(self, kind: int) -> int:
        most, bits = _NUMBERS[kind]
        value = self.varint(most)
        if value >> bits:
            raise self._error(f"a number has more than {bits} bits")
        return (value >> 1) ^ -(value & 1)

    def _error(self, why: str) -> ValueError:
        return ValueError(f"{why} (at byte {self.position} of {len(self.data)})")


def _signed(code: bytes) -> int:
    """Decode a signed (zigzag) varint that the pattern has matched."""
    value = 0
    for place, byte in enumerate(code):
        value |= (byte & 127) << 7 * place
    return (value >> 1) ^ -(value & 1)

"""The pages of a Parquet column chunk: how much memory decoding them takes, from their headers.

A page states its own decompressed size, which may be wrong. A value that refers to a dictionary or
shares a prefix costs a byte or less, and equal lengths cost nothing. So all of these are limited
before anything is decoded.

Source: github.com/apache/parquet-format, src/main/thrift/parquet.thrift (PageHeader), Encodings.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ..buffers import Buffer
from ..limits import check_plausible
from .parquet_footer import CODECS, UNCOMPRESSED, Chunk, signed
from .parquet_schema import FIXED, Leaf
from .thrift import FALSE, I32, STRUCT, Compact

_DATA, _INDEX, _DICTIONARY, _DATA_V2 = range(4)
_DELTA_LENGTH, _DELTA_BYTE_ARRAY = 6, 7
_OF_DICTIONARY = (2, 8)
_RLE = 3
_LENGTH = 4
"""Bytes of the length in front of a value of varying length, and in front of levels."""

_MAX_PAGE = 1 << 31

_HEADERS = {5: (_DATA, (1, 2, 3)), 7: (_DICTIONARY, (1, 2)), 8: (_DATA_V2, (1, 4, 5, 6))}
"""Fields of interest for each kind of page: the number of values and the encoding come first, then
the encoding of the levels, or how many bytes the levels take.
"""

_PACKED = 7
"""The field of a data page, version 2, that says whether its values are compressed."""


class Bound(NamedTuple):
    """Upper limits, in bytes, for the memory that decoding the pages of a chunk takes.

    ``inflated``: the pages, decompressed; ``values``: all values; ``largest``: one value, among
    those that can be longer than their stored bytes.
    """

    inflated: int
    values: int
    largest: int


class _Page(NamedTuple):
    """A page. ``start``, ``end``: what follows its header. ``about``: fields of ``_HEADERS``."""

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
            size, stored, start = signed(match[1]), signed(match[2]), match.end()
            _check_sizes(size, stored, len(data) - start, chunk)
            seen, position = seen + signed(match[3]), start + stored
            inflated, values = inflated + size, values + size
            continue
        page = _read_page(data, position, chunk)
        inflated, position = inflated + page.inflated, page.end
        if page.kind == _INDEX:
            continue
        count, encoding = page.about[:2]
        if page.kind == _DICTIONARY:
            each = leaf.length if leaf.physical == FIXED else _LENGTH
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
    if leaf.physical == FIXED:
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
    reader = Compact(data, position)
    numbers: dict[int, int] = {}
    found: dict[int, tuple[int, ...]] = {}
    packed = True
    for field, kind in reader.fields():
        if field in (1, 2, 3):
            reader.want(kind, I32, "a number of a page's header")
            numbers[field] = reader.number(I32)
        elif field in _HEADERS:
            reader.want(kind, STRUCT, "a page's header")
            of, wanted = _HEADERS[field]
            found[of], packed = _read_about(reader, wanted)
        else:
            reader.skip(kind)
    if missing := {1, 2, 3} - numbers.keys():
        raise ValueError(f"a page's header lacks field {min(missing)}")
    kind, inflated, stored = numbers[1], numbers[2], numbers[3]
    start = reader.position
    _check_sizes(inflated, stored, len(data) - start, chunk)
    about = found.get(kind, ())
    if kind != _INDEX and (not about or min(about) < 0):
        raise ValueError(f"a page of type {kind} does not say what it holds")
    return _Page(kind, inflated, start, start + stored, about, packed)


def _read_about(reader: Compact, wanted: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """(the numbers of the fields ``wanted``, -1 if missing; whether the values are compressed)."""
    found = dict.fromkeys(wanted, -1)
    packed = True
    for field, kind in reader.fields():
        if field in found:
            reader.want(kind, I32, "a number of a page's header")
            found[field] = reader.number(I32)
        else:
            packed &= not (field == _PACKED and kind == FALSE)
            reader.skip(kind)
    return tuple(found.values()), packed


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


def _inflated(codec: int, stored: Buffer, size: int) -> Buffer:
    import pyarrow as pa

    try:
        data = pa.decompress(
            pa.py_buffer(stored), decompressed_size=size, codec=CODECS[codec], asbytes=False
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
    reader = Compact(values)
    if prefixes:
        _skip(reader, count)
    _skip(reader, count)


def _skip(reader: Compact, most: int) -> None:
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

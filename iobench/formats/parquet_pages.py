"""The pages of a Parquet column chunk: how much memory decoding them takes, by their headers.

A page says how long it is when its compression is undone, which is a claim; and behind a dictionary
or common prefixes a value costs a byte or less. So both are bounded before anything is decoded.

Source: github.com/apache/parquet-format, src/main/thrift/parquet.thrift (PageHeader), Encodings.md.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .base import Buffer
from .parquet_footer import UNCOMPRESSED, Chunk
from .parquet_schema import FIXED, Leaf
from .thrift import I32, STRUCT, Compact

_DATA, _INDEX, _DICTIONARY, _DATA_V2 = range(4)
_PLAIN, _PLAIN_DICTIONARY, _DELTA_BYTE_ARRAY, _RLE_DICTIONARY = 0, 2, 7, 8
_ENCODINGS = 10
_LENGTH = 4
"""Bytes that a value of varying length has in front of it."""

_SUB_HEADERS = {5: _DATA, 7: _DICTIONARY, 8: _DATA_V2}
_VALUES, _ENCODING = 1, {5: 2, 7: 2, 8: 4}
"""Fields of the numbers that count, in the header of each kind of page."""


class Bound(NamedTuple):
    """What the pages of a chunk take when they are decoded, at most. All in bytes.

    ``inflated``: the pages without their compression; ``values``: all values; ``largest``: one
    value, of those that are longer than what is stored of them.
    """

    inflated: int
    values: int
    largest: int


class _Page(NamedTuple):
    kind: int
    encoding: int
    values: int
    inflated: int
    start: int  # of what follows the header
    end: int


def bound(data: Buffer, chunk: Chunk, leaf: Leaf) -> Bound:
    """Of a chunk's bytes in memory. Raises ValueError for headers that contradict themselves."""
    position = seen = inflated = values = largest = dictionary = 0
    while seen < chunk.values and position < len(data):
        page = _read_page(data, position)
        position = page.end
        if chunk.codec == UNCOMPRESSED and page.inflated != page.end - page.start:
            raise ValueError(
                f"a page of {page.end - page.start} bytes, without compression, "
                f"claims {page.inflated}"
            )
        inflated += page.inflated
        if page.kind == _DICTIONARY:
            each = leaf.length if leaf.physical == FIXED else _LENGTH
            if page.values * each > page.inflated:
                raise ValueError(
                    f"a dictionary of {page.inflated} bytes claims {page.values} values"
                )
            dictionary = page.inflated
        elif page.kind in (_DATA, _DATA_V2):
            seen += page.values
            if page.encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
                one = dictionary
            elif page.encoding == _DELTA_BYTE_ARRAY:
                one = page.inflated
            else:
                values += page.inflated
                continue
            values += page.values * one
            largest = max(largest, one)
    if seen > chunk.values:
        raise ValueError(f"its pages have {seen} values, its footer tells of {chunk.values}")
    if leaf.physical == FIXED:
        values, largest = chunk.values * leaf.length, leaf.length
    return Bound(inflated, values, largest)


def _read_page(data: Buffer, position: int) -> _Page:
    match = _USUAL.match(data, position)
    if match is not None:
        inflated, stored, values = (_number(match[part]) for part in (1, 2, 3))
        found = {_DATA: (values, match[4][0] >> 1)}
        kind, start = _DATA, match.end()
    else:
        reader = Compact(data, position)
        numbers, found = _read_header(reader)
        start = reader.position
        if missing := {1, 2, 3} - numbers.keys():
            raise ValueError(f"a page's header lacks field {min(missing)}")
        kind, inflated, stored = numbers[1], numbers[2], numbers[3]
    if not 0 <= stored <= len(data) - start or inflated < 0:
        raise ValueError(f"a page of {stored} bytes would become {inflated} bytes")
    if kind not in (_DATA, _INDEX, _DICTIONARY, _DATA_V2):
        raise ValueError(f"a page has the unknown type {kind}")
    if kind != _INDEX and kind not in found:
        raise ValueError(f"a page's header lacks what belongs to its type {kind}")
    values, encoding = found.get(kind, (0, 0))
    if values < 0 or not 0 <= encoding < _ENCODINGS:
        raise ValueError(f"a page has {values} values in the encoding {encoding}")
    return _Page(kind, encoding, values, inflated, start, start + stored)


def _read_header(reader: Compact) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """The numbers of a page's header by their fields; (values, encoding) by the kind of page."""
    numbers: dict[int, int] = {}
    found: dict[int, tuple[int, int]] = {}
    for field, kind in reader.fields():
        if field in (1, 2, 3):
            reader.want(kind, I32, "a number of a page's header")
            numbers[field] = reader.number(I32)
        elif field in _SUB_HEADERS:
            reader.want(kind, STRUCT, "a page's header")
            inner = _read_numbers(reader, {_VALUES, _ENCODING[field]})
            values, encoding = inner.get(_VALUES, -1), inner.get(_ENCODING[field], -1)
            found[_SUB_HEADERS[field]] = values, encoding
        else:
            reader.skip(kind)
    return numbers, found


def _read_numbers(reader: Compact, wanted: set[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for field, kind in reader.fields():
        if field in wanted:
            reader.want(kind, I32, "a number of a page's header")
            found[field] = reader.number(I32)
        else:
            reader.skip(kind)
    return found


_VARINT = rb"([\x80-\xff]{0,4}+[\x00-\x7f])"
_CODE = rb"[\x00\x02\x04\x06\x08\x0a\x0c\x0e\x10\x12]"  # an encoding
_USUAL = re.compile(
    # A data page: its sizes, its checksum; its values, their encoding, and those of its levels.
    rb"\x15\x00\x15%b\x15%b(?:\x15[\x80-\xff]{0,4}+[\x00-\x7f]\x1c|\x2c)"
    rb"\x15%b\x15(%b)\x15%b\x15%b\x00\x00" % (_VARINT, _VARINT, _VARINT, _CODE, _CODE, _CODE)
)
"""Most pages of most writers, where they state no statistics; several times faster than field by
field."""


def _number(code: bytes) -> int:
    return Compact(code).number(I32)

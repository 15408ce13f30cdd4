"""Check how many numbers a page claims to store as differences (Parquet's delta encodings).

The lengths of values, and of the prefixes that they share, are stored as DELTA_BINARY_PACKED: a
header with the number of values, then blocks of differences, which take no bytes if all differences
are equal. pyarrow allocates and fills memory for as many lengths as the header claims, so a page of
ten bytes could take 8 GiB. The header must therefore not claim more lengths than the page has
values.

Source: github.com/apache/parquet-format, Encodings.md (DELTA_BINARY_PACKED,
DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY).
"""

from __future__ import annotations

from ..buffers import Buffer
from .thrift import Compact

_MAX_BITS = 32


def check_lengths(values: Buffer, count: int, *, prefixes: bool) -> None:
    """Raise ValueError if the ``values`` of a page claim more than ``count`` lengths.

    ``prefixes``: the page is DELTA_BYTE_ARRAY, which stores the prefixes' lengths first.
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

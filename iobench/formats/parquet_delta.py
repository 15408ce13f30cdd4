"""Numbers that Parquet stores as differences: how many a page claims to have of them.

The lengths of values, and of the prefixes that they share, come as DELTA_BINARY_PACKED: a header
with the number of values, and blocks of differences, which take no byte where they are all alike.
pyarrow makes room for as many lengths as the header says, and fills it: a page of ten bytes would
take 8 GiB. So the header must not claim more than the page has values.

Source: github.com/apache/parquet-format, Encodings.md (DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY,
DELTA_BYTE_ARRAY).
"""

from __future__ import annotations

from ..buffers import Buffer
from .thrift import Compact

_MAX_BITS = 32


def check_lengths(values: Buffer, count: int, *, prefixes: bool) -> None:
    """Raises ValueError where ``values`` of a page claim more than ``count`` lengths.

    ``prefixes``: those of DELTA_BYTE_ARRAY, which have the lengths of prefixes in front.
    """
    reader = Compact(values)
    if prefixes:
        _skip(reader, count)
    _skip(reader, count)


def _skip(reader: Compact, most: int) -> None:
    """Move over a sequence of numbers."""
    block, parts, count = (reader.varint(5) for _ in range(3))
    reader.varint()  # the first number
    if count > most:
        raise ValueError(f"a page of {most} values claims {count} lengths")
    each = block // parts if parts else 0
    if parts > len(reader.data) or each == 0 or each % 32 or each * parts != block:
        raise ValueError(f"a page has blocks of {block} lengths in {parts} parts")
    left = count - 1
    while left > 0:
        reader.varint()  # the smallest difference
        for bits in reader.take(parts):
            if left <= 0:
                break
            if bits > _MAX_BITS:
                raise ValueError(f"a page has lengths of {bits} bits")
            reader.take(each * bits // 8)
            left -= each

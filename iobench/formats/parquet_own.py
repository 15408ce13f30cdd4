"""A regular expression for the row groups of a Parquet footer that iobench itself wrote.

Such row groups have columns of bytes, no statistics and no dictionaries. What matches may be passed
to pyarrow unchanged: the expression admits only bytes that the format allows at their place,
whatever the values of the numbers are.
"""

from __future__ import annotations

import re
from functools import lru_cache

from .thrift import I32, STRUCT, listed

_VARINT = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_ENCODING = rb"[\x00\x04\x06\x08\x0a\x0c\x0e\x10\x12]"  # 0, 2 to 9
_CODEC = rb"[\x00\x02\x04\x06\x08\x0a\x0c\x0e]"


def _up_to(most: int, kind: int, element: bytes) -> bytes:
    """Pattern for lists of 1 to ``most`` elements of type ``kind``."""
    return b"|".join(b"\\x%02x(?:%b){%d}" % (n << 4 | kind, element, n) for n in range(1, most + 1))


def _chunk_pattern(*, capture: bool) -> bytes:
    number = b"(%b)" % _VARINT if capture else _VARINT
    codec = b"(%b)" % _CODEC if capture else _CODEC
    name = b"|".join(b"\\x%02xc[0-9]{%d}" % (digits + 1, digits) for digits in range(3, 8))
    stats = b"\\x15[\\x00\\x02\\x04\\x06]\\x15%b\\x15%b\\x00" % (_ENCODING, _VARINT)
    return b"".join(
        (
            b"\\x26%b\\x1c" % _VARINT,  # file_offset, meta_data
            b"\\x15[\\x0c\\x0e]",  # type
            b"\\x19(?:%b)" % _up_to(5, I32, _ENCODING),  # encodings
            b"\\x19\\x18(?:%b)" % name,  # path_in_schema
            b"\\x15%b" % codec,
            b"\\x16%b" % number,  # num_values
            b"\\x16%b" % _VARINT,  # total_uncompressed_size
            b"\\x16%b" % number,  # total_compressed_size
            b"\\x26%b" % number,  # data_page_offset
            b"(?:\\x49(?:%b))?" % _up_to(5, STRUCT, stats),  # encoding_stats
            b"\\x00\\x00",
        )
    )


CHUNK = re.compile(_chunk_pattern(capture=True))


@lru_cache(maxsize=16)
def own_group(columns: int) -> re.Pattern[bytes]:
    """Pattern for a row group of ``columns`` columns; captures its chunks and number of rows."""
    head = listed(STRUCT, [b""] * columns)
    rest = b"\\x16%b\\x16(%b)(?:\\x26%b)?+(?:\\x16%b)?+(?:\\x14%b)?+\\x00" % ((_VARINT,) * 5)
    chunk = _chunk_pattern(capture=False)
    return re.compile(b"\\x19%b((?:(?>%b)){%d})%b" % (re.escape(head), chunk, columns, rest))


def signed(code: bytes) -> int:
    """Decode a signed (zigzag) varint that the pattern has matched."""
    value = 0
    for place, byte in enumerate(code):
        value |= (byte & 127) << 7 * place
    return (value >> 1) ^ -(value & 1)

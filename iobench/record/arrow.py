"""Columns of Arrow from arrays of numpy, and back, without pandas; and a check of Arrow files.

Arrow's own ``pa.array``, ``pa.table`` and ``to_numpy`` import pandas if it is installed, which
takes more time than all else that a short command does, and memory.

A file that iobench writes has no compressed buffers and no dictionaries. Arrow trusts the length
that a compressed buffer states for itself, so that a file of a few kilobytes can take gigabytes of
memory. iobench maps its tables into memory and never compresses them.

Source: Arrow's columnar format, "IPC File Format", and the schemas File.fbs and Message.fbs;
FlatBuffers' "Internals" for the layout of a table in its buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def number_column(values: Array, *, nan_is_null: bool = False) -> Any:
    """Return an Arrow array of the same values; it shares their memory if they are contiguous."""
    import pyarrow as pa

    known = ~np.isnan(values) if nan_is_null else np.ones(1, bool)
    valid = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, buffer])


def text_column(texts: Sequence[bytes], kind: Any) -> Any:
    """Return an Arrow array of texts; ``kind`` is ``string``, ``large_string`` or ``large_binary``.

    A cast by Arrow would import its compute functions, which takes longer than to write a file.
    Arrow does not check whether the bytes are UTF-8.
    """
    import pyarrow as pa

    offset = np.int32 if kind == pa.string() else np.int64
    ends = np.fromiter(accumulate(map(len, texts), initial=0), offset, len(texts) + 1)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(kind, len(texts), buffers)


def numbers(column: Any) -> Array:
    """Return the values of an Arrow array; a fraction that is null is NaN.

    No value is copied unless one is null. Raises ValueError if they are not numbers, or an integer
    is null.
    """
    import pyarrow as pa

    fractions = pa.types.is_floating(column.type)
    if not fractions and (column.null_count or not pa.types.is_integer(column.type)):
        raise ValueError(f"a column of {column.type} does not hold numbers only")
    kind = "f" if fractions else "u" if pa.types.is_unsigned_integer(column.type) else "i"
    # Not by pyarrow's own to_pandas_dtype, for which older versions need pandas.
    dtype, count = np.dtype(f"{kind}{column.type.bit_width // 8}"), len(column)
    if not count:
        return np.empty(0, dtype)
    valid, data = column.buffers()
    values = np.frombuffer(data, dtype, count, column.offset * dtype.itemsize)
    if not column.null_count:
        return values
    known = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")
    return np.where(known[column.offset : column.offset + count], values, np.nan)


_MAGIC = b"ARROW1"
_FOOTER = struct.Struct("<i6s")  # the end of the file: length of the footer before it, magic
# A Block, the place of a message: its offset, the length of its metadata, the length of its body.
_BLOCK = struct.Struct("<qi4xq")
_CONTINUED = 0xFFFFFFFF

_DICTIONARIES, _BATCHES = 2, 3  # field numbers in Footer
_HEADER = 2  # field number in Message: the RecordBatch
_COMPRESSION = 3  # field number in RecordBatch


def check_plain(data: memoryview) -> None:
    """Raise ValueError if an Arrow file is compressed, has dictionaries, or is damaged."""
    try:
        length, magic = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
        end = len(data) - _FOOTER.size
        if magic != _MAGIC or not 0 < length <= end:
            raise ValueError("it has no Arrow footer")
        footer = data[end - length : end]
        root = _follow(footer, 0)
        if _blocks(footer, _field(footer, root, _DICTIONARIES)):
            raise ValueError("it has dictionaries, which iobench's tables never have")
        for offset, metadata, _ in _blocks(footer, _field(footer, root, _BATCHES)):
            if not 0 <= offset <= offset + metadata <= len(data):
                raise ValueError("its footer points outside the file")
            _check_batch(data[offset : offset + metadata])
    except (struct.error, OverflowError):
        raise ValueError("its footer is damaged") from None


def _check_batch(message: memoryview) -> None:
    (first,) = struct.unpack_from("<I", message, 0)
    table = message[8 if first == _CONTINUED else 4 :]
    header = _field(table, _follow(table, 0), _HEADER)
    if not header:
        raise ValueError("one of its messages is empty")
    if _field(table, _follow(table, header), _COMPRESSION):
        raise ValueError("it is compressed, which iobench's tables never are")


def _blocks(buffer: memoryview, field: int) -> list[tuple[int, int, int]]:
    if not field:
        return []
    start = _follow(buffer, field)
    (count,) = struct.unpack_from("<I", buffer, start)
    if count > len(buffer) // _BLOCK.size:
        raise ValueError("its footer is damaged")
    return [_BLOCK.unpack_from(buffer, start + 4 + number * _BLOCK.size) for number in range(count)]


def _follow(buffer: memoryview, place: int) -> int:
    """Return the position to which the offset at ``place`` points."""
    (offset,) = struct.unpack_from("<I", buffer, place)
    return place + int(offset)


def _field(buffer: memoryview, table: int, number: int) -> int:
    """Return the position of a table's field, or 0 if the table does not have it."""
    (back,) = struct.unpack_from("<i", buffer, table)
    entries = table - int(back)
    if entries < 0:
        raise ValueError("its footer is damaged")
    (size,) = struct.unpack_from("<H", buffer, entries)
    entry = 4 + 2 * number
    if entry + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", buffer, entries + entry)
    return table + int(offset) if offset else 0

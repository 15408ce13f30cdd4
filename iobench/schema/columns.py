"""Columns of Arrow from arrays of numpy, and back, without pandas.

Arrow's own ``pa.array``, ``pa.table`` and ``to_numpy`` import pandas if it is installed, which
takes more time than all else that a short command does, and memory.
"""

from __future__ import annotations

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
    """Return an Arrow array of texts; ``kind`` is one of ``large_string`` and ``large_binary``.

    Arrow does not check whether the bytes are UTF-8.
    """
    import pyarrow as pa

    ends = np.fromiter(accumulate(map(len, texts), initial=0), np.int64, len(texts) + 1)
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
    dtype, count = np.dtype(column.type.to_pandas_dtype()), len(column)
    if not count:
        return np.empty(0, dtype)
    valid, data = column.buffers()
    values = np.frombuffer(data, dtype, count, column.offset * dtype.itemsize)
    if not column.null_count:
        return values
    known = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")
    return np.where(known[column.offset : column.offset + count], values, np.nan)

"""The rows of a Parquet row group, column by column, as pyarrow has decoded them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.buffers import Buffer

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Rows:
    """The rows of one row group.

    Each column is (bytes, offsets [rows + 1] at which its rows begin).
    """

    def __init__(self, columns: list[tuple[Bytes, Int64]]) -> None:
        self._columns = columns
        self.count = len(columns[0][1]) - 1
        self.sizes: Int64 = np.sum([np.diff(offsets) for _, offsets in columns], axis=0)

    @classmethod
    def joined(cls, pieces: list[Rows]) -> Rows:
        """Concatenate consecutive pieces, of which there must be at least one."""
        if len(pieces) == 1:
            return pieces[0]
        columns = []
        for parts in zip(*(piece._columns for piece in pieces), strict=True):
            data = np.concatenate([data[offsets[0] : offsets[-1]] for data, offsets in parts])
            sizes = np.concatenate([np.diff(offsets) for _, offsets in parts])
            columns.append((data, np.concatenate(([0], np.cumsum(sizes)))))
        return cls(columns)

    def content(self, row: int) -> Buffer:
        """One row's bytes: a view if there is only one column, else a copy."""
        if len(self._columns) == 1:
            data, offsets = self._columns[0]
            return data[offsets[row] : offsets[row + 1]].data
        out = np.empty(int(self.sizes[row]), np.uint8)
        self.copy(row, out)
        return out.data

    def copy(self, row: int, out: Bytes) -> None:
        """Copy the row's first ``len(out)`` bytes to ``out``."""
        done = 0
        for data, offsets in self._columns:
            start = int(offsets[row])
            count = min(int(offsets[row + 1]) - start, len(out) - done)
            out[done : done + count] = data[start : start + count]
            done += count
            if done == len(out):
                return

    def scatter(self, rows: Int64, out: Bytes, where: Int64) -> None:
        """Copy the first bytes of ``rows`` to the rows ``where`` of ``out`` (2-D).

        All rows must have the same size (``even``).
        """
        done = 0
        chosen, placed = _slice(rows), _slice(where)
        for data, offsets in self._columns:
            width = int(offsets[1] - offsets[0])
            count = min(width, out.shape[1] - done)
            # View the cells as elements of ``count`` bytes: numpy moves such an element in one go,
            # but single bytes one at a time.
            part = f"V{count}" if count not in (1, 2, 4, 8) else f"u{count}"
            cells = data[offsets[0] : offsets[-1]].reshape(-1, width)[:, :count].view(part)
            out[:, done : done + count].view(part)[placed] = cells[chosen]
            done += count
            if done == out.shape[1]:
                return

    @property
    def even(self) -> bool:
        """Whether, in each column, the parts of all rows have the same size, which is not 0."""
        return all(
            len(offsets) > 1 and (steps := np.diff(offsets)).min() == steps.max() > 0
            for _, offsets in self._columns
        )


def _slice(numbers: Int64) -> Int64 | slice:
    """Convert consecutive numbers to a slice, with which numpy indexes faster."""
    first, last = int(numbers[0]), int(numbers[-1])
    return (
        slice(first, last + 1)
        if last - first == len(numbers) - 1 and bool((np.diff(numbers) == 1).all())
        else numbers
    )


def rows_of(pa: Any, table: Any) -> Rows:
    """Make the rows of a table whose columns hold bytes, also inside structs."""
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return Rows([_column(pa, column) for column in table.columns])


def _column(pa: Any, column: Any) -> tuple[Bytes, Int64]:
    """(bytes, offsets) of a column of one row group; a null becomes an empty value."""
    kind = column.type
    if pa.types.is_fixed_size_binary(kind):
        if column.null_count:  # a null takes ``byte_width`` bytes, too
            column = pa.chunked_array([pa.array(column.to_pylist(), pa.binary())])
            return _column(pa, column)
        array = _one(pa, column)
        width, first = kind.byte_width, array.offset
        data = np.frombuffer(array.buffers()[1], np.uint8)[
            first * width : (first + len(array)) * width
        ]
        return data, np.arange(0, len(data) + 1, width)
    array = _one(pa, as_bytes(pa, column))
    _, offsets, data = array.buffers()
    starts = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8), starts


def as_bytes(pa: Any, column: Any) -> Any:
    """Convert a column of bytes or text, of whichever type its writer has named, to plain bytes."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    if pa.types.is_dictionary(column.type):
        column = pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks])
    return column.cast(pa.large_binary())


def _one(pa: Any, column: Any) -> Any:
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
    )

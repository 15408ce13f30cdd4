"""Reading Parquet by row group: where a group's column chunks lie, and their rows out of memory (decoded by pyarrow)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .base import Buffer

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_END = 8
"""Length of the footer (u32), then PAR1."""

_OWN = re.compile(r"c\d{3,}")


class Rows:
    """The rows of one row group. Each column is its bytes and the offsets [rows + 1] at which its rows begin."""

    def __init__(self, columns: list[tuple[Bytes, Int64]]) -> None:
        self._columns = columns
        self.count = len(columns[0][1]) - 1
        self.sizes: Int64 = np.sum([np.diff(offsets) for _, offsets in columns], axis=0)

    def content(self, row: int) -> Buffer:
        """One row's bytes: a view where they lie in one column."""
        if len(self._columns) == 1:
            data, offsets = self._columns[0]
            return data[offsets[row] : offsets[row + 1]].data
        out = np.empty(int(self.sizes[row]), np.uint8)
        self.copy(row, out)
        return out.data

    def copy(self, row: int, out: Bytes) -> None:
        """As many of the row's bytes as ``out`` takes."""
        done = 0
        for data, offsets in self._columns:
            start = int(offsets[row])
            count = min(int(offsets[row + 1]) - start, len(out) - done)
            out[done : done + count] = data[start : start + count]
            done += count
            if done == len(out):
                return

    def scatter(self, rows: Int64, out: Bytes, where: Int64) -> None:
        """The first bytes of ``rows``, which are all of one size, into the rows ``where`` of ``out`` (2-D), column by column."""
        done = 0
        for data, offsets in self._columns:
            width = int(offsets[1] - offsets[0])
            count = min(width, out.shape[1] - done)
            out[where, done : done + count] = data[offsets[0] : offsets[-1]].reshape(-1, width)[rows, :count]
            done += count
            if done == out.shape[1]:
                return

    @property
    def even(self) -> bool:
        """All parts of a column are of one size (not 0)."""
        return all(len(offsets) > 1 and (steps := np.diff(offsets)).min() == steps.max() > 0 for _, offsets in self._columns)


class ParquetShard:
    """One Parquet file's footer. ``rows`` [groups + 1]: the first row of each row group, and the end. Not thread-safe."""

    def __init__(self, tail: Buffer, size: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if len(tail) <= _END or bytes(tail[-4:]) != b"PAR1":
            raise ValueError(f"no Parquet file: no PAR1 at its end (byte {size})")
        length = int.from_bytes(tail[-_END:-4], "little")
        if length + _END > len(tail):
            raise ValueError(f"the Parquet footer is damaged: it claims {length} bytes, of {len(tail) - _END} behind the row groups")
        try:
            self._adopt(pq.read_metadata(pa.BufferReader(pa.py_buffer(tail[-_END - length :]))), size)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"the Parquet footer is damaged: {_line(error)}") from None

    @classmethod
    def of(cls, metadata: Any, size: int) -> ParquetShard:
        shard = cls.__new__(cls)
        shard._adopt(metadata, size)
        return shard

    def _adopt(self, metadata: Any, size: int) -> None:
        self._metadata = metadata
        self._size = size
        self._leaves = _sample_columns(metadata)
        self._file: Any = None
        self._source: _Source | None = None
        self.groups = int(metadata.num_row_groups)
        self.nbytes = int(metadata.serialized_size)
        counts = [metadata.row_group(group).num_rows if self._leaves else 1 for group in range(self.groups)]
        if min(counts, default=0) < 0:
            raise ValueError("a row group of less than no rows")
        self.rows: Int64 = np.concatenate(([0], np.cumsum(np.array(counts, np.int64))))

    def group_extent(self, group: int) -> tuple[int, int]:
        """From where to where all column chunks of a group lie."""
        extents = [self._chunk(group, column) for column in range(self._metadata.num_columns)]
        return min(start for start, _ in extents), max(end for _, end in extents)

    def extents(self, group: int, columns: int | None) -> list[tuple[int, int]]:
        """Where the column chunks lie that the samples are made of, or the first ``columns`` of them."""
        if not self._leaves:
            return [self.group_extent(group)]
        return [self._chunk(group, column) for column in self._leaves[:columns]]

    def _chunk(self, group: int, column: int) -> tuple[int, int]:
        chunk = self._metadata.row_group(group).column(column)
        dictionary = chunk.dictionary_page_offset
        start = min(dictionary, chunk.data_page_offset) if dictionary else chunk.data_page_offset
        end = start + chunk.total_compressed_size
        if not 0 < start < end <= self._size:
            raise ValueError(f"row group {group}, column {column} would lie at bytes {start} to {end} of {self._size}")
        return int(start), int(end)

    def decode(self, group: int, columns: int | None, parts: Sequence[tuple[int, Buffer]], *, check: bool) -> Rows:
        """Rows of a group from memory; ``parts`` are (offset, bytes) that cover ``extents``. Raises ValueError."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._leaves:
            data = np.frombuffer(parts[0][1], np.uint8)
            return Rows([(data, np.array([0, len(data)]))])
        try:
            if self._file is None or self._source is None:
                self._source = _Source(self._size)
                source = pa.PythonFile(self._source, mode="r")
                self._file = pq.ParquetFile(source, metadata=self._metadata, pre_buffer=False, page_checksum_verification=check)
            self._source.parts = parts
            paths = [self._metadata.schema.column(leaf).path for leaf in self._leaves[:columns]]
            table = self._file.read_row_group(group, columns=paths, use_threads=False)
            while any(pa.types.is_struct(field.type) for field in table.schema):
                table = table.flatten()
            rows = Rows([_column(pa, column) for column in table.columns])
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise ValueError(f"row group {group} at offset {parts[0][0]} is damaged: {_line(error)}") from None
        finally:
            if self._source is not None:
                self._source.parts = ()
        if rows.count != self.rows[group + 1] - self.rows[group]:
            raise ValueError(f"row group {group} at offset {parts[0][0]} is damaged: it has {rows.count} rows")
        return rows


def _sample_columns(metadata: Any) -> list[int]:
    """The leaf columns that make up a sample: iobench's own all, of other files the first binary one (else of text), or none."""
    schema = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    if schema and all(_OWN.fullmatch(leaf.path) and leaf.max_definition_level == 0 and _binary(leaf) for leaf in schema):
        return list(range(len(schema)))
    flat = [number for number, leaf in enumerate(schema) if leaf.max_repetition_level == 0]  # not within lists
    binary = [number for number in flat if _binary(schema[number])]
    return (binary or [number for number in flat if schema[number].physical_type == "BYTE_ARRAY"])[:1]


def _binary(leaf: Any) -> bool:
    return leaf.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") and leaf.logical_type.type == "NONE"


def _column(pa: Any, column: Any) -> tuple[Bytes, Int64]:
    """(bytes, offsets) of a column of one row group; null is no bytes."""
    kind = column.type
    if pa.types.is_fixed_size_binary(kind):
        if column.null_count:  # which take up room all the same
            column = pa.chunked_array([pa.array(column.to_pylist(), pa.binary())])
            return _column(pa, column)
        array = _one(pa, column)
        width, first = kind.byte_width, array.offset
        data = np.frombuffer(array.buffers()[1], np.uint8)[first * width : (first + len(array)) * width]
        return data, np.arange(0, len(data) + 1, width)
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    array = _one(pa, column.cast(pa.large_binary()))
    _, offsets, data = array.buffers()
    starts = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8), starts


def _one(pa: Any, column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]


class _Source:
    """What pyarrow takes for a file to read: the parts of it that are in memory, handed over without a copy."""

    closed = False

    def __init__(self, size: int) -> None:
        self._size = size
        self._position = 0
        self.parts: Sequence[tuple[int, Buffer]] = ()

    def read_buffer(self, count: int = -1) -> Buffer:
        start, end = self._position, self._position + count
        for offset, data in self.parts:
            if offset <= start and end <= offset + len(data):
                self._position = end
                return data[start - offset : end - offset]
        raise ValueError(f"it refers to bytes {start} to {end}, outside of its column chunks")

    read = read_buffer

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        return

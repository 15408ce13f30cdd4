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
        chosen, placed = _slice(rows), _slice(where)
        for data, offsets in self._columns:
            width = int(offsets[1] - offsets[0])
            count = min(width, out.shape[1] - done)
            # As elements of that many bytes: numpy moves those at once, and single bytes one by one.
            part = f"V{count}" if count not in (1, 2, 4, 8) else f"u{count}"
            cells = data[offsets[0] : offsets[-1]].reshape(-1, width)[:, :count].view(part)
            out[:, done : done + count].view(part)[placed] = cells[chosen]
            done += count
            if done == out.shape[1]:
                return

    @property
    def even(self) -> bool:
        """All parts of a column are of one size (not 0)."""
        return all(
            len(offsets) > 1 and (steps := np.diff(offsets)).min() == steps.max() > 0
            for _, offsets in self._columns
        )


def _slice(numbers: Int64) -> Int64 | slice:
    """Consecutive numbers as a slice, which is quicker to follow."""
    first, last = int(numbers[0]), int(numbers[-1])
    return (
        slice(first, last + 1)
        if last - first == len(numbers) - 1 and bool((np.diff(numbers) == 1).all())
        else numbers
    )


def footer_bytes(tail: Buffer, size: int) -> int:
    """Length of the footer of a file of ``size`` bytes, by its last eight, which are part of it. Raises ValueError for no Parquet file."""
    magic = bytes(tail[-4:])
    if magic == b"PARE":
        raise ValueError("no Parquet file that can be read without a key: its footer is encrypted")
    if len(tail) < _END or size <= _END or magic != b"PAR1":
        raise ValueError(f"no Parquet file: no PAR1 at its end (byte {size})")
    length = int.from_bytes(tail[-_END:-4], "little") + _END
    if length > size:
        raise ValueError(
            f"the Parquet footer is damaged: it claims {length - _END} bytes, of {size - _END} in the file"
        )
    return length


class ParquetShard:
    """One Parquet file by its footer. Not thread-safe.

    pyarrow checks a column chunk's description when that is asked for, and ends the process where it doesn't add up. So where chunks lie
    is found out by letting pyarrow read them: what goes wrong there is an exception.
    """

    def __init__(self, tail: Buffer, size: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        length = footer_bytes(tail, size) - _END
        if length + _END > len(tail):
            raise ValueError(
                f"the Parquet footer is damaged: it claims {length} bytes, of {len(tail) - _END} behind the row groups"
            )
        self._source = _Source(size)
        try:
            metadata = pq.read_metadata(pa.BufferReader(pa.py_buffer(tail[-_END - length :])))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"the Parquet footer is damaged: {_line(error)}") from None
        self._metadata = metadata
        self._files: dict[bool, Any] = {}
        self._paths = [
            metadata.schema.column(number).path for number in range(metadata.num_columns)
        ]
        self._leaves = _sample_columns(metadata)
        # Writers that are flushed without a row leave a group of none, which holds no sample and no bytes.
        self._numbers = [
            number
            for number in range(metadata.num_row_groups)
            if metadata.row_group(number).num_rows
        ]
        self.groups = len(self._numbers)
        self.nbytes = int(metadata.serialized_size)

    @property
    def columns(self) -> int:
        """How many columns a sample is made of; 0 where it is a row group as it is stored."""
        return len(self._leaves)

    @property
    def width(self) -> int | None:
        """Bytes of every sample, where the schema tells: columns of a fixed length that hold no null."""
        leaves = [self._metadata.schema.column(leaf) for leaf in self._leaves]
        fixed = leaves and all(
            leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" and leaf.max_definition_level == 0
            for leaf in leaves
        )
        return sum(int(leaf.length) for leaf in leaves) if fixed else None

    def rows(self, group: int) -> int:
        """Rows that a group claims to have."""
        return int(self._metadata.row_group(self._numbers[group]).num_rows)

    def codec(self, group: int) -> str:
        """Parquet's name for what compresses the pages of the samples' first column. Only of a group whose ``extent`` was found."""
        return str(
            self._metadata.row_group(self._numbers[group]).column(self._leaves[0]).compression
        ).lower()

    def decode(
        self, group: int, columns: int | None, parts: Sequence[tuple[int, Buffer]], *, check: bool
    ) -> Rows:
        """Rows of a group, or their first ``columns`` columns, out of ``parts`` of the file in memory: (offset, bytes). Raises ValueError.

        ``check``: the pages' own checksums, where they have some.
        """
        import pyarrow as pa

        if not self._leaves:
            data = np.frombuffer(parts[0][1], np.uint8)
            return Rows([(data, np.array([0, len(data)]))])
        try:
            table = self._read(
                group, [self._paths[leaf] for leaf in self._leaves[:columns]], parts, check=check
            )
            while any(pa.types.is_struct(field.type) for field in table.schema):
                table = table.flatten()
            return Rows([_column(pa, column) for column in table.columns])
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise ValueError(f"row group {group} is damaged: {_line(error)}") from None

    def chunk(self, group: int, place: int) -> tuple[int, int] | None:
        """From where to where a column chunk of the samples lies (the ``place``-th of those that they are made of). Raises ValueError."""
        return self._chunk(group, self._leaves[place])

    def extent(self, group: int) -> tuple[int, int] | None:
        """From where to where all column chunks lie that the samples are made of; None for a group without rows. Raises ValueError."""
        chunks = [self._chunk(group, column) for column in self._leaves or range(len(self._paths))]
        known = [chunk for chunk in chunks if chunk is not None]
        return (min(start for start, _ in known), max(end for _, end in known)) if known else None

    def _chunk(self, group: int, column: int) -> tuple[int, int] | None:
        import pyarrow as pa

        try:
            self._read(group, [self._paths[column]], None, check=False)
        except _Asked as asked:
            return asked.start, asked.end
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise ValueError(f"row group {group} is damaged: {_line(error)}") from None
        return None

    def _read(
        self,
        group: int,
        paths: list[str],
        parts: Sequence[tuple[int, Buffer]] | None,
        *,
        check: bool,
    ) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._source.parts = parts
        try:
            if check not in self._files:
                file = pa.PythonFile(self._source, mode="r")
                self._files[check] = pq.ParquetFile(
                    file,
                    metadata=self._metadata,
                    pre_buffer=False,
                    page_checksum_verification=check,
                )
            return self._files[check].read_row_group(
                self._numbers[group], columns=paths, use_threads=False
            )
        finally:
            self._source.parts = None


def _sample_columns(metadata: Any) -> list[int]:
    """The leaf columns that make up a sample: iobench's own all, of other files the first binary one (else of text), or none."""
    schema = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    if schema and all(
        _OWN.fullmatch(leaf.path) and leaf.max_definition_level == 0 and _binary(leaf)
        for leaf in schema
    ):
        return list(range(len(schema)))
    flat = [
        number for number, leaf in enumerate(schema) if leaf.max_repetition_level == 0
    ]  # not within lists
    binary = [number for number in flat if _binary(schema[number])]
    return (binary or [number for number in flat if schema[number].physical_type == "BYTE_ARRAY"])[
        :1
    ]


def _binary(leaf: Any) -> bool:
    return (
        leaf.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
        and leaf.logical_type.type == "NONE"
    )


def _column(pa: Any, column: Any) -> tuple[Bytes, Int64]:
    """(bytes, offsets) of a column of one row group; null is no bytes."""
    kind = column.type
    if pa.types.is_fixed_size_binary(kind):
        if column.null_count:  # which take up room all the same
            column = pa.chunked_array([pa.array(column.to_pylist(), pa.binary())])
            return _column(pa, column)
        array = _one(pa, column)
        width, first = kind.byte_width, array.offset
        data = np.frombuffer(array.buffers()[1], np.uint8)[
            first * width : (first + len(array)) * width
        ]
        return data, np.arange(0, len(data) + 1, width)
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    array = _one(pa, column.cast(pa.large_binary()))
    _, offsets, data = array.buffers()
    starts = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8), starts


def _one(pa: Any, column: Any) -> Any:
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]


class _Asked(Exception):
    """pyarrow wants these bytes."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__()
        self.start, self.end = start, end


class _Source:
    """What pyarrow takes for a file to read: the parts of it that are in memory, handed over without a copy. None: it only asks."""

    closed = False

    def __init__(self, size: int) -> None:
        self._size = size
        self._position = 0
        self.parts: Sequence[tuple[int, Buffer]] | None = None

    def read_buffer(self, count: int = -1) -> Buffer:
        start, end = self._position, self._position + count
        if not 0 <= start <= end <= self._size:
            raise ValueError(f"it would lie at bytes {start} to {end} of {self._size}")
        if self.parts is None:
            raise _Asked(start, end)
        for offset, data in self.parts:
            if offset <= start and end <= offset + len(data):
                self._position = end
                return data[start - offset : end - offset]
        raise ValueError(f"it would lie at bytes {start} to {end}, outside of its row group")

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

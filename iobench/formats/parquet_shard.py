"""Reading Parquet by row group: where a group's column chunks are, and what rows they hold.

pyarrow decodes the rows from bytes that are already in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..buffers import Buffer
from ..limits import ALWAYS_FITS, check_plausible, plausible
from .parquet_footer import CODECS, Footer
from .parquet_pages import bound
from .parquet_rows import Rows, rows_of
from .parquet_schema import FIXED

_END = 8
"""The file's last bytes: length of the footer (u32), then PAR1."""

_ROW = 16
"""About how many bytes a row costs in addition to its own: its offset, its length, its levels."""

_LEVELS = 4 << 10
"""About how many bytes the levels of a row group take, however few rows it has."""


def footer_bytes(tail: Buffer, size: int) -> int:
    """Length of the footer of a file of ``size`` bytes, plus the eight bytes that follow it.

    ``tail``: at least the last eight bytes of the file. Raises ValueError if it is no Parquet file.
    """
    magic = bytes(tail[-4:])
    if magic == b"PARE":
        raise ValueError("the Parquet footer is encrypted: it cannot be read without its key")
    if len(tail) < _END or size <= _END or magic != b"PAR1":
        raise ValueError(f"not a Parquet file: no PAR1 at its end (byte {size})")
    length = int.from_bytes(tail[-_END:-4], "little") + _END
    if length > size:
        raise ValueError(
            f"the Parquet footer is damaged: it claims {length - _END} bytes, but the file has "
            f"only {size - _END}"
        )
    return length


class ParquetShard:
    """One Parquet file, opened from its footer. Not thread-safe.

    pyarrow gets a footer that ``Footer`` wrote, and pages whose sizes ``bound`` has checked.
    """

    def __init__(self, tail: Buffer, size: int, column: bytes | None = None) -> None:
        """``column``: open this column (for ``values``), not those of the samples."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        need = footer_bytes(tail, size)
        if need > len(tail):
            raise ValueError(
                f"the Parquet footer is damaged: it claims {need - _END} bytes, but only "
                f"{len(tail) - _END} follow the row groups"
            )
        try:
            self._footer = Footer(bytes(tail[-need:-_END]), size - need, column)
            safe = self._footer.safe
            closed = b"".join((b"PAR1", safe, len(safe).to_bytes(4, "little"), b"PAR1"))
            self._metadata = pq.read_metadata(pa.BufferReader(closed))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"the Parquet footer is damaged: {_line(error)}") from None
        self._source = _PartsFile(size)
        self._files: dict[bool, Any] = {}
        self._leaves = self._footer.schema.leaves
        self._paths = self._footer.schema.paths
        # Writers that flush without any row leave a row group of no rows, which holds no sample.
        self._numbers = [number for number, group in enumerate(self._footer.groups) if group.rows]
        self.groups = len(self._numbers)
        self.nbytes = need - _END

    @property
    def columns(self) -> int:
        """How many columns a sample is made of; 0 if a sample is a row group as it is stored."""
        return len(self._leaves)

    @property
    def width(self) -> int | None:
        """Bytes of every sample, if the schema says so (fixed lengths, no nulls), else None."""
        if not self._leaves or any(a.physical != FIXED or a.nullable for a in self._leaves):
            return None
        return sum(leaf.length for leaf in self._leaves)

    def rows(self, group: int) -> int:
        """Number of rows that a group claims to have."""
        return self._footer.groups[self._numbers[group]].rows

    def codec(self, group: int) -> str:
        """Parquet's name of the codec of the samples' first column."""
        return CODECS[self._footer.chunk(self._numbers[group], 0).codec]

    def chunk(self, group: int, place: int) -> tuple[int, int]:
        """(begin, end) of the samples' column chunk number ``place``. Raises ValueError."""
        chunk = self._footer.chunk(self._numbers[group], place)
        return chunk.start, chunk.end

    def extent(self, group: int) -> tuple[int, int]:
        """(begin, end) of all chunks that a group's samples are made of. Raises ValueError."""
        return self._footer.extent(self._numbers[group])

    def decode(
        self,
        group: int,
        columns: int | None,
        parts: Sequence[tuple[int, Buffer]],
        *,
        check: bool,
        most: int | None = None,
    ) -> Rows:
        """Decode the rows of a group, or only their first ``columns`` columns.

        ``parts``: the bytes of the file that are in memory, as (offset, bytes). ``check``: verify
        the pages' own checksums, if they have any. ``most``: limit for the decoded bytes of the
        rows (None: what is plausible for the stored bytes). Raises ValueError before it allocates
        more.
        """
        pieces = self.pieces(group, columns, parts, check=check, most=most, at_once=most)
        return Rows.joined(list(pieces))

    def pieces(
        self,
        group: int,
        columns: int | None,
        parts: Sequence[tuple[int, Buffer]],
        *,
        check: bool,
        most: int | None = None,
        at_once: int | None = None,
    ) -> Iterator[Rows]:
        """Like ``decode``, but yield about ``at_once`` bytes of rows at a time, or one row."""
        import pyarrow as pa

        if not self._leaves:
            data = np.frombuffer(parts[0][1], np.uint8)
            yield Rows([(data, np.array([0, len(data)]))])
            return
        stored = sum(len(data) for _, data in parts)
        most = plausible(stored) if most is None else most
        at_once = ALWAYS_FITS if at_once is None else at_once
        taken = 0
        try:
            count = self._at_once(group, columns, parts, stored, at_once)
            for table in self._tables(group, columns, parts, count, check=check):
                rows = rows_of(pa, table)
                taken += int(rows.sizes.sum())
                if taken > most:
                    raise ValueError(
                        f"its rows have more than {most} bytes, too many for {stored} stored bytes"
                    )
                yield rows
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise ValueError(f"row group {group} is damaged: {_line(error)}") from None

    def values(self, group: int, parts: Sequence[tuple[int, Buffer]]) -> list[int | bytes | None]:
        """Decode the one column with which the shard was opened: a value for each row of a group.

        ``parts`` as in ``decode``. Text is UTF-8. Raises ValueError.
        """
        import pyarrow as pa

        stored = sum(len(data) for _, data in parts)
        found: list[int | bytes | None] = []
        most, taken = plausible(stored), 0
        try:
            count = self._at_once(group, None, parts, stored, ALWAYS_FITS)
            for table in self._tables(group, None, parts, count, check=True):
                values = table.column(0).to_pylist()
                taken += sum(len(value) for value in values if isinstance(value, bytes))
                if taken > most:
                    raise ValueError(
                        f"its values have more than {most} bytes, too many for {stored} stored "
                        "bytes"
                    )
                found += values
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise ValueError(f"row group {group} is damaged: {_line(error)}") from None
        return found

    def _at_once(
        self,
        group: int,
        columns: int | None,
        parts: Sequence[tuple[int, Buffer]],
        stored: int,
        most: int,
    ) -> int:
        """How many rows to decode at a time, so that they take at most about ``most`` bytes."""
        number, rows = self._numbers[group], self.rows(group)
        inflated = values = largest = 0
        for place, leaf in enumerate(self._leaves[:columns]):
            chunk = self._footer.chunk(number, place)
            if leaf.physical == FIXED:
                check_plausible(leaf.length, stored, "a value")
            found = bound(_between(parts, chunk.start, chunk.end), chunk, leaf)
            inflated += found.inflated
            values += found.values
            largest += found.largest
        check_plausible(inflated, stored, "its pages")
        check_plausible(rows * len(self._leaves[:columns]) * _ROW, stored, "its number of rows")
        if values <= most + rows * _ROW + _LEVELS:
            return rows
        return max(1, min(rows * most // values, most // largest if largest else rows))

    def _tables(
        self,
        group: int,
        columns: int | None,
        parts: Sequence[tuple[int, Buffer]],
        count: int,
        *,
        check: bool,
    ) -> Iterator[Any]:
        """Yield the rows of a group, ``count`` at a time, as tables of pyarrow."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        number, paths = self._numbers[group], self._paths[:columns]
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
            file = self._files[check]
            if count >= self.rows(group):
                yield file.read_row_group(number, columns=paths, use_threads=False)
                return
            for batch in file.iter_batches(
                count, row_groups=[number], columns=paths, use_threads=False
            ):
                yield pa.Table.from_batches([batch])
        finally:
            self._source.parts = ()


def _between(parts: Sequence[tuple[int, Buffer]], start: int, end: int) -> Buffer:
    """Bytes of the file from ``start`` to ``end``. Raises ValueError if ``parts`` lack them."""
    for offset, data in parts:
        if offset <= start and end <= offset + len(data):
            return data[start - offset : end - offset]
    raise ValueError(f"it would lie at bytes {start} to {end}, outside of its row group")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]


class _PartsFile:
    """A read-only file object for pyarrow over the parts that are in memory, without a copy."""

    closed = False

    def __init__(self, size: int) -> None:
        self._size = size
        self._position = 0
        self.parts: Sequence[tuple[int, Buffer]] = ()

    def read_buffer(self, count: int = -1) -> Buffer:
        start, end = self._position, self._position + count
        if not 0 <= start <= end <= self._size:
            raise ValueError(f"it would lie at bytes {start} to {end} of {self._size}")
        data = _between(self.parts, start, end)
        self._position = end
        return data

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

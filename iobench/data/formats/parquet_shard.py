"""Reading Parquet by row group: where a group's column chunks are, and what rows they hold.

pyarrow reads the footer, and decodes the rows from bytes that are already in memory. Two things
protect the process over files of others. pyarrow ends the process (SIGABRT) where Python asks it
for the description of a column chunk that makes no sense, but raises an exception where such a
chunk is read. So each row group is read first, up to its first page, before its chunks are
described (``_described``). And the pages are limited before they are decoded (parquet_pages.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...base.buffers import Buffer
from ...base.limits import ALWAYS_FITS, check_plausible, plausible
from .parquet_pages import Chunk, Leaf, bound
from .parquet_rows import Rows, as_bytes, rows_of

_END = 8
"""The file's last bytes: length of the footer (u32), then PAR1."""

_MAGIC_BYTES = 4
_MAX_ROWS = 1 << 40

_FOOTER_BYTES = 4
"""How many bytes of a footer each element of a list in it takes at least, for all but short ones.

pyarrow allocates what a list claims, some hundred bytes an element, before it reads the list."""

_SHORT_LIST = 100

_ROW = 16
"""About how many bytes a row costs in addition to its own: its offset, its length, its levels."""

_LEVELS = 4 << 10
"""About how many bytes the levels of a row group take, however few rows it has."""

_CODECS = {"UNKNOWN": "lz4", "LZ4": "lz4_raw"}
"""Parquet's names of codecs that pyarrow calls by another name (it has the others in capitals)."""

_OWN = re.compile(r"c\d{3,7}")
"""Names of the columns that iobench writes."""

_BINARY = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_NUMBERS = ("INT32", "INT64")


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

    In files that iobench wrote, a sample is made of all columns; in other files, of the column of
    bytes or text, not inside a list, that has most of the bytes of the first row group. If there is
    none, each row group, as it is stored, is a sample.

    ``chosen``: the path of the column that was taken among several; empty if there was no choice.
    """

    def __init__(self, tail: Buffer, size: int, column: str | None = None) -> None:
        """``column``: open this column of labels (for ``values``), not those of the samples."""
        import pyarrow as pa

        need = footer_bytes(tail, size)
        if need > len(tail):
            raise ValueError(
                f"the Parquet footer is damaged: it claims {need - _END} bytes, but only "
                f"{len(tail) - _END} follow the row groups"
            )
        self.nbytes = need - _END
        self._size = size
        self._source = _PartsFile(size)
        self._files: dict[bool, Any] = {}
        self._no_pages = _NoPages(size)
        self._proof: Any = None
        self._chunks: tuple[tuple[int, int], list[Chunk]] = ((-1, 0), [])
        self.chosen = ""
        try:
            self._metadata = _metadata(bytes(tail[-need:-_END]))
            self._leaves, candidates = _leaves(self._metadata.schema, column)
            rows = [
                self._metadata.row_group(group).num_rows
                for group in range(self._metadata.num_row_groups)
            ]
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"the Parquet footer is damaged: {_line(error)}") from None
        for number, count in enumerate(rows):
            if not 0 <= count < _MAX_ROWS:
                raise ValueError(f"row group {number} is damaged: it claims {count} rows")
        # Writers that flush without any row leave a row group of no rows, which holds no sample.
        self._numbers = [number for number, count in enumerate(rows) if count]
        self._rows = rows
        self.groups = len(self._numbers)
        if len(candidates) > 1:
            self._leaves = [self._largest(candidates)]
            self.chosen = self._metadata.schema.column(self._leaves[0].place).path

    @property
    def columns(self) -> int:
        """How many columns a sample is made of; 0 if a sample is a row group as it is stored."""
        return len(self._leaves)

    @property
    def width(self) -> int | None:
        """Bytes of every sample, if the schema says so (fixed lengths, no nulls), else None."""
        if not self._leaves or any(not leaf.length or leaf.nullable for leaf in self._leaves):
            return None
        return sum(leaf.length for leaf in self._leaves)

    def _largest(self, candidates: list[Leaf]) -> Leaf:
        """The column with most bytes in the first row group; the first one if that is damaged."""
        self._leaves = candidates
        try:
            if self.groups:
                self._described(0, None)  # pyarrow can be asked for proven descriptions only
        except ValueError:  # whoever reads the group is told
            return candidates[0]
        if not self.groups:
            return candidates[0]
        group = self._metadata.row_group(self._numbers[0])
        self._chunks = ((-1, 0), [])
        return max(candidates, key=lambda leaf: group.column(leaf.place).total_uncompressed_size)

    def rows(self, group: int) -> int:
        """Number of rows that a group claims to have."""
        return int(self._rows[self._numbers[group]])

    def codec(self, group: int) -> str:
        """Parquet's name of the codec of the samples' first column."""
        return self._described(group, 1)[0].codec

    def chunk(self, group: int, place: int) -> tuple[int, int]:
        """(begin, end) of the samples' column chunk number ``place``. Raises ValueError."""
        chunk = self._described(group, place + 1)[place]
        return chunk.start, chunk.end

    def extent(self, group: int) -> tuple[int, int]:
        """(begin, end) of all chunks that a group's samples are made of. Raises ValueError."""
        chunks = self._described(group, None)
        return min(chunk.start for chunk in chunks), max(chunk.end for chunk in chunks)

    def _described(self, group: int, columns: int | None) -> list[Chunk]:
        """Return the chunks of the first ``columns`` columns of a group (None: of all).

        If samples have no columns, these are all chunks of the group. Raises ValueError.

        pyarrow reads a page only after it has accepted the descriptions of all chunks that it is to
        read. So a source that ends that reading with the first page proves them.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        number, count = self._numbers[group], columns or len(self._leaves)
        (known, have), chunks = self._chunks
        if known == number and have >= count:
            return chunks
        places = [leaf.place for leaf in self._leaves[:count]]
        if not places:
            places = list(range(self._metadata.num_columns))
        self._no_pages.reached = False
        try:
            if self._proof is None:
                self._proof = pq.ParquetFile(
                    pa.PythonFile(self._no_pages, mode="r"),
                    metadata=self._metadata,
                    pre_buffer=False,
                    buffer_size=1,
                ).reader
            # Of a whole group, pyarrow would first take memory for as many rows as it claims.
            next(self._proof.iter_batches(1, [number], column_indices=places, use_threads=False))
        except (pa.ArrowException, OSError, ValueError, StopIteration) as error:
            if not self._no_pages.reached:
                raise ValueError(f"row group {group} is damaged: {_line(error)}") from None
        described = self._metadata.row_group(number)
        chunks = [self._chunk_of(group, described.column(place)) for place in places]
        self._chunks = (number, count), chunks
        return chunks

    def _chunk_of(self, group: int, column: Any) -> Chunk:
        start, values, rows = column.data_page_offset, column.num_values, self.rows(group)
        if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
            start = column.dictionary_page_offset  # the dictionary precedes the data pages
        end = start + column.total_compressed_size
        problem = ""
        if not _MAGIC_BYTES <= start < end <= self._size - self.nbytes - _END:
            problem = f"it would lie at bytes {start} to {end} of {self._size}"
        elif column.file_path:
            problem = "a column lies in another file"
        # A column that is not inside a list has one value in each row; nulls count.
        elif self._leaves and values != rows:
            problem = f"a column has {values} values in {rows} rows"
        if problem:
            raise ValueError(f"row group {group} is damaged: {problem}")
        name = column.compression
        return Chunk(_CODECS.get(name, name.lower()), values, start, end)

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
                column = table.column(0)
                if not pa.types.is_integer(column.type):
                    column = as_bytes(pa, column)
                values = column.to_pylist()
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
        rows = self.rows(group)
        chunks = self._described(group, columns)
        inflated = values = largest = 0
        for leaf, chunk in zip(self._leaves[:columns], chunks, strict=False):
            if leaf.length:
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

        number = self._numbers[group]
        places = [leaf.place for leaf in self._leaves[:columns]]
        self._source.parts = parts
        try:
            if check not in self._files:
                file = pa.PythonFile(self._source, mode="r")
                self._files[check] = pq.ParquetFile(
                    file,
                    metadata=self._metadata,
                    pre_buffer=False,
                    page_checksum_verification=check,
                ).reader
            reader = self._files[check]
            if count >= self.rows(group):
                yield reader.read_row_group(number, column_indices=places, use_threads=False)
                return
            for batch in reader.iter_batches(
                count, row_groups=[number], column_indices=places, use_threads=False
            ):
                yield pa.Table.from_batches([batch])
        finally:
            self._source.parts = ()


def _metadata(footer: bytes) -> Any:
    """Let pyarrow read a footer. Raises what pyarrow raises."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    closed = b"".join((b"PAR1", footer, len(footer).to_bytes(4, "little"), b"PAR1"))
    return pq.ParquetFile(
        pa.BufferReader(closed),
        thrift_string_size_limit=len(closed),
        thrift_container_size_limit=_SHORT_LIST + len(footer) // _FOOTER_BYTES,
    ).metadata


def _leaves(schema: Any, label: str | None) -> tuple[list[Leaf], list[Leaf]]:
    """(the columns that samples are made of, or the one of this name; those to choose one from).

    Raises ValueError.
    """
    columns = [schema.column(place) for place in range(len(schema))]
    if label is not None:
        return [_label(columns, label)], []
    flat = [(place, column) for place, column in enumerate(columns) if not _repeated(column)]
    binary = [(p, c) for p, c in flat if c.physical_type in _BINARY and not _annotated(c)]
    if len(binary) == len(columns) and all(
        _OWN.fullmatch(column.path) and not _nullable(column) for column in columns
    ):
        return [_leaf(place, column) for place, column in binary], []
    text = [(p, c) for p, c in flat if c.physical_type == "BYTE_ARRAY" and _annotated(c)]
    candidates = [_leaf(place, column) for place, column in binary + text]
    return candidates[:1], candidates


def _label(columns: list[Any], name: str) -> Leaf:
    flat = {column.path: place for place, column in enumerate(columns)}
    place = flat.get(name)
    if place is None:
        have = ", ".join(sorted(path for path in flat if "." not in path)[:10])
        raise ValueError(f"it has no column '{name}' (it has: {have or 'none'})")
    column = columns[place]
    number = column.physical_type in _NUMBERS and column.logical_type.type in ("NONE", "INT")
    if _repeated(column) or not (number or column.physical_type == "BYTE_ARRAY"):
        raise ValueError(f"its column '{name}' holds neither whole numbers nor text")
    return _leaf(place, column)


def _leaf(place: int, column: Any) -> Leaf:
    length = 0
    if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
        length = column.length
        if length < 1:
            raise ValueError(f"a column of a fixed length has {length} bytes")
    return Leaf(place, length, _nullable(column))


def _nullable(column: Any) -> bool:
    return bool(column.max_definition_level)


def _repeated(column: Any) -> bool:
    return bool(column.max_repetition_level)


def _annotated(column: Any) -> bool:
    """Whether a column is text, a number, or anything else but bytes."""
    return bool(column.converted_type != "NONE" or column.logical_type.type != "NONE")


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


class _NoPages(_PartsFile):
    """A file of which no page can be read. ``reached``: whether pyarrow has tried."""

    reached = False

    def read_buffer(self, count: int = -1) -> Buffer:
        self.reached = True
        raise ValueError("no page is read")

    read = read_buffer

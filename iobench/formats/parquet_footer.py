"""Read the footer of an untrusted Parquet file, and write a safe one for pyarrow.

pyarrow ends the process (SIGABRT) for some footers, for example one with an unknown codec: its
accessors throw C++ exceptions through code that expects none. So pyarrow never gets a footer from a
file. This module reads that footer, checks every number that is needed, and writes a new footer for
the columns that samples are made of, without the names, statistics, indexes and other metadata of
the file. Only row groups that iobench itself wrote are copied unchanged, after one regular
expression has matched all of their bytes: a dlrm file has 150,000 column chunks, which Python would
take seconds to encode again.

Source: github.com/apache/parquet-format, src/main/thrift/parquet.thrift.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .parquet_schema import Leaf, Schema, read_schema
from .protobuf import varint
from .thrift import BINARY, I32, I64, LIST, STRUCT, Compact, ThriftWriter, listed, zigzag

UNCOMPRESSED = 0
CODECS = ("uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw")
"""Parquet's names of codecs, indexed by their numbers."""

_MAX_ROWS = 1 << 40
_MAGIC_BYTES = 4
_PLAIN_TEXT = re.compile(rb"[ -~]{1,256}")


class Chunk(NamedTuple):
    """A column chunk of a row group: the bytes ``start`` to ``end`` of the file."""

    codec: int
    values: int
    start: int
    end: int


@dataclass(slots=True)
class RowGroup:
    """A row group.

    ``chunks`` are those of the samples' columns, or all of them if there are no such columns. In a
    row group that iobench wrote, ``chunks`` is empty and ``place`` is their offset in the footer.
    """

    rows: int
    place: int
    chunks: list[Chunk]


class Footer:
    """The footer's description of the columns that samples are made of.

    If there are no such columns (``schema``), each row group, as it is stored, is a sample.
    ``safe`` is the footer that pyarrow may read.
    """

    schema: Schema

    def __init__(self, data: bytes, size: int, column: bytes | None = None) -> None:
        """Read the footer ``data``, which follows ``size`` bytes of the file.

        ``column``: describe this column, not those of the samples. Raises ValueError.
        """
        self._data = data
        self._size = size
        self.groups: list[RowGroup] = []
        # (group, position in the footer, chunks) of the latest call of ``_plain``.
        self._walked: tuple[int, int, list[Chunk]] = (-1, 0, [])
        known = set()
        created_by = b""
        kept: list[bytes] = []
        reader = Compact(data)
        for field, kind in reader.fields():
            known.add(field)
            if field == 2:
                reader.want(kind, LIST, "the schema")
                self.schema = read_schema(reader, column)
            elif field == 4 and 2 in known:
                reader.want(kind, LIST, "the list of row groups")
                kept = self._read_groups(reader)
            elif field == 6:
                reader.want(kind, BINARY, "the writer's name")
                created_by = reader.binary()
            elif field == 8:
                raise ValueError("its columns are encrypted")
            else:
                reader.skip(kind)
        if missing := {1, 2, 3, 4} - known:
            raise ValueError(f"it lacks field {min(missing)}")
        out = ThriftWriter().number(1, I32, 2).list(2, self.schema.code)
        out.number(3, I64, sum(group.rows for group in self.groups))
        out.list(4, listed(STRUCT, kept))
        # Readers work around known bugs of some writers, which they recognise by this name.
        if _PLAIN_TEXT.fullmatch(created_by):
            out.binary(6, created_by)
        self.safe = out.finish()

    def chunk(self, group: int, place: int) -> Chunk:
        """The samples' column number ``place``. Raises ValueError if its extent is impossible."""
        known = self.groups[group].chunks or self._plain(group, place + 1)
        return self._checked(group, known[place])

    def extent(self, group: int) -> tuple[int, int]:
        """(begin, end) of the chunks that a row group's samples are made of. Raises ValueError."""
        found = self.groups[group].chunks
        places = range(len(found)) if found else (0, len(self.schema.leaves) - 1)
        chunks = [self.chunk(group, place) for place in places]
        return min(chunk.start for chunk in chunks), max(chunk.end for chunk in chunks)

    def _plain(self, group: int, count: int) -> list[Chunk]:
        """Parse at least the first ``count`` chunks of a row group that iobench wrote."""
        if self._walked[0] != group:
            self._walked = group, self.groups[group].place, []
        _, position, chunks = self._walked
        while len(chunks) < count:
            match = CHUNK.match(self._data, position)
            if match is None:
                raise ValueError(f"row group {group} has no column {len(chunks)}")
            values, size, start = (signed(match[part]) for part in (2, 3, 4))
            chunks.append(Chunk(match[1][0] >> 1, values, start, start + size))
            position = match.end()
        self._walked = group, position, chunks
        return chunks

    def _checked(self, group: int, chunk: Chunk) -> Chunk:
        if not _MAGIC_BYTES <= chunk.start < chunk.end <= self._size:
            raise ValueError(
                f"row group {group} is damaged: it would lie at bytes {chunk.start} to "
                f"{chunk.end} of {self._size}"
            )
        # A column that is not inside a list has one value in each row; nulls count.
        rows = self.groups[group].rows
        if self.schema.leaves and chunk.values != rows:
            raise ValueError(
                f"row group {group} is damaged: a column has {chunk.values} values in {rows} rows"
            )
        return chunk

    def _read_groups(self, reader: Compact) -> list[bytes]:
        """Read all row groups; return each one encoded as pyarrow may read it."""
        kind, count = reader.elements()
        reader.want(kind if count else STRUCT, STRUCT, "a row group")
        plain = own_group(self.schema.columns) if self.schema.own else None
        kept: list[bytes] = []
        for number in range(count):
            match = plain.match(self._data, reader.position) if plain else None
            try:
                if match is not None:
                    group = RowGroup(signed(match[2]), match.start(1), [])
                    reader.position = match.end()
                else:
                    group = _read_group(reader, self.schema)
            except ValueError as error:
                raise ValueError(f"row group {number} is damaged: {error}") from None
            if not 0 <= group.rows < _MAX_ROWS:
                raise ValueError(f"row group {number} is damaged: it claims {group.rows} rows")
            self.groups.append(group)
            kept.append(match[0] if match is not None else _written(group, self.schema))
        return kept


def _read_group(reader: Compact, schema: Schema) -> RowGroup:
    """Read a row group of any writer."""
    chunks: list[Chunk] = []
    wanted = dict(zip(schema.places, schema.leaves, strict=True))
    rows = None
    count = 0
    for field, kind in reader.fields():
        if field == 1:
            reader.want(kind, LIST, "the list of columns")
            kind, count = reader.elements()
            reader.want(kind if count else STRUCT, STRUCT, "a column")
            for column in range(count):
                if wanted and column not in wanted:
                    reader.skip(STRUCT)
                else:
                    chunks.append(_read_chunk(reader, wanted.get(column)))
        elif field == 3:
            reader.want(kind, I64, "the number of rows")
            rows = reader.number(I64)
        else:
            reader.skip(kind)
    if rows is None or count != schema.columns:
        raise ValueError(f"it has {count} columns, but the schema has {schema.columns}")
    return RowGroup(rows, -1, chunks)


def _read_chunk(reader: Compact, leaf: Leaf | None) -> Chunk:
    """Read a column chunk of any writer; ``leaf``: its column, if its bytes will be decoded."""
    found: dict[int, int] = {}
    for field, kind in reader.fields():
        if field == 1 and kind == BINARY:
            if reader.binary():
                raise ValueError("a column lies in another file")
        elif field == 3:
            reader.want(kind, STRUCT, "the description of a column")
            found = _read_numbers(reader)
        elif field in (8, 9):
            raise ValueError("a column is encrypted")
        else:
            reader.skip(kind)
    if missing := {1, 4, 5, 7, 9} - found.keys():
        raise ValueError(f"a column's description lacks field {min(missing)}")
    if leaf is not None and found[1] != leaf.physical:
        raise ValueError(f"a column has type {found[1]}, but the schema says {leaf.physical}")
    if not 0 <= found[4] < len(CODECS):
        raise ValueError(f"a column has the unknown codec {found[4]}")
    start = found[9]
    if 0 < found.get(11, 0) < start:  # the dictionary precedes the data pages
        start = found[11]
    return Chunk(found[4], found[5], start, start + found[7])


def _read_numbers(reader: Compact) -> dict[int, int]:
    """Read the numbers of a column's description, by field number."""
    found: dict[int, int] = {}
    for field, kind in reader.fields():
        if field in (1, 4):
            reader.want(kind, I32, "a number of a column")
            found[field] = reader.number(I32)
        elif field in (5, 7, 9, 11):
            reader.want(kind, I64, "a number of a column")
            found[field] = reader.number(I64)
        else:
            reader.skip(kind)
    return found


@lru_cache(maxsize=1)
def _heads(schema: Schema) -> list[bytes]:
    """How the encoded description of each of the samples' columns begins: type, encodings, path."""
    heads = []
    for leaf, names in zip(schema.leaves, schema.names, strict=True):
        path = listed(BINARY, [varint(len(name)) + name for name in names])
        about = ThriftWriter().number(1, I32, leaf.physical).list(2, listed(I32, [zigzag(0)]))
        heads.append(about.list(3, path).so_far())
    return heads


def _written(group: RowGroup, schema: Schema) -> bytes:
    columns = []
    for head, chunk in zip(_heads(schema), group.chunks, strict=False):
        size = chunk.end - chunk.start
        about = ThriftWriter(head, 3).number(4, I32, chunk.codec).number(5, I64, chunk.values)
        about.number(6, I64, size).number(7, I64, size).number(9, I64, chunk.start)
        columns.append(ThriftWriter().number(2, I64, 0).struct(3, about.finish()).finish())
    out = ThriftWriter().list(1, listed(STRUCT, columns))
    return out.number(2, I64, 0).number(3, I64, group.rows).finish()


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
    """Pattern for a row group of ``columns`` columns that iobench itself wrote.

    Such row groups have columns of bytes, no statistics and no dictionaries. What matches may be
    passed to pyarrow unchanged: the expression admits only bytes that the format allows at their
    place, whatever the values of the numbers are. It captures the chunks and the number of rows.
    """
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

"""The schema of a Parquet file: its columns, and which of them the samples are made of.

Source: github.com/apache/parquet-format, src/main/thrift/parquet.thrift (SchemaElement).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from .thrift import BINARY, I32, STRUCT, Compact, ThriftWriter, listed

BYTE_ARRAY, FIXED = 6, 7
"""Physical types that can hold samples."""

LABELS = (1, 2, BYTE_ARRAY)
"""Physical types that can hold labels: INT32, INT64 and BYTE_ARRAY (text)."""

_TYPES = 8
_REQUIRED, _OPTIONAL, _REPEATED = range(3)
_MAX_NESTED = 32
"""Limit for the groups of the schema around a column."""

_OWN = re.compile(rb"c\d{3,7}")


class Leaf(NamedTuple):
    """A column. ``around``: the repetition of each group around it, outermost first."""

    name: bytes
    physical: int
    length: int  # bytes of a value of type FIXED
    repetition: int
    annotated: bool  # as text, a number, or anything else but bytes
    around: tuple[int, ...]

    @property
    def repeated(self) -> bool:
        return _REPEATED in (self.repetition, *self.around)

    @property
    def nullable(self) -> bool:
        return any(kind != _REQUIRED for kind in (self.repetition, *self.around))

    @property
    def binary(self) -> bool:
        return self.physical in (BYTE_ARRAY, FIXED) and not self.annotated


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a file, and those that its samples are made of.

    ``leaves`` are the columns that samples are made of. In files that iobench wrote (``own``) these
    are all columns; in other files it is the first column of bytes that is not inside a list, or
    else the first such column of text; if there is none, ``leaves`` is empty. ``places`` are their
    positions among all ``columns``. ``names`` are the names of them and their groups in the footer
    that pyarrow gets, and ``code`` is the encoded schema of only these columns.
    """

    columns: int
    own: bool
    places: tuple[int, ...]
    leaves: tuple[Leaf, ...]
    names: tuple[tuple[bytes, ...], ...]
    code: bytes

    @property
    def paths(self) -> list[str]:
        return [b".".join(names).decode() for names in self.names]


_latest: list[tuple[bytes, bytes | None, Schema]] = []
"""Cache of the latest schema, with its encoded bytes: all shards of a dataset have the same one."""


def read_schema(reader: Compact, column: bytes | None = None) -> Schema:
    """Read the schema at the reader's position, for samples or for one column of labels.

    Raises ValueError if it is malformed, or if it has no column of this name that can hold labels.
    """
    data, begin = bytes(reader.data), reader.position
    for known, wanted, schema in _latest:
        if wanted == column and data.startswith(known, begin):
            reader.position = begin + len(known)
            return schema
    leaves = _read_leaves(reader)
    schema = _chosen(leaves) if column is None else _one_column(leaves, column)
    _latest[:] = [(data[begin : reader.position], column, schema)]
    return schema


def _one_column(leaves: list[Leaf], column: bytes) -> Schema:
    """Return the schema with only the column of this name. Raises ValueError."""
    flat = {leaf.name: place for place, leaf in enumerate(leaves) if not leaf.around}
    place = flat.get(column)
    name = column.decode(errors="replace")
    if place is None:
        have = b", ".join(sorted(flat)[:10]).decode(errors="replace")
        raise ValueError(f"it has no column '{name}' (it has: {have or 'none'})")
    leaf = leaves[place]
    if leaf.physical not in LABELS or leaf.repeated:
        raise ValueError(f"its column '{name}' holds neither whole numbers nor text")
    names = ((b"x",),)
    return Schema(len(leaves), False, (place,), (leaf,), names, _written([leaf], list(names)))


def _chosen(leaves: list[Leaf]) -> Schema:
    own = bool(leaves) and all(
        leaf.binary and not leaf.nullable and not leaf.around and _OWN.fullmatch(leaf.name)
        for leaf in leaves
    )
    flat = [number for number, leaf in enumerate(leaves) if not leaf.repeated]
    binary = [number for number in flat if leaves[number].binary]
    text = [number for number in flat if leaves[number].physical == BYTE_ARRAY]
    places = list(range(len(leaves))) if own else (binary or text)[:1]
    mine = [leaves[place] for place in places]
    for leaf in mine:
        if leaf.physical == FIXED and leaf.length < 1:
            raise ValueError(f"a column of a fixed length has {leaf.length} bytes")
    names = [
        (leaf.name,) if own else (*(b"g%d" % n for n in range(len(leaf.around))), b"x")
        for leaf in mine
    ]
    code = _written(mine, names)
    return Schema(len(leaves), own, tuple(places), tuple(mine), tuple(names), code)


def _written(leaves: list[Leaf], names: list[tuple[bytes, ...]]) -> bytes:
    """Encode the schema elements as in a footer: the root, then each column after its groups."""
    elements = [ThriftWriter().binary(4, b"schema").number(5, I32, len(leaves)).finish()]
    for leaf, path in zip(leaves, names, strict=True):
        for name, repetition in zip(path, leaf.around, strict=False):
            group = ThriftWriter().number(3, I32, repetition).binary(4, name)
            elements.append(group.number(5, I32, 1).finish())
        column = ThriftWriter().number(1, I32, leaf.physical)
        if leaf.physical == FIXED:
            column.number(2, I32, leaf.length)
        elements.append(column.number(3, I32, leaf.repetition).binary(4, path[-1]).finish())
    return listed(STRUCT, elements)


def _read_leaves(reader: Compact) -> list[Leaf]:
    """Read the columns of a schema, which is a tree stored in depth-first order."""
    kind, count = reader.elements()
    reader.want(kind if count else STRUCT, STRUCT, "an element of the schema")
    leaves: list[Leaf] = []
    around: list[list[int]] = []  # [repetition of a group, number of its children still to come]
    for number in range(count):
        if number and not around:
            raise ValueError("its schema has more elements than its root has children")
        leaf, children = _read_element(reader)
        if around:
            around[-1][1] -= 1
        if children is None and number:
            leaves.append(leaf._replace(around=tuple(kind for kind, _ in around[1:])))
        else:
            around.append([leaf.repetition, children or 0])
        while around and not around[-1][1]:
            around.pop()
        if len(around) > _MAX_NESTED:
            raise ValueError(f"its schema is nested more than {_MAX_NESTED} deep")
    if around:
        raise ValueError("its schema ends before all of its groups do")
    return leaves


def _read_element(reader: Compact) -> tuple[Leaf, int | None]:
    """Read one schema element: (element, number of its children, or None if it is a column)."""
    numbers: dict[int, int] = {}
    name = b""
    annotated = False
    for field, kind in reader.fields():
        if field in (1, 2, 3, 5):
            reader.want(kind, I32, "a number of the schema")
            numbers[field] = reader.number(I32)
        elif field == 4:
            reader.want(kind, BINARY, "a name")
            name = reader.binary()
        else:
            annotated |= field in (6, 10)
            reader.skip(kind)
    physical, repetition = numbers.get(1), numbers.get(3, _REQUIRED)
    children = numbers.get(5) if physical is None else None
    if physical is None and (children is None or children < 0):
        raise ValueError("an element of its schema has neither a type nor children")
    if physical is not None and not 0 <= physical < _TYPES:
        raise ValueError(f"a column has the unknown type {physical}")
    if not 0 <= repetition <= _REPEATED:
        raise ValueError(f"a column has the unknown repetition {repetition}")
    return Leaf(name, physical or 0, numbers.get(2, 0), repetition, annotated, ()), children

"""Find the samples of a foreign Parquet file: row groups, and the bytes of each row's sample.

A row's sample is one column of bytes or text, also inside structs, which
data/formats/parquet_shard.py chooses. Parquet stores the lengths of rows only in its pages, so that
column is read and decoded once to get exact sizes. The footer alone is enough in two cases: the
column has a fixed length; or there is no such column, and each row group as it is stored is a
sample.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from multiprocessing import get_context

import numpy as np

from ...base.limits import check_plausible
from ...base.text import printable
from ...storage.files import ByteSource
from ..formats.parquet import Parquet
from ..formats.parquet_rows import Rows
from ..formats.parquet_shard import ParquetShard
from .samples import Int64, ShardSamples

_TAIL = 64 << 10
"""Bytes that are read first, from the end of the file: most footers are shorter."""

_ROW = 48
"""About how many bytes each sample takes in memory while the table of samples is built."""

_LARGE = 64 << 20
_one_at_a_time = get_context("fork").Lock()
"""Lock for row groups larger than ``_LARGE``: without it, every worker could hold one in memory."""

_MAGIC = {b"\xff\xd8\xff": ".jpg", b"PK\x03\x04": ".npz"}
"""The first bytes of samples that have no names."""

READ = "row groups read and decoded, because Parquet stores the sizes of rows only in its pages"
AS_STORED = "row groups that are samples as they are stored, because no column holds bytes or text"
EMPTY = "samples that are null or empty"
CHOSEN = "files with their samples in column '{name}', the one of bytes or text that is largest"


def opened(window: ByteSource, size: int, column: str | None = None) -> tuple[ParquetShard, int]:
    """Open a file of ``size`` bytes; return it and the length of its footer.

    ``column``: open it for this column, not for the samples. Raises ValueError.
    """
    have = min(size, _TAIL)
    tail = window.apart(size - have, size)
    need = Parquet().footer_bytes(tail, size)
    if need > have:
        tail = window.apart(size - need, size)
    tail = tail[len(tail) - need :]
    if column is None:
        return Parquet().open(tail, size), need
    return ParquetShard(tail, size, column), need


def parquet(window: ByteSource, size: int) -> ShardSamples:
    """Find the samples of a file. Raises ValueError if it is damaged, truncated or encrypted."""
    offsets, stored, sizes = [], [], []
    codecs: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    suffix: str | None = None
    shard, footer = opened(window, size)
    if shard.chosen:
        notes[CHOSEN.format(name=printable(shard.chosen, 100))] += 1
    for group in range(shard.groups):
        begin, end = shard.extent(group)
        if not shard.columns:
            found, suffix = np.array([end - begin]), ""
            notes[AS_STORED] += 1
        elif shard.width is not None:
            found, suffix = _claimed(shard, group, end - begin), ""
        else:
            with _one_at_a_time if end - begin > _LARGE else nullcontext():
                parts = [(begin, window.apart(begin, end))]
                decoded: list[Int64] = []
                for rows in shard.pieces(group, None, parts, check=True):
                    decoded.append(rows.sizes)
                    suffix = _suffix(rows, suffix)
                found = _joined(decoded)
            notes[READ] += 1
            if len(found) != shard.rows(group):
                raise ValueError(
                    f"row group {group} has {len(found)} rows, "
                    f"its footer states {shard.rows(group)}"
                )
        if shard.columns:
            codecs[shard.codec(group)] += end - begin
        sizes.append(found)
        offsets.append(np.full(len(found), begin))
        stored.append(np.full(len(found), end - begin))
    size_of = _joined(sizes)
    if empty := int((size_of == 0).sum()):
        notes[EMPTY] = empty
    return ShardSamples(
        offset=_joined(offsets),
        stored=_joined(stored),
        size=size_of,
        suffixes=frozenset({suffix or ""} if sizes else ()),
        nbytes=sum(int(part[0]) for part in stored) + footer,
        blocks=tuple(int(part.sum()) for part in sizes)
        if shard.columns
        # If row groups are the samples, each counts as one.
        else (1,) * len(sizes),
        codecs=codecs,
        notes=notes,
    )


def _claimed(shard: ParquetShard, group: int, stored: int) -> Int64:
    """Sizes of rows of a fixed length, after checking that their number is plausible."""
    rows, width = shard.rows(group), shard.width or 0
    check_plausible(rows * max(width, _ROW), stored, f"row group {group}, of {rows} rows,")
    return np.full(rows, width, np.int64)


def _suffix(rows: Rows, before: str | None) -> str:
    """The suffix that the first bytes of all samples so far indicate; '' if they indicate none.

    For most columns the first row already decides that it is ''.
    """
    for row in range(rows.count):
        if before == "":
            break
        begin = bytes(rows.content(row)[:4])
        suffix = next((suffix for magic, suffix in _MAGIC.items() if begin.startswith(magic)), "")
        before = suffix if before in (None, suffix) else ""
    return before or ""


def _joined(parts: list[Int64]) -> Int64:
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)

"""Parquet shards, written by pyarrow: row groups of ``block_size`` bytes of samples.

A row is a sample. Its bytes are cut into ``columns`` equal parts (the first parts are a byte longer
if the size does not divide evenly), which are the binary columns ``c000``, ``c001`` ... Samples of
one size become fixed-length columns, which store no lengths. The dataset's codec is the page
compression. Dictionaries, statistics and time stamps are left out, so the same spec gives the same
bytes as long as the version of pyarrow stays the same.

Parquet is not read by single rows but by row group (``Blocks`` in base.py, ``parquet_shard.py``
here), so for every sample of a row group the manifest gives the extent of the whole group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...base.buffers import Buffer
from ...settings.dataset import DatasetSpec
from ..codecs.base import Codec
from .base import Blocks
from .parquet_shard import ParquetShard, footer_bytes

Int64 = npt.NDArray[np.int64]

DEFAULT_BLOCK = 4 << 20
"""Bytes of samples in a row group: one request of the reader's default block size."""

_LARGEST = 1 << 30
"""Bytes of the largest sample: pyarrow's binary arrays count their bytes in 31 bits."""


class Parquet(Blocks):
    """Rows of binary columns in row groups."""

    name: ClassVar[str] = "parquet"
    suffix: ClassVar[str] = ".parquet"
    has_checksums: ClassVar[bool] = True
    framing_bytes: ClassVar[int] = 64
    block_bytes: ClassVar[int] = DEFAULT_BLOCK

    def check_spec(self, spec: DatasetSpec, codec: Codec) -> None:
        if not codec.parquet_names:
            raise ValueError(f"format 'parquet' cannot use codec '{codec.name}'")
        if codec.level is not None and not codec.parquet_levels:
            raise ValueError(
                f"format 'parquet' has no compression levels for {codec.name}; "
                f"write codec: {codec.name}"
            )
        size = spec.sample_size
        least = (size.mean if size.distribution == "constant" else size.min) or 1
        if (spec.columns or 1) > least:
            raise ValueError(
                f"{spec.columns} columns need samples of at least {spec.columns} bytes, but some "
                f"may have {least}; set sample_size.min"
            )
        if max(size.max or 0, round(size.mean_bytes)) > _LARGEST:
            raise ValueError(f"format 'parquet' holds samples of up to {_LARGEST >> 30} GiB")

    def prefix(self, sizes: Int64, *, columns: int, of: int) -> Int64:
        """Bytes of the first ``columns`` columns of samples of these sizes."""
        return prefix(sizes, columns=columns, of=of)

    def footer_bytes(self, tail: Buffer, size: int) -> int:
        """Return how many of a shard's last bytes ``open`` needs. Raises ValueError.

        ``tail``: at least the last eight bytes of the shard.
        """
        return footer_bytes(tail, size)

    def open(self, tail: Buffer, size: int) -> ParquetShard:
        """Open a shard of ``size`` bytes from its ``tail``, which must hold the whole footer.

        Raises ValueError.
        """
        return ParquetShard(tail, size)

    def assemble(
        self,
        contents: Iterator[Buffer],
        sizes: Int64,
        write: Callable[[bytes | Buffer], None],
        *,
        spec: DatasetSpec,
        codec: Codec,
    ) -> tuple[Int64, Int64]:
        """Write one shard; return (offset, stored) of each sample: the extent of its row group.

        One row group at a time is held in memory.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns, fixed = spec.columns or 1, spec.sample_size.distribution == "constant"
        ends = _part_ends(int(sizes[0]), columns) if fixed else None
        widths = np.diff(ends, prepend=0).tolist() if ends is not None else [-1] * columns
        schema = pa.schema(
            [
                pa.field(f"c{number:03d}", pa.binary(width), nullable=False)
                for number, width in enumerate(widths)
            ]
        )
        sink = _Sink(write)
        written: list[Any] = []
        writer = pq.ParquetWriter(
            pa.PythonFile(sink, mode="w"),
            schema,
            compression=codec.parquet_names[0],
            compression_level=codec.used_level if codec.parquet_levels else None,
            use_dictionary=False,
            write_statistics=False,
            store_schema=False,
            write_page_checksum=True,
            metadata_collector=written,
        )
        bounds = group_bounds(sizes, spec.block_size or DEFAULT_BLOCK)
        try:
            for first, last in itertools.pairwise(bounds):
                parts = _gather(contents, sizes[first:last], columns)
                arrays = [
                    _array(pa, width, *part) for width, part in zip(widths, parts, strict=True)
                ]
                writer.write_table(
                    pa.Table.from_arrays(arrays, schema=schema), row_group_size=last - first
                )
            writer.close()
        except BaseException:
            # Closing the writer writes a footer even after an error; discard it.
            sink.deaf = True
            with suppress(Exception):
                writer.close()
            raise
        extents = np.array(
            [_extent(written[0].row_group(group)) for group in range(len(bounds) - 1)]
        )
        group = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        return extents[group, 0], extents[group, 1] - extents[group, 0]


def prefix(sizes: Int64, *, columns: int | Int64, of: int) -> Int64:
    """Bytes of the first ``columns`` columns of samples of these sizes, cut into ``of`` columns."""
    return np.asarray(sizes // of * columns + np.minimum(sizes % of, columns))


def group_bounds(sizes: Int64, block: int) -> list[int]:
    """First row of each row group, and the end of the last.

    A group takes as many samples as fit into ``block`` bytes, but at least one.
    """
    ends = np.cumsum(sizes)
    bounds = [0]
    while bounds[-1] < len(sizes):
        before = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
        bounds.append(max(bounds[-1] + 1, int(np.searchsorted(ends, before + block, side="right"))))
    return bounds


def _extent(group: Any) -> tuple[int, int]:
    """(begin, end) of a row group's column chunks in the file, from pyarrow's metadata of it."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    return chunks[0].data_page_offset, chunks[-1].data_page_offset + chunks[
        -1
    ].total_compressed_size


def _part_ends(size: int, columns: int) -> Int64:
    """Where each column's part of a sample of ``size`` bytes ends."""
    return prefix(np.asarray(size), columns=np.arange(1, columns + 1), of=columns)


def _gather(
    contents: Iterator[Buffer], sizes: Int64, columns: int
) -> list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]]:
    """(bytes, offsets) of each column of one row group.

    The memory of the iterator is reused, so all bytes are copied out of it.
    """
    row_ends = np.cumsum(sizes)
    data = np.empty(int(row_ends[-1]), np.uint8)
    for end, size in zip(row_ends.tolist(), sizes.tolist(), strict=True):
        data[end - size : end] = np.frombuffer(next(contents), np.uint8)
    if columns == 1:
        return [(data, np.concatenate(([0], row_ends)).astype(np.int32))]
    if sizes.min() == sizes.max():
        ends = _part_ends(int(sizes[0]), columns).tolist()
        matrix = data.reshape(len(sizes), -1)
        cuts = [
            np.ascontiguousarray(matrix[:, start:end])
            for start, end in zip([0, *ends], ends, strict=False)
        ]
        return [
            (cut.reshape(-1), np.arange(0, cut.size + 1, cut.shape[1], dtype=np.int32))
            for cut in cuts
        ]
    found = []
    starts = row_ends - sizes
    for number in range(columns):
        begins = starts + prefix(sizes, columns=number, of=columns)
        finishes = starts + prefix(sizes, columns=number + 1, of=columns)
        pieces = [
            data[begin:finish]
            for begin, finish in zip(begins.tolist(), finishes.tolist(), strict=True)
        ]
        found.append(
            (
                np.concatenate(pieces),
                np.concatenate(([0], np.cumsum(finishes - begins))).astype(np.int32),
            )
        )
    return found


def _array(pa: Any, width: int, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int32]) -> Any:
    rows = len(offsets) - 1
    if width >= 0:
        return pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(width), rows, [None, pa.py_buffer(data)]
        )
    return pa.BinaryArray.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


class _Sink:
    """A write-only file object for pyarrow."""

    closed = False

    def __init__(self, write: Callable[[bytes | Buffer], None]) -> None:
        self._write = write
        self.position = 0
        self.deaf = False

    def write(self, data: bytes) -> int:
        if not self.deaf:
            self._write(data)
        self.position += len(data)
        return len(data)

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        return

    def close(self) -> None:
        return

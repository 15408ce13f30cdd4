"""MDS shards (format version 2 of mosaicml-streaming), written without that library.

A shard is a table of offsets (u32), a JSON description of the columns, and the samples: lengths of
the columns that vary (u32 each), then the columns' bytes. Here a sample has one column,
``content``. The library finds the shards through ``index.json`` in the same directory. A sample's
bytes are contiguous, so that one range read fetches it. The library compresses whole shards, so the
only codec is ``none``.

Source: streaming/base/format/mds/{encodings,reader,writer}.py of mosaicml-streaming 0.13.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ..buffers import Buffer
from ..codecs.base import Codec
from ..schema.dataset import DatasetSpec
from .base import Assembled

Int64 = npt.NDArray[np.int64]

_U32 = struct.Struct("<I")
_MAX_SHARD = (1 << 32) - 1
"""Limit for the bytes of a shard: offsets are unsigned and have 32 bits."""

_BYTES = ("bytes", "jpeg", "jpg", "png", "pil")
"""Encodings of columns that hold a sample's bytes."""


class Mds(Assembled):
    """Samples of one column of bytes, of varying length."""

    name: ClassVar[str] = "mds"
    suffix: ClassVar[str] = ".mds"
    framing_bytes: ClassVar[int] = 16
    index_name: ClassVar[str] = "index.json"

    def check_spec(self, spec: DatasetSpec, codec: Codec) -> None:
        if not codec.plain:
            raise ValueError(
                f"format 'mds' cannot compress single samples, so codec '{spec.codec}' cannot be "
                "used; use codec: none"
            )
        shard = spec.shard_size or (spec.samples_per_shard or 1) * spec.sample_size.mean_bytes
        if shard > _MAX_SHARD // 2:
            raise ValueError(
                f"format 'mds' has offsets of 32 bits, and shards of {shard / 2**30:.1f} GiB are "
                "too large for them; lower samples_per_shard or shard_size"
            )

    def assemble(
        self,
        contents: Iterator[Buffer],
        sizes: Int64,
        write: Callable[[bytes | Buffer], None],
        *,
        spec: DatasetSpec,
        codec: Codec,
    ) -> tuple[Int64, Int64]:
        """Write one shard, sample after sample; return (offset, stored) of each."""
        config = _config()
        start = _U32.size + _U32.size * (len(sizes) + 1) + len(config)
        ends = start + np.cumsum(sizes + _U32.size)
        if ends[-1] > _MAX_SHARD:
            raise ValueError(
                f"a shard of {int(ends[-1])} bytes is too large for offsets of 32 bits"
            )
        offsets = np.concatenate(([start], ends))
        write(_U32.pack(len(sizes)) + offsets.astype("<u4").tobytes() + config)
        for size, content in zip(sizes.tolist(), contents, strict=True):
            write(_U32.pack(size))
            write(content)
        return offsets[:-1] + _U32.size, sizes.copy()

    def index(self, names: Sequence[str], sizes: Int64, samples: Int64) -> bytes:
        """``index.json`` for shards of these file names, bytes and numbers of samples."""
        shards = [
            {
                **json.loads(_config()),
                "raw_data": {"basename": name, "bytes": size, "hashes": {}},
                "samples": count,
                "zip_data": None,
            }
            for name, size, count in zip(names, sizes.tolist(), samples.tolist(), strict=True)
        ]
        return json.dumps({"version": 2, "shards": shards}, sort_keys=True).encode() + b"\n"

    def unpack(self, shard: Buffer, *, check: bool) -> Iterator[Buffer]:
        """Yield the first column of bytes of each sample, also in shards of other writers.

        If there is no such column, yield all columns of a sample together.
        """
        offsets = _offsets(shard)
        columns = _columns(shard, len(offsets) * _U32.size + _U32.size, int(offsets[0]))
        place = next(
            (number for number, (encoding, _) in enumerate(columns) if encoding in _BYTES), None
        )
        for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            yield _column(shard[begin:end], columns, place, begin)


def _config() -> bytes:
    described = {
        "column_encodings": ["bytes"],
        "column_names": ["content"],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": None,
        "version": 2,
    }
    return json.dumps(described, sort_keys=True).encode()


def _offsets(shard: Buffer) -> Int64:
    """Read and check the table: where each sample begins, and where the last one ends."""
    count = _U32.unpack_from(shard)[0] if len(shard) >= _U32.size else 0
    table = _U32.size + _U32.size * (count + 1)
    if count == 0 or table > len(shard):
        raise ValueError(
            f"not an MDS shard: {count} samples need {table} bytes of offsets, but the shard ends "
            f"at offset {len(shard)}"
        )
    offsets = np.frombuffer(shard[_U32.size : table], "<u4").astype(np.int64)
    if offsets[0] < table or (np.diff(offsets) < 0).any() or offsets[-1] != len(shard):
        raise ValueError(
            f"MDS shard is damaged: its samples lie at {offsets[0]} to {offsets[-1]}, but the "
            f"shard ends at offset {len(shard)}"
        )
    return offsets


def _columns(shard: Buffer, start: int, end: int) -> list[tuple[str, int | None]]:
    """Read (encoding, size in bytes or None if it varies) of each column."""
    try:
        config = json.loads(bytes(shard[start:end]))
        found = list(zip(map(str, config["column_encodings"]), config["column_sizes"], strict=True))
        if found and all(
            size is None or (isinstance(size, int) and size >= 0) for _, size in found
        ):
            return found
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError(f"MDS shard is damaged: no description of its columns at offset {start}")


def _column(
    sample: Buffer, columns: list[tuple[str, int | None]], place: int | None, begin: int
) -> Buffer:
    varying = sum(size is None for _, size in columns)
    head = varying * _U32.size
    if head > len(sample):
        raise ValueError(f"MDS sample at offset {begin} is shorter than its lengths")
    lengths = iter(struct.unpack_from(f"<{varying}I", sample))
    sizes = [next(lengths) if size is None else size for _, size in columns]
    if head + sum(sizes) != len(sample):
        raise ValueError(
            f"MDS sample at offset {begin} has {len(sample)} bytes, its columns say "
            f"{head + sum(sizes)}"
        )
    if place is None:
        return sample[head:]
    start = head + sum(sizes[:place])
    return sample[start : start + sizes[place]]

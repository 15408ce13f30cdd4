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

from ...base.buffers import Buffer
from ...settings.dataset import DatasetSpec
from ..codecs.base import Codec
from .base import Assembled

Int64 = npt.NDArray[np.int64]

_U32 = struct.Struct("<I")
_MAX_SHARD = (1 << 32) - 1
"""Limit for the bytes of a shard: offsets are unsigned and have 32 bits."""


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

"""HDF5 shards, written by h5py: one dataset of bytes (uint8) per sample, named by its position.

``codec: none`` stores a sample contiguously, ``codec: gzip`` as one chunk with the standard deflate
filter. Either way its stored bytes are contiguous, so that one range read fetches a sample, as in
any other format, and needs no h5py. A shard is built in memory before it is written. There are no
time stamps, and the version of the file format is fixed, so the same spec gives the same bytes as
long as the version of the library stays the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...base.buffers import Buffer
from ...settings.dataset import DatasetSpec
from ..codecs.base import Codec
from .base import Assembled

Int64 = npt.NDArray[np.int64]

_LIBVER = ("v108", "v108")
_GROW = 1 << 20

_DEFLATE = "gzip"
"""The codec that stands for HDF5's own deflate filter; this module applies it."""


class Hdf5(Assembled):
    """Datasets in the root group, named ``000000000`` and so on."""

    name: ClassVar[str] = "hdf5"
    suffix: ClassVar[str] = ".h5"
    writes_with: ClassVar[str] = "h5py"
    max_shard_bytes: ClassVar[int] = 2 << 30  # held in memory twice while a shard is written

    def check_spec(self, spec: DatasetSpec, codec: Codec) -> None:
        if codec.name not in ("none", _DEFLATE):
            raise ValueError(
                f"format 'hdf5' cannot use codec '{codec.name}', which HDF5 does not read without "
                "a plug-in: use none or gzip"
            )
        self.check_shard(spec)

    def assemble(
        self,
        contents: Iterator[Buffer],
        sizes: Int64,
        write: Callable[[bytes | Buffer], None],
        *,
        spec: DatasetSpec,
        codec: Codec,
    ) -> tuple[Int64, Int64]:
        """Build one shard and write it; return (offset, stored) of each sample."""
        import h5py

        level = codec.used_level or 0
        offsets, stored = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
        with h5py.File(
            "iobench", "w", driver="core", backing_store=False, block_size=_GROW, libver=_LIBVER
        ) as file:
            for place, content in enumerate(contents):
                name, data = f"{place:09d}", np.frombuffer(content, np.uint8)
                if codec.plain:
                    dataset = file.create_dataset(name, data=data, track_times=False)
                    offsets[place], stored[place] = dataset.id.get_offset(), len(data)
                    continue
                dataset = file.create_dataset(
                    name,
                    shape=data.shape,
                    dtype=np.uint8,
                    chunks=data.shape,
                    compression=level,
                    track_times=False,
                )
                dataset.id.write_direct_chunk((0,), zlib.compress(content, level))
                chunk = dataset.id.get_chunk_info(0)
                offsets[place], stored[place] = chunk.byte_offset, chunk.size
            file.flush()
            write(file.id.get_file_image())
        return offsets, stored

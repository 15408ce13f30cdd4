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
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..buffers import Buffer
from ..codecs.base import Codec
from ..limits import check_plausible
from ..schema.dataset import DatasetSpec
from .base import Assembled

Int64 = npt.NDArray[np.int64]

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
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

    def unpack(self, shard: Buffer, *, check: bool) -> Iterator[Buffer]:
        """Yield the contents of the datasets; groups are walked in the order of their names.

        A dataset with no dimension or one is one sample. One with more dimensions has a sample for
        each index of the first dimension, and one whose elements vary in length has a sample for
        each element. Data in other files (links, external storage, virtual datasets) is never read,
        and references are left out.
        """
        import h5py

        if bytes(shard[: len(_SIGNATURE)]) != _SIGNATURE:
            raise ValueError("not an HDF5 file: no signature at offset 0")
        try:
            with h5py.File(h5py.h5f.open_file_image(bytes(shard))) as file:
                for dataset in datasets(h5py, file["/"], set()):
                    yield from _samples(dataset)
        except (
            OSError,
            RuntimeError,
            KeyError,
            TypeError,
            ValueError,
            OverflowError,
            MemoryError,
        ) as error:
            raise ValueError(
                f"the HDF5 file that ends at byte {len(shard)} is damaged: "
                f"{' '.join(str(error).split())[:160]}"
            ) from None


def datasets(h5py: Any, group: Any, seen: set[Any]) -> Iterator[Any]:
    address = h5py.h5o.get_info(group.id).addr
    if address in seen:
        return  # a group can contain itself, or have several names
    seen.add(address)
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            # The target of a soft link has a hard link, too; other files are not read.
            continue
        item = group[name]
        if isinstance(item, h5py.Dataset):
            yield item
        elif isinstance(item, h5py.Group):
            yield from datasets(h5py, item, seen)


def _samples(dataset: Any) -> Iterator[Buffer]:
    if dataset.external or dataset.is_virtual or dataset.shape is None:
        return
    if dataset.size:
        check_plausible(dataset.nbytes, dataset.id.get_storage_size(), dataset.name)
    if dataset.dtype.hasobject:
        for element in dataset[()].reshape(-1) if dataset.shape else [dataset[()]]:
            if isinstance(element, bytes | str):
                yield memoryview(element.encode() if isinstance(element, str) else element)
            elif isinstance(element, np.ndarray) and not element.dtype.hasobject:
                yield _view(element)
        return
    if len(dataset.shape) < 2:
        yield _view(np.asarray(dataset[()]))
        return
    for place in range(dataset.shape[0]):
        yield _view(dataset[place])


def _view(array: Any) -> Buffer:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

"""Elements of HDF5 datasets that vary in length (text, or images as bytes), in the global heap.

HDF5 File Format Specification 3.0, III.E (global heap) and IV.A.2.d, IV.B (variable-length data): a
dataset stores references of 16 bytes (number of elements u32, address of a collection u64, index in
it u32). A collection is a header of 16 bytes and then objects, each a header of 16 bytes (index
u16, references u16, 0 u32, size u64) and data, padded to 8 bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .samples import Int64

Read = Callable[[int, int], bytes]
"""Reads the bytes of the file from one offset to another."""

_REFERENCE = np.dtype([("count", "<u4"), ("address", "<u8"), ("index", "<u4")])
_OBJECT = struct.Struct("<HH4xQ")
_DEFLATE = 1
_AT_ONCE = 1 << 16


def element_bytes(h5py: Any, dataset: Any) -> int | None:
    """Bytes of one item of the elements, which are lists of varying length.

    None if an item is of no plain type, or if the file's addresses do not have 8 bytes.
    """
    if dataset.file.id.get_create_plist().get_sizes() != (8, 8):
        return None
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return 1
    base = h5py.check_vlen_dtype(dataset.dtype)
    return (
        None
        if base is None or base.hasobject
        else int(dataset.id.get_type().get_super().get_size())
    )


def references(dataset: Any, chunks: list[Any], filters: list[int], read: Read) -> Any:
    """Read the references of a dataset, in its order.

    None if its chunks have more than one dimension, or use filters other than deflate. Raises
    ValueError for a truncated chunk.
    """
    if dataset.chunks is None:
        begin = dataset.id.get_offset()
        count = dataset.size if begin is not None else 0
        return np.frombuffer(
            read(begin or 0, (begin or 0) + count * _REFERENCE.itemsize), _REFERENCE
        )
    if len(dataset.shape) != 1 or filters not in ([], [_DEFLATE]):
        return None
    parts = []
    most = dataset.chunks[0] * _REFERENCE.itemsize
    for chunk in chunks:
        data = read(chunk.byte_offset, chunk.byte_offset + chunk.size)
        if filters and not chunk.filter_mask:
            data = zlib.decompressobj().decompress(data, most)
        if len(data) < most:
            raise ValueError(f"a chunk of {dataset.name} is cut off")
        parts.append(
            np.frombuffer(data[:most], _REFERENCE)[: dataset.shape[0] - chunk.chunk_offset[0]]
        )
    return np.concatenate(parts) if parts else np.empty(0, _REFERENCE)


def locate(found: Any, each: int, base: int, read: Read) -> tuple[Int64, Int64]:
    """(offset, bytes) of each element that is not empty, from its reference.

    ``each``: bytes of one item of an element; ``base``: offset in the file that addresses count
    from. Raises ValueError for a reference that does not fit the heap.
    """
    filled = found[found["count"] > 0]
    size = filled["count"].astype(np.int64) * each
    offset = np.empty(len(filled), np.int64)
    known: dict[int, tuple[int, int]] = {}
    last = -1
    # Python integers take far more memory than numpy's, so they are converted part by part.
    for start in range(0, len(filled), _AT_ONCE):
        part = filled[start : start + _AT_ONCE]
        references = zip(part["address"].tolist(), part["index"].tolist(), strict=True)
        for place, (address, index) in enumerate(references, start):
            if address != last:
                known, last = _objects(base + address, read), address
            begin, length = known.get(index, (0, -1))
            if length < size[place]:
                raise ValueError(
                    f"an element of {size[place]} bytes is not where its reference says "
                    f"(byte {base + address}, number {index})"
                )
            offset[place] = begin
    return offset, size


def _objects(begin: int, read: Read) -> dict[int, tuple[int, int]]:
    """Index -> (offset, bytes) of the objects of one collection."""
    head = read(begin, begin + 16)
    if head[:5] != b"GCOL\1":
        raise ValueError(f"no heap at byte {begin}")
    end = begin + int.from_bytes(head[8:16], "little")
    found: dict[int, tuple[int, int]] = {}
    position = begin + 16
    while position + _OBJECT.size <= end:
        index, _, size = _OBJECT.unpack(read(position, position + _OBJECT.size))
        if index == 0:  # index 0 marks free space
            break
        found[index] = position + _OBJECT.size, size
        position += _OBJECT.size + -(-size // 8) * 8
    return found

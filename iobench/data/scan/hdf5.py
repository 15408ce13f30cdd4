"""Find the samples of a foreign HDF5 file from its metadata alone, which h5py reads.

A dataset with no dimension or one is one sample; one with more dimensions has a sample for each
index of the first. A sample is a range of the file if the dataset is stored contiguously, or in
unfiltered chunks of whole samples; it is a zlib stream if each chunk holds one sample and has the
deflate filter. In any other chunked dataset, each chunk as it is stored is a sample. Elements that
vary in length are a sample each. Other files are never opened, whatever a link says.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.limits import MAX_EXPANSION
from ...storage.files import ByteSource, Pages
from .samples import Int64, ShardSamples, suffix_of

_DEFLATE = 1
_FILTERS = {
    1: "deflate",
    2: "shuffle",
    3: "fletcher32",
    4: "szip",
    5: "nbit",
    6: "scaleoffset",
    32000: "lzf",
    32001: "blosc",
    32015: "zstd",
}

ELSEWHERE = "datasets left out, whose data is in other files"
VARIABLE = (
    "datasets left out, whose elements vary in length or refer to others, in a way that iobench "
    "does not follow"
)
EMPTY = "empty samples left out"
COMPACT = "datasets left out, whose data is inside their headers"
UNWRITTEN = "samples left out, which were never written, so that nothing of them is stored"
LABELLED = "datasets left out, whose names say that they are labels"
LABELS = {"label", "labels", "target", "targets", "class", "classes", "y"}
"""Last parts of dataset names that mean labels, unless the file has no other datasets."""

AS_STORED = "chunks that are samples as they are stored, because {why}"


class _InDataset(NamedTuple):
    """The samples of one dataset."""

    offset: Int64
    stored: Int64
    size: Int64
    deflated: npt.NDArray[np.bool_]
    suffix: str


def hdf5(window: ByteSource, size: int) -> ShardSamples:
    """Find the samples of a file. Raises ValueError if it is damaged or no HDF5."""
    import h5py

    notes: Counter[str] = Counter()
    parts: list[_InDataset] = []
    labels: list[_InDataset] = []
    source = Pages(window, size)
    try:
        with h5py.File(source, "r") as file:
            for dataset in _datasets(h5py, file["/"], set()):
                part = _samples(h5py, dataset, notes, source)
                if part is not None:
                    _check(part.offset, part.stored, dataset.name, size)
                    named = str(dataset.name).rpartition("/")[2].lower()
                    (labels if named in LABELS else parts).append(part)
    except (
        OSError,
        RuntimeError,
        LookupError,
        TypeError,
        ValueError,
        OverflowError,
        MemoryError,
        zlib.error,
    ) as error:
        raise ValueError(" ".join(str(error).split())[:160]) from None
    if parts:
        notes.update({LABELLED: len(labels)} if labels else {})
    else:
        parts = labels  # without other datasets, those with a label's name are the data
    if not parts:
        parts.append(_as_stored(np.empty(0, np.int64), np.empty(0, np.int64), Counter(), ""))
    offset, stored, content = (
        np.concatenate([part[number] for part in parts]) for number in range(3)
    )
    return ShardSamples(
        offset=offset,
        stored=stored,
        size=content,
        suffixes=frozenset(part.suffix for part in parts),
        deflated=np.concatenate([part.deflated for part in parts]),
        nbytes=int(stored.sum()),
        notes=notes,
    )


def _datasets(h5py: Any, group: Any, seen: set[Any]) -> Iterator[Any]:
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
            place = h5py.h5o.get_info(item.id).addr
            if place not in seen:  # a dataset can have several names, too
                seen.add(place)
                yield item
        elif isinstance(item, h5py.Group):
            yield from _datasets(h5py, item, seen)


def _samples(h5py: Any, dataset: Any, notes: Counter[str], source: Pages) -> _InDataset | None:
    """Find the samples of a dataset; None if it has none, which ``notes`` may explain."""
    if dataset.shape is None or 0 in dataset.shape:
        return None
    if dataset.external or dataset.is_virtual:
        notes[ELSEWHERE] += 1
        return None
    if _varies(dataset):
        return _variable(h5py, dataset, notes, source)
    layout = dataset.id.get_create_plist().get_layout()
    if layout == h5py.h5d.COMPACT:
        notes[COMPACT] += 1
        return None
    if layout == h5py.h5d.CHUNKED:
        return _chunked(dataset, notes, source.size)
    count, each = _count(dataset), _element(dataset) * math.prod(_one(dataset))
    begin = dataset.id.get_offset()
    if begin is None:
        notes[UNWRITTEN] += count
        return None
    if dataset.id.get_storage_size() < count * each:
        raise ValueError(
            f"{dataset.name} claims {count * each} bytes, and stores "
            f"{dataset.id.get_storage_size()}"
        )
    # Check before allocating an array of as many samples as the dataset claims.
    if begin + count * each > source.size:
        raise ValueError(
            f"{dataset.name} would end at byte {begin + count * each} of {source.size}"
        )
    return _plain(begin + np.arange(count, dtype=np.int64) * each, each, dataset)


def _variable(h5py: Any, dataset: Any, notes: Counter[str], source: Pages) -> _InDataset | None:
    each = element_bytes(h5py, dataset)
    compact = dataset.id.get_create_plist().get_layout() == h5py.h5d.COMPACT
    found = (
        None
        if each is None or compact
        else references(dataset, *_chunks(dataset, source.size), source.between)
    )
    if each is None or found is None:
        notes[VARIABLE] += 1
        return None
    offset, size = locate(found, each, dataset.file.userblock_size, source.between)
    notes.update({EMPTY: dataset.size - len(offset)} if len(offset) < dataset.size else {})
    return _InDataset(offset, size, size, np.zeros(len(offset), np.bool_), "")


def _chunks(dataset: Any, size: int) -> tuple[list[Any], list[int]]:
    """A dataset's chunks in the order of its elements, and the numbers of its filters.

    Raises ValueError for a chunk outside the file.
    """
    chunks: list[Any] = []
    creation = dataset.id.get_create_plist()

    def keep(chunk: Any) -> bool | None:
        chunks.append(chunk)
        # If the library computes the chunks' places, it yields as many as the dataset claims to
        # have. A return value stops it at the first chunk outside the file.
        return True if chunk.byte_offset + chunk.size > size else None

    if dataset.chunks is not None:
        dataset.id.chunk_iter(keep)
        _check(*_places(chunks), dataset.name, size)
    chunks.sort(key=lambda chunk: chunk.chunk_offset)
    return chunks, [creation.get_filter(number)[0] for number in range(creation.get_nfilters())]


def _places(chunks: list[Any]) -> tuple[Int64, Int64]:
    begin, length = (
        np.array([getattr(chunk, name) for chunk in chunks], np.int64)
        for name in ("byte_offset", "size")
    )
    return begin, length


def _chunked(dataset: Any, notes: Counter[str], size: int) -> _InDataset | None:
    chunks, filters = _chunks(dataset, size)
    if not chunks:
        notes[UNWRITTEN] += _count(dataset)
        return None
    begin, length = _places(chunks)
    # The library may skip a filter for single chunks, if it did not help.
    skipped = np.array([chunk.filter_mask for chunk in chunks], np.int64) != 0
    element, one = _element(dataset), _one(dataset)
    each, full = element * math.prod(one), element * math.prod(dataset.chunks)
    single = len(dataset.shape) < 2
    per = 1 if single else dataset.chunks[0]
    whole = dataset.chunks[0] >= one[0] if single else dataset.chunks[1:] == one
    if not whole:
        return _as_stored(begin, length, notes, "a sample has several chunks")
    if not filters and (length == full).all():
        first = np.array([chunk.chunk_offset[0] for chunk in chunks], np.int64)
        within = np.arange(min(per, _count(dataset)), dtype=np.int64)
        there = first[:, None] + within < _count(dataset)
        offsets = (begin[:, None] + within * each)[there]
        notes.update(
            {UNWRITTEN: _count(dataset) - len(offsets)} if len(offsets) < _count(dataset) else {}
        )
        return _plain(offsets, each, dataset)
    if filters == [_DEFLATE] and full == each:
        if not (length[skipped] == each).all() or (MAX_EXPANSION * length < each).any():
            raise ValueError(
                f"{dataset.name} claims {each} bytes of chunks that store {int(length.min())}"
            )
        if len(chunks) < _count(dataset):
            notes[UNWRITTEN] += _count(dataset) - len(chunks)
        return _InDataset(
            begin,
            length,
            np.full(len(chunks), each),
            ~skipped,
            suffix_of(dataset.name) if single else "",
        )
    if filters == [_DEFLATE]:
        return _as_stored(
            begin,
            length,
            notes,
            "a chunk holds several samples, or one sample and padding, compressed together",
        )
    names = ", ".join(_FILTERS.get(number, f"number {number}") for number in filters) or "none"
    return _as_stored(begin, length, notes, f"iobench does not undo their filters ({names})")


def _count(dataset: Any) -> int:
    return int(dataset.shape[0]) if len(dataset.shape) > 1 else 1


def _one(dataset: Any) -> tuple[int, ...]:
    """The shape of one sample."""
    shape: tuple[int, ...] = dataset.shape[1:] if len(dataset.shape) > 1 else dataset.shape
    return shape


def _element(dataset: Any) -> int:
    return int(dataset.id.get_type().get_size())


def _varies(dataset: Any) -> bool:
    try:
        return bool(dataset.dtype.hasobject)
    except TypeError:
        return False  # a type that numpy does not have: only its bytes matter


def _plain(offset: Int64, each: int, dataset: Any) -> _InDataset:
    size = np.full(len(offset), each, np.int64)
    return _InDataset(
        offset,
        size,
        size,
        np.zeros(len(offset), np.bool_),
        suffix_of(dataset.name) if len(dataset.shape) < 2 else "",
    )


def _as_stored(begin: Int64, length: Int64, notes: Counter[str], why: str) -> _InDataset:
    notes[AS_STORED.format(why=why)] += len(begin)
    return _InDataset(begin, length, length, np.zeros(len(begin), np.bool_), "")


def _check(offset: Int64, stored: Int64, name: str, size: int) -> None:
    if (offset < 0).any() or (stored <= 0).any() or (offset + stored > size).any():
        raise ValueError(f"{name} would end at byte {int((offset + stored).max())} of {size}")


Read = Callable[[int, int], bytes]
"""Reads the bytes of the file from one offset to another."""

_REFERENCE = np.dtype([("count", "<u4"), ("address", "<u8"), ("index", "<u4")])
_OBJECT = struct.Struct("<HH4xQ")
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

    HDF5 File Format Specification 3.0, III.E (global heap) and IV.A.2.d, IV.B (variable-length
    data): a dataset stores references of 16 bytes (number of elements u32, address of a collection
    u64, index in it u32). A collection is a header of 16 bytes and then objects, each a header of
    16 bytes (index u16, references u16, 0 u32, size u64) and data, padded to 8 bytes.
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

"""A model's weights as they lie on a storage: safetensors files, found by their headers alone.

A file is 8 bytes with the header's length, the header in JSON, and the tensors' bytes
(https://huggingface.co/docs/safetensors). Anyone may have written it, so nothing that a header
states is believed: tensors must cover the file without a hole or an overlap, and each must have as
many bytes as its shape and type say.

Several tensor-parallel ranks read a part each. A matrix whose rows are divided (Megatron-LM's
column-parallel one) gives each rank one piece of the file. Of one whose columns are divided
(row-parallel) each rank needs a few KiB of every row, less than a page and its neighbours. So a
rank reads it whole, as loaders over memory maps do, and cuts its columns out in memory. What has no
known name is read by every rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ..base import buffers
from ..base.documents import parse_json, require_place
from ..base.errors import DatasetError, NoRoomError
from ..base.text import quoted
from ..base.units import format_bytes
from ..storage.base import Storage, address_of, exists, innermost, local_root, read_object
from ..storage.files import ReadWindow
from ..storage.markers import Marked
from .models import DTYPES

INDEX = "model.safetensors.index.json"
"""The list of a model's tensors and their shards, where there are several shards."""

SUFFIX = ".safetensors"

_FILES = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?(\.part)?")

WEIGHTS = Marked(".iobench-weights", "weights", lambda key: _FILES.fullmatch(key) is not None)
"""Places of generated weights. Their marker has a MadeBy."""

_MAX_HEADER = 100_000_000
"""Bytes. The format's own reader accepts no longer header."""

_MAX_TENSORS = 1_000_000
"""Of all shards together: ten times those of the largest released model, or 1 GB of memory."""

_MAX_SHARDS = 10_000
_MAX_DIMENSIONS = 64  # torch has no more
_MAX_LENGTH = 1 << 62  # of a dimension, and of anything else in a header
_FIRST_READ = 128 << 10  # bytes; holds the header of most shards

_METADATA = "__metadata__"
_ENTRY = {"dtype", "shape", "data_offsets"}


class StoredTensor(NamedTuple):
    """``offset``: of its first byte in the file ``shard``. ``nbytes`` may be 0."""

    name: str
    shard: str
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


class WeightShard(NamedTuple):
    key: str
    size: int  # bytes of the file, its header included


class MadeBy(NamedTuple):
    """What the marker of generated weights says: the model, how it was scaled, and the seed."""

    model: str
    layers: int
    vocabulary: int
    seed: int
    shard_bytes: int


@dataclass(frozen=True, kw_only=True)
class Weights:
    """All tensors of a model.

    ``tensors``: by shard, then by offset. ``made``: what ``generate_weights`` wrote down; None for
    files of others.
    """

    tensors: tuple[StoredTensor, ...]
    shards: tuple[WeightShard, ...]
    made: MadeBy | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, without headers."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def file_bytes(self) -> int:
        return sum(shard.size for shard in self.shards)


def read_weights(storage: Storage) -> Weights:
    """Walk the headers of all safetensors files at the root of ``storage``.

    With an index those that it names, else every ``*.safetensors`` there. Raises DatasetError in
    one line for files that are none, contradict themselves or one another, StorageError.
    """
    index, keys = _at_root(storage)
    mapped = None if index is None else _parse_index(storage, index, keys)
    window = ReadWindow(storage, _FIRST_READ, nbytes=_FIRST_READ)
    tensors: dict[str, StoredTensor] = {}
    shards = []
    for key in keys if mapped is None else sorted(set(mapped.values())):
        size = window.open(key)
        shards.append(WeightShard(key, size))
        try:
            for tensor in _read_header(window, key, size):
                if other := tensors.get(tensor.name):
                    raise ValueError(f"its tensor '{tensor.name}' is in {other.shard}, too")
                tensors[tensor.name] = tensor
            if len(tensors) > _MAX_TENSORS:
                raise ValueError(f"with it there are more than {_MAX_TENSORS:,} tensors")
        except ValueError as error:
            raise _invalid(storage, key, str(error)) from None
    for name, key in (mapped or {}).items():
        there = tensors.get(name)
        if there is None or there.shard != key:
            raise _invalid(storage, str(index), f"{key} has no tensor '{name}', which it names")
    return Weights(tensors=tuple(tensors.values()), shards=tuple(shards), made=made_by(storage))


def made_by(storage: Storage) -> MadeBy | None:
    """What the marker of generated weights says; None for weights of others. StorageError."""
    if not exists(storage, WEIGHTS.marker):
        return None
    text = WEIGHTS.read(storage)
    try:
        made = MadeBy(**{name: text[name] for name in MadeBy._fields})
    except KeyError:
        return None
    return made if isinstance(made.model, str) and _are_lengths([*made[1:]]) else None


def _at_root(storage: Storage) -> tuple[str | None, list[str]]:
    """The index at the root, if there is one, and the shards there. Raises DatasetError."""
    names = [entry.key for entry in storage.list() if "/" not in entry.key]
    keys = sorted(name for name in names if name.endswith(SUFFIX))
    indices = [name for name in names if name.endswith(f"{SUFFIX}.index.json")]
    if not keys:
        there = quoted(address_of(storage))
        make = f", or make one: iobench generate llama3-8b-weights --to {there}"
        remedy = f"name the folder that holds the weights{'' if names else make}"
        root = local_root(innermost(storage))
        if root is not None:
            require_place(root, remedy)
        raise DatasetError(f"{storage.url} has no *{SUFFIX} file", remedy=remedy)
    if len(keys) > _MAX_SHARDS:
        raise DatasetError(
            f"{storage.url} has {len(keys):,} files *{SUFFIX}, more than the {_MAX_SHARDS:,} that "
            "iobench reads",
            remedy="name the folder of one model",
        )
    if len(indices) > 1 and INDEX not in indices:
        raise DatasetError(
            f"{storage.url} has several indices: {', '.join(sorted(indices)[:3])}",
            remedy="leave one of them there",
        )
    return (INDEX if INDEX in indices else next(iter(indices), None)), keys


def _parse_index(storage: Storage, index: str, keys: list[str]) -> Mapping[str, str]:
    """Name of each tensor -> its shard, one of ``keys``. Raises DatasetError, StorageError."""
    text = read_object(storage, index, max_bytes=_MAX_HEADER)
    try:
        document = parse_json(text)
        mapped = document.get("weight_map") if isinstance(document, dict) else None
        if not isinstance(mapped, dict) or not mapped:
            raise ValueError("it has no 'weight_map'")
        known = set(keys)
        for name, key in mapped.items():
            if not isinstance(key, str) or "/" in key or not key.endswith(SUFFIX):
                raise ValueError(
                    f"it says that '{name[:200]}' is in {str(key)[:200]!r}, which is no *{SUFFIX} "
                    "file beside it"
                )
            if key not in known:
                raise ValueError(f"it names the shard {key}, which is not there")
    except ValueError as error:
        raise _invalid(storage, index, str(error)) from None
    return mapped


def _read_header(window: ReadWindow, key: str, size: int) -> list[StoredTensor]:
    """The tensors of one file by their offsets. Raises ValueError, StorageError."""
    if size < 8:
        raise ValueError(f"it has only {size} bytes")
    length = int.from_bytes(window.read(0, 8), "little")
    if length > min(size - 8, _MAX_HEADER):
        raise ValueError(
            f"its header has {length} bytes in a file of {size}; the limit is {_MAX_HEADER}"
        )
    text = window.bytes(8, 8 + length)
    if (count := text.count(b'"data_offsets"')) > _MAX_TENSORS:  # parsed, it would take gigabytes
        raise ValueError(f"it has {count:,} tensors; the limit is {_MAX_TENSORS:,}")
    try:
        entries = parse_json(text)
    except ValueError as error:
        raise ValueError(f"its header is damaged: {error}") from None
    if not isinstance(entries, dict):
        raise ValueError("its header is not a JSON object")
    entries.pop(_METADATA, None)
    found = sorted(
        (_tensor(name, entry, key, 8 + length) for name, entry in entries.items()),
        key=lambda tensor: (tensor.offset, tensor.nbytes),
    )
    end = 8 + length
    for tensor in found:
        if tensor.offset != end:
            wrong = "overlap the tensor before" if tensor.offset < end else "begin behind a hole"
            raise ValueError(f"the bytes of '{tensor.name}' {wrong}")
        end += tensor.nbytes
    if end != size:
        raise ValueError(f"its tensors end at byte {end}, the file has {size}")
    return found


def _tensor(name: str, entry: Any, key: str, data: int) -> StoredTensor:
    """One entry of a header, whose offsets count from byte ``data``. Raises ValueError."""
    if not isinstance(entry, dict) or set(entry) != _ENTRY:
        raise ValueError(f"the entry of '{name[:200]}' has other keys than {sorted(_ENTRY)}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"'{name[:200]}' has the type {str(dtype)[:50]!r}, which is not supported")
    if not _are_lengths(shape) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"the shape of '{name[:200]}' is none: {str(shape)[:100]}")
    if not _are_lengths(offsets) or len(offsets) != 2:
        raise ValueError(f"'{name[:200]}' has the offsets {str(offsets)[:100]}")
    nbytes = offsets[1] - offsets[0]
    if math.prod(shape) * DTYPES[dtype][0] != nbytes:
        raise ValueError(f"'{name[:200]}' is {dtype} {str(shape)[:100]}, but has {nbytes} bytes")
    return StoredTensor(name, key, data + offsets[0], nbytes, dtype, tuple(shape))


def _are_lengths(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(each) is int and 0 <= each <= _MAX_LENGTH for each in value
    )


def _invalid(storage: Storage, key: str, why: str) -> DatasetError:
    return DatasetError(
        f"{storage.url}/{key} can't be used: {why}", remedy="get the file from its source again"
    )


def tensors_by_shard(weights: Weights) -> Iterator[tuple[WeightShard, list[StoredTensor]]]:
    """Each shard and its tensors, in the order of ``weights``."""
    found: dict[str, list[StoredTensor]] = {shard.key: [] for shard in weights.shards}
    for tensor in weights.tensors:
        found[tensor.shard].append(tensor)
    for shard in weights.shards:
        yield shard, found[shard.key]


def require_memory(nbytes: int, what: str) -> None:
    """Raise NoRoomError if this host has not so much memory."""
    if nbytes > (free := buffers.available()):
        raise NoRoomError(
            f"{what}: {format_bytes(nbytes)} of memory are needed, {format_bytes(free)} are free",
            remedy="load a model of fewer layers, or share it sliced over more ranks",
        )


Sharing = Literal["all", "sliced", "exchange"]
"""``all``: each rank reads everything. ``sliced``: each its slices. ``exchange``: each reads its
part of the bytes, and the ranks of the host give one another the rest through shared memory."""

_ROWS = {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "w1", "w3", "q_b_proj", "kv_b_proj"}
_ROWS |= {"qkv_proj", "gate_up_proj", "embed_tokens", "lm_head", "head"}
_COLUMNS = {"o_proj", "down_proj", "w2"}
_VALUES = {"weight", "bias", "weight_scale_inv", "weight_scale"}


class RankShare(NamedTuple):
    how: Sharing = "all"
    rank: int = 0
    ranks: int = 1


ALONE = RankShare()


class TensorSlice(NamedTuple):
    """The part of a tensor that a rank has: of dimension ``axis`` the indices [start, stop)."""

    axis: int
    start: int
    stop: int


class FileRange(NamedTuple):
    """Bytes [start, end) of a shard."""

    shard: str
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


def slice_of(tensor: StoredTensor, share: RankShare) -> TensorSlice | None:
    """The part of a tensor that the rank has; None: the whole tensor."""
    if share.how != "sliced" or share.ranks == 1:
        return None
    layer, _, value = tensor.name.rpartition(".")
    layer = layer.rpartition(".")[2]
    axis = 0 if layer in _ROWS else 1 if layer in _COLUMNS else None
    if value not in _VALUES or axis is None or axis >= len(tensor.shape) or len(tensor.shape) > 2:
        return None
    count = tensor.shape[axis]
    if count < share.ranks:
        return None
    return TensorSlice(
        axis, count * share.rank // share.ranks, count * (share.rank + 1) // share.ranks
    )


def bytes_of(tensor: StoredTensor, part: TensorSlice | None) -> FileRange:
    """The bytes of the file that hold a part of a tensor."""
    if part is None or part.axis:
        return FileRange(tensor.shard, tensor.offset, tensor.offset + tensor.nbytes)
    row = tensor.nbytes // tensor.shape[0]
    return FileRange(
        tensor.shard, tensor.offset + part.start * row, tensor.offset + part.stop * row
    )


def ranges_to_read(weights: Weights, share: RankShare, *, alignment: int = 1) -> list[FileRange]:
    """The bytes that the rank reads, by shard and offset, rounded to ``alignment``.

    A range that reaches the end of its file ends there.
    """
    ranges = list(_merged(weights, share, alignment))
    if share.how != "exchange":
        return ranges
    total, place, own = sum(each.nbytes for each in ranges), 0, []
    low, high = (total * (share.rank + n) // share.ranks for n in (0, 1))
    for shard, start, end in ranges:
        # Cuts are rounded down within a range, whose start is rounded already, so that no two
        # ranks read one page.
        begin, stop = (
            start + (min(max(0, cut - place), end - start) // alignment * alignment)
            if cut < place + end - start
            else end
            for cut in (low, high)
        )
        if begin < stop:
            own.append(FileRange(shard, begin, stop))
        place += end - start
    return own


def _merged(weights: Weights, share: RankShare, alignment: int) -> Iterator[FileRange]:
    """What a rank needs, rounded; ranges that touch or overlap after that are one."""
    for shard, tensors in tensors_by_shard(weights):
        last: FileRange | None = None
        for tensor in tensors:
            _, start, end = bytes_of(tensor, slice_of(tensor, share))
            if start == end:
                continue
            start -= start % alignment
            end = min(end + -end % alignment, shard.size)
            if last is not None and start <= last.end:
                last = FileRange(shard.key, last.start, max(last.end, end))
                continue
            if last is not None:
                yield last
            last = FileRange(shard.key, start, end)
        if last is not None:
            yield last

"""Write the weights of a catalog's model: real shards and an index, with bytes from a seed.

The bytes of a tensor follow from the seed and from the tensor's place among all names, so that they
can be made again to check what was loaded. Each 4 KiB are unique, and nothing compresses them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..base.buffers import private
from ..base.errors import StorageError, TargetRefusedError, UsageError
from ..base.payload import fill
from ..base.safety import Removal, remove_exactly
from ..base.units import format_bytes
from ..storage.base import Buffer, Guarded, Storage
from ..storage.catalog import innermost, local_root
from ..storage.window import ReadWindow
from .models import DTYPES, SERVED_MODELS, ModelTensor, ServedModel, shards_of
from .weights import INDEX, SUFFIX, MadeBy, Weights, header_bytes, made_by, read_weights

_PIECE = 4 << 20
"""Bytes that are made at once: as many as the pool of random bytes has."""

_MAX_SEED = 1 << 31


def generate_weights(
    model: ServedModel,
    storage: Storage,
    *,
    layers: int | None = None,
    vocabulary: int | None = None,
    seed: int = 0,
    shard_bytes: int | None = None,
    progress: Callable[[int], None] = lambda written: None,
) -> Weights:
    """Write the model into an empty place, or finish what an interrupted call has begun there.

    ``progress`` is called with the bytes written since its last call. Memory: some 30 MiB. Raises
    UsageError, TargetRefusedError for a place that holds anything else, StorageError.
    """
    if not 0 <= seed < _MAX_SEED:
        raise UsageError(f"the seed {seed} is out of range", remedy=f"use 0 to {_MAX_SEED - 1}")
    tensors = model.tensors(layers=layers, vocabulary=vocabulary)
    made = MadeBy(model.name, layers or model.layers, vocabulary or model.vocabulary, seed)
    if isinstance(storage, Guarded):
        storage.check_target()
    files = _files(tensors, shard_bytes or model.shard_bytes)
    headers = _headers(files, made)
    sizes = {
        key: len(headers[key]) + sum(tensor.nbytes for tensor in shard)
        for key, shard in files.items()
    }
    index = _index(files) if len(files) > 1 else b""
    there = _finished(storage, headers, sizes, index)
    _require_space(storage, sum(size for key, size in sizes.items() if key not in there))
    first = first_pieces((tensor.name, tensor.nbytes) for tensor in tensors)
    buffer = private(_PIECE).array.data

    def take(start: int, end: int) -> Buffer:
        return buffer[: end - start]

    for key, shard in files.items():
        if key in there:
            progress(sizes[key])
            continue
        with storage.create(key, size_hint=sizes[key]) as sink:
            sink.write(headers[key])
            progress(len(headers[key]))
            for tensor in shard:
                for piece in tensor_bytes(seed, first[tensor.name], tensor.nbytes, take):
                    sink.write(piece)
                    progress(len(piece))
    if index and INDEX not in there:
        with storage.create(INDEX, size_hint=len(index)) as sink:
            sink.write(index)
    return read_weights(storage)


def clean_weights(storage: Storage, *, dry_run: bool = False) -> Removal | None:
    """Remove the files that begin as ``generate_weights`` writes them; None if there are none.

    Everything else stays, and so does the folder. Raises StorageError.
    """
    made = made_by(storage)
    if made is None or made.model not in SERVED_MODELS:
        return None
    model = SERVED_MODELS[made.model]
    tensors = model.tensors(layers=made.layers, vocabulary=made.vocabulary)
    files = _files(tensors, model.shard_bytes)
    begins = _headers(files, made) | {INDEX: _index(files)}
    entries = list(storage.list())
    parts = {f"{key}.part" for key in begins}
    mine = {
        entry.key: entry.size
        for entry in entries
        if entry.key in parts
        or (entry.key in begins and _has(storage, entry.key, begins[entry.key]))
    }
    if not mine:
        return None
    root = local_root(innermost(storage))
    if root is not None:
        return remove_exactly(
            root, mine.__contains__, last=(), folders=lambda _: False, dry_run=dry_run
        )
    for key in () if dry_run else mine:
        storage.delete(key)
    foreign = sorted(entry.key for entry in entries if entry.key not in mine)
    return Removal(len(mine), sum(mine.values()), foreign, root_removed=False)


def first_pieces(tensors: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The number of the first piece of each tensor, given names and bytes of all of them."""
    numbers, number = {}, 0
    for name, nbytes in sorted(tensors):
        numbers[name] = number
        number += -(-nbytes // _PIECE)
    return numbers


def tensor_bytes(
    seed: int, first: int, nbytes: int, memory: Callable[[int, int], Buffer]
) -> Iterator[Buffer]:
    """The bytes of a tensor in pieces, the first of which is number ``first``.

    ``memory`` returns where to make those between two offsets, at most 4 MiB.
    """
    for number, start in enumerate(range(0, nbytes, _PIECE), first):
        piece = memory(start, min(start + _PIECE, nbytes))
        fill(piece, seed=seed, index=number)
        yield piece


def _files(tensors: Sequence[ModelTensor], shard_bytes: int) -> dict[str, list[ModelTensor]]:
    """The tensors of each file in the order in which the format's own writer puts them."""
    shards = shards_of(tensors, shard_bytes)
    names = (
        [f"model{SUFFIX}"]
        if len(shards) == 1
        else [f"model-{n:05d}-of-{len(shards):05d}{SUFFIX}" for n in range(1, len(shards) + 1)]
    )
    return {
        name: sorted(shard, key=lambda tensor: (-DTYPES[tensor.dtype][0], tensor.name))
        for name, shard in zip(names, shards, strict=True)
    }


def _headers(files: dict[str, list[ModelTensor]], made: MadeBy) -> dict[str, bytes]:
    """The beginning of each file."""
    return {
        key: header_bytes([(*tensor, tensor.nbytes) for tensor in shard], made)
        for key, shard in files.items()
    }


def _index(files: dict[str, list[ModelTensor]]) -> bytes:
    total = sum(tensor.nbytes for shard in files.values() for tensor in shard)
    weight_map = {tensor.name: key for key, shard in files.items() for tensor in shard}
    document = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"


def _finished(
    storage: Storage, headers: dict[str, bytes], sizes: dict[str, int], index: bytes
) -> set[str]:
    """The files of this model that are there. Raises TargetRefusedError for any other file."""
    begins = {**headers, INDEX: index} if index else headers
    there = set()
    for key, size in storage.list():
        if key in begins and size == sizes.get(key, len(index)) and _has(storage, key, begins[key]):
            there.add(key)
        elif not (key.endswith(".part") and key.removesuffix(".part") in begins):
            raise TargetRefusedError(
                f"{storage.url} holds '{key}', which is no part of these weights",
                remedy="name a new or empty place, or remove what is there",
            )
    return there


def _has(storage: Storage, key: str, begin: bytes) -> bool:
    window = ReadWindow(storage, len(begin), nbytes=len(begin))
    window.open(key)
    return window.bytes(0, len(begin)) == begin


def _require_space(storage: Storage, need: int) -> None:
    """Raise StorageError if a local place has less free space. Passes where that is unknown."""
    root = local_root(innermost(storage))
    if root is None:
        return
    existing = next(path for path in (root, *root.parents) if path.is_dir())
    free = os.statvfs(existing)
    if need > (have := free.f_bavail * free.f_frsize):
        raise StorageError(
            f"{existing} has {format_bytes(have)} free, the weights need {format_bytes(need)}",
            remedy="free some space, or choose another target, or fewer --layers",
        )

"""Write the weights of a catalog's model: real shards and an index, with bytes from a seed.

The bytes of a tensor follow from the seed and from the tensor's place among all names, so that they
can be made again to check what was loaded. Each 4 KiB are unique, and nothing compresses them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..base.buffers import private
from ..base.documents import safetensors_header
from ..base.errors import TargetRefusedError, UsageError
from ..base.filesystem import require_room
from ..base.payload import fill
from ..base.text import quoted
from ..storage.base import Buffer, Guarded, Storage, address_of, innermost, local_root
from ..storage.files import ReadWindow
from ..storage.locks.held import Held
from .models import DTYPES, ModelTensor, ServedModel, shards_of
from .weights import INDEX, SUFFIX, WEIGHTS, MadeBy, Weights, made_by, read_weights

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
    break_lock: bool = False,
    progress: Callable[[int], None] = lambda written: None,
) -> Weights:
    """Write the model into an empty place, or finish what an interrupted call has begun there.

    ``break_lock``: take over a lock whose holder is on another host and shows no sign of life.
    ``progress`` is called with the bytes written since its last call. Memory: some 30 MiB. Raises
    UsageError, TargetRefusedError for a place that holds anything else or that another process
    holds, StorageError.
    """
    if not 0 <= seed < _MAX_SEED:
        raise UsageError(f"the seed {seed} is out of range", remedy=f"use 0 to {_MAX_SEED - 1}")
    tensors = model.tensors(layers=layers, vocabulary=vocabulary)
    made = MadeBy(
        model.name,
        layers or model.layers,
        vocabulary or model.vocabulary,
        seed,
        shard_bytes or model.shard_bytes,
    )
    files = _files(tensors, made.shard_bytes)
    begins = {
        key: safetensors_header([(*tensor, tensor.nbytes) for tensor in shard], {"format": "pt"})
        for key, shard in files.items()
    }
    if len(files) > 1:
        begins[INDEX] = _index(files)
    sizes = {
        key: len(begin) + sum(tensor.nbytes for tensor in files.get(key, ()))
        for key, begin in begins.items()
    }
    if isinstance(storage, Guarded):
        storage.check_target()
    there = _finished(storage, begins, sizes)
    _require_space(storage, sum(size for key, size in sizes.items() if key not in there))
    first = first_pieces((tensor.name, tensor.nbytes) for tensor in tensors)
    buffer = private(_PIECE).array.data

    def take(start: int, end: int) -> Buffer:
        return buffer[: end - start]

    facts = made._asdict()
    with WEIGHTS.held(storage, "generate", facts=facts, break_lock=break_lock) as lease:
        _require_same(storage, made)
        held, there = Held(lease), _finished(storage, begins, sizes)
        for key, begin in begins.items():
            if key in there:
                progress(sizes[key])
                continue
            held()
            with storage.create(key, size_hint=sizes[key]) as sink:
                sink.write(begin)
                progress(len(begin))
                for tensor in files.get(key, ()):
                    for piece in tensor_bytes(seed, first[tensor.name], tensor.nbytes, take):
                        sink.write(piece)
                        progress(len(piece))
        lease.confirm()
        return read_weights(storage)


def _require_same(storage: Storage, made: MadeBy) -> None:
    """Raise TargetRefusedError if the place was claimed for other weights."""
    if (there := made_by(storage)) != made:
        what = "what nobody can tell" if there is None else str(there._asdict())
        raise TargetRefusedError(
            f"{storage.url} is a place of other weights: {what}",
            remedy="name a new or empty place, or remove them: "
            f"iobench clean {quoted(address_of(storage))}",
        )


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


def _index(files: dict[str, list[ModelTensor]]) -> bytes:
    total = sum(tensor.nbytes for shard in files.values() for tensor in shard)
    weight_map = {tensor.name: key for key, shard in files.items() for tensor in shard}
    document = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"


def _finished(storage: Storage, begins: dict[str, bytes], sizes: dict[str, int]) -> set[str]:
    """The files of these weights that are there as a whole."""
    return {
        key
        for key, size in storage.list()
        if size == sizes.get(key) and _has(storage, key, begins[key])
    }


def _has(storage: Storage, key: str, begin: bytes) -> bool:
    window = ReadWindow(storage, len(begin), nbytes=len(begin))
    window.open(key)
    return window.bytes(0, len(begin)) == begin


def _require_space(storage: Storage, need: int) -> None:
    """Raise NoRoomError if a local place has less free space. Passes where that is unknown."""
    root = local_root(innermost(storage))
    if root is not None:
        remedy = "free some space, or choose another target, or fewer --layers"
        require_room(root, need, "the weights need", remedy)

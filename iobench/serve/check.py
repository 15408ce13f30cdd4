"""Whether loaded tensors hold the bytes that they should: checksums, taken off the clock."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import xxhash

from ..base.buffers import Memory, private
from ..base.errors import CorruptSampleError
from ..load.engines.base import Extent
from ..load.engines.threads import ThreadEngine
from ..storage.base import Storage
from .generate import first_pieces, tensor_bytes
from .loaders.base import Loaded
from .weights import RankShare, StoredTensor, Weights, require_memory, slice_of

Checksums = Mapping[str, str]
"""By name of the tensor: XXH3-128 of the bytes that a rank has of it, as 32 hex digits."""

_CONCURRENCY, _BLOCK = 8, 1 << 20


def expected_checksums(storage: Storage, weights: Weights, share: RankShare) -> Checksums:
    """What each tensor of the rank must hold.

    Generated weights are generated again, others are read once, past the page cache where the
    storage can (open it with ``direct``). Memory: the largest tensor. Raises NoRoomError and
    StorageError.
    """
    room = max((tensor.nbytes for tensor in weights.tensors), default=0) + 2 * storage.alignment
    require_memory(room, "the check of the largest tensor")
    memory = private(room, prefault=False).array
    first = first_pieces((tensor.name, tensor.nbytes) for tensor in weights.tensors)
    engine = ThreadEngine(storage, concurrency=_CONCURRENCY, block_size=_BLOCK)
    found = {}
    try:
        for tensor in weights.tensors:
            if weights.made is None:
                data = _read(engine, tensor, memory)
            else:
                data = _made(weights.made.seed, first[tensor.name], tensor.nbytes, memory)
            found[tensor.name] = xxhash.xxh3_128_hexdigest(_part(data, tensor, share).data)
    finally:
        engine.close()
    return found


def _read(engine: ThreadEngine, tensor: StoredTensor, memory: Memory) -> Memory:
    skip = tensor.offset % engine.storage.alignment
    length = skip + tensor.nbytes
    padded = length + -length % engine.storage.alignment
    engine.read([Extent(tensor.shard, tensor.offset - skip, padded, 0, length)], memory.data)
    return memory[skip:length]


def _made(seed: int, first: int, nbytes: int, memory: Memory) -> Memory:
    for _ in tensor_bytes(seed, first, nbytes, lambda start, end: memory[start:end].data):
        pass
    return memory[:nbytes]


def _part(data: Memory, tensor: StoredTensor, share: RankShare) -> Memory:
    part = slice_of(tensor, share)
    if part is None:
        return data
    rows = data.reshape(tensor.shape[0], -1)
    if part.axis == 0:
        return rows[part.start : part.stop].reshape(-1)
    width = rows.shape[1] // tensor.shape[1]
    return np.ascontiguousarray(rows[:, part.start * width : part.stop * width]).reshape(-1)


def check_loaded(loaded: Loaded, expected: Checksums, where: str) -> None:
    """Raise CorruptSampleError naming the first tensor that is missing or differs."""
    for name, checksum in expected.items():
        tensor = loaded.tensors.get(name)
        if tensor is None:
            raise CorruptSampleError(f"{where}: the tensor '{name}' was not loaded")
        data = tensor.detach().cpu().contiguous().reshape(-1)
        held = data.view(torch.uint8).numpy().data if data.nbytes else b""
        if xxhash.xxh3_128_hexdigest(held) != checksum:
            raise CorruptSampleError(
                f"{where}: the tensor '{name}' has other bytes than the files",
                remedy="a loader that delivers such tensors, or storage that does, can't be used",
            )
    if more := loaded.tensors.keys() - expected.keys():
        raise CorruptSampleError(f"{where}: a tensor '{min(more)}' was loaded that is not there")

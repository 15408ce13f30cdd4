"""A model's weights as they lie on a storage: safetensors files, found by their headers alone.

A file is 8 bytes with the header's length, the header in JSON, and the tensors' bytes
(https://huggingface.co/docs/safetensors). Anyone may have written it, so nothing that a header
states is believed: tensors must cover the file without a hole or an overlap, and each must have as
many bytes as its shape and type say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..storage.base import Storage

INDEX = "model.safetensors.index.json"
"""The list of a model's tensors and their shards, where there are several shards."""

SUFFIX = ".safetensors"

DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}
"""The format's types that torch has, too, and their bytes."""


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


@dataclass(frozen=True, kw_only=True)
class Weights:
    """All tensors of a model.

    ``tensors``: by shard, then by offset. ``made``: what ``generate_weights`` wrote down of the
    files; None for files of others.
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


class MadeBy(NamedTuple):
    """What a generated file says of itself: the model, how it was scaled, and the seed."""

    model: str
    layers: int
    vocabulary: int
    seed: int


def read_weights(storage: Storage) -> Weights:
    """Walk the headers of all safetensors files at the root of ``storage``.

    With an index those that it names, else every ``*.safetensors`` there. Raises DatasetError in
    one line for files that are none, contradict themselves or one another, StorageError.
    """
    raise NotImplementedError

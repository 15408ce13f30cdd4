"""Write the weights of a catalog's model: real shards and an index, with bytes from a seed."""

from __future__ import annotations

from collections.abc import Callable

from ..storage.base import Storage
from .models import SHARD_BYTES, ServedModel
from .weights import Weights


def generate_weights(
    model: ServedModel,
    storage: Storage,
    *,
    layers: int | None = None,
    vocabulary: int | None = None,
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[int], None] = lambda written: None,
) -> Weights:
    """Write the model into an empty place, or finish what an interrupted call has begun there.

    ``progress`` is called with the bytes written since its last call. Memory: some 20 MiB. Raises
    UsageError, TargetRefusedError for a place that holds anything else, StorageError.
    """
    raise NotImplementedError

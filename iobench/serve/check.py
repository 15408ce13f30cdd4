"""Whether loaded tensors hold the bytes that they should: checksums, taken off the clock."""

from __future__ import annotations

from collections.abc import Mapping

from ..storage.base import Storage
from .loaders.base import Loaded
from .share import RankShare
from .weights import Weights

Checksums = Mapping[str, str]
"""By name of the tensor: XXH3-128 of the bytes that a rank has of it, as 32 hex digits."""


def expected_checksums(storage: Storage, weights: Weights, share: RankShare) -> Checksums:
    """What each tensor of the rank must hold.

    Generated weights are generated again, others are read once, past the page cache where the
    storage can (open it with ``direct``). Memory: the largest tensor. Raises StorageError.
    """
    raise NotImplementedError


def check_loaded(loaded: Loaded, expected: Checksums, where: str) -> None:
    """Raise CorruptSampleError naming the first tensor that is missing or differs."""
    raise NotImplementedError

"""How large a batch of a user's loader is, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import xxhash

Array = torch.Tensor | npt.NDArray[np.generic]
Leaf = Array | bytes | bytearray | memoryview

_ARRAY = (torch.Tensor, np.ndarray)
_LEAF = (*_ARRAY, bytes, bytearray, memoryview)  # isinstance() takes a tuple faster than a union

MAX_DEPTH = 32
"""Levels of a batch that are looked at; a batch that holds itself has no end."""

_MAX_ROWS = 4096
"""Samples of a batch that are hashed."""


class Size(NamedTuple):
    """``nbytes``: of all tensors, arrays and byte strings. ``samples``: the leading dimension.

    ``leading``: the leading dimension of each tensor and array in turn.
    """

    nbytes: int
    samples: int
    leading: tuple[int, ...]

    @property
    def ragged(self) -> bool:
        """Whether the tensors and arrays of the batch have different leading dimensions."""
        return len(set(self.leading)) > 1


def leaves(value: object, depth: int = 0) -> Iterator[Leaf]:
    """The tensors, arrays and byte strings of a batch, in order; anything else is left out."""
    if isinstance(value, _LEAF):
        yield value
    elif depth < MAX_DEPTH and isinstance(value, (list, tuple)):
        for each in value:
            yield from leaves(each, depth + 1)
    elif depth < MAX_DEPTH and isinstance(value, Mapping):
        for each in value.values():
            yield from leaves(each, depth + 1)


def measure(value: object) -> Size:
    """The size of a batch.

    A list or tuple of byte strings has one sample in each, a byte string alone is one sample, and
    so is a tensor without dimensions.
    """
    nbytes = plain = 0
    leading: list[int] = []
    for leaf in leaves(value):
        if isinstance(leaf, _ARRAY):
            nbytes += int(leaf.nbytes)
            if leaf.ndim:
                leading.append(int(leaf.shape[0]))
            else:
                plain += 1
        else:
            nbytes += len(leaf) if not isinstance(leaf, memoryview) else leaf.nbytes
            plain += 1
    return Size(nbytes, leading[0] if leading else plain, tuple(leading))


def first_array(value: object) -> Array | None:
    """The first tensor or array of a batch that has a leading dimension; None if it has none."""
    for leaf in leaves(value):
        if isinstance(leaf, _ARRAY) and leaf.ndim:
            return leaf
    return None


def as_bytes(array: Array) -> torch.Tensor | None:
    """The bytes of an array, uint8 [bytes], without a copy; None if its memory has gaps."""
    tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array.detach()
    if not tensor.is_contiguous():
        return None
    return tensor.reshape(-1).view(torch.uint8)


def hashes(value: object, *, max_bytes: int | None = None) -> list[int]:
    """A hash (xxh3, 64 bits) of each sample of a batch: of its arrays, or its byte strings.

    A sample is a row of all arrays that are as long as the first: an array of labels alone says
    little. ``max_bytes``: hash no more, so that a training waits for milliseconds at most.
    """
    array = first_array(value)
    if array is None:
        return [
            xxhash.xxh3_64_intdigest(leaf) for leaf in leaves(value) if not isinstance(leaf, _ARRAY)
        ][:_MAX_ROWS]
    alike = [
        leaf
        for leaf in leaves(value)
        if isinstance(leaf, _ARRAY) and leaf.ndim and len(leaf) == len(array)
    ]
    count = min(len(array), _MAX_ROWS)
    if max_bytes is not None and count:
        if any(isinstance(one, torch.Tensor) and one.device.type != "cpu" for one in alike):
            return []  # to copy it would make the device wait
        each = sum(int(one.nbytes) for one in alike) // len(array)
        count = min(count, max(1, max_bytes // max(1, each)))
    columns = [
        one[:count].numpy(force=True) if isinstance(one, torch.Tensor) else one[:count]
        for one in alike
    ]
    columns = [column for column in columns if not column.dtype.hasobject]
    if not columns:
        return []
    found = []
    for number in range(count):
        state = xxhash.xxh3_64()
        for column in columns:
            state.update(np.ascontiguousarray(column[number]).tobytes())
        found.append(state.intdigest())
    return found

"""A batch, whatever it is made of: how large it is, and whether its samples came before.

torch gives each worker a copy of an iterable dataset. One that does not ask ``get_worker_info``
which share is its own delivers all samples, once by each worker. The samples of the first batches
are compared; those of a map-style dataset are not, since its sampler alone says what is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch.utils.data import DataLoader

from ..accelerate.base import Samples
from ..load.torch_compat import is_map_style

Array = torch.Tensor | npt.NDArray[np.generic]
Plain = bytes | bytearray | memoryview | str
Leaf = Array | Plain

_ARRAY = (torch.Tensor, np.ndarray)
_LEAF = (*_ARRAY, bytes, bytearray, memoryview, str)  # isinstance() of a tuple is faster

MAX_DEPTH = 32
"""Levels of a batch that are looked at; a batch that holds itself has no end."""

_MAX_ROWS = 4096
"""Samples of a batch that are hashed."""

MAX_BATCHES = 10
"""Batches of an iteration that are compared, or as many as there are workers."""

_MAX_HASHED = 64 << 20
"""Bytes of a batch that are compared: a training waits for that."""

_MIN_DISTINCT = 0.5
"""Share of a worker's samples that must differ from one another for a comparison to say a thing."""


class Size(NamedTuple):
    """``nbytes``: of all tensors, arrays, bytes and texts. ``samples``: the leading dimension.

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
    """The tensors, arrays, byte strings and texts of a batch, in order; the rest is left out."""
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

    Without an array that has a leading dimension, its samples are those of its first list: of byte
    strings, texts, tensors without dimensions, or dicts. Texts count as UTF-8. A batch of iobench's
    own loader knows its samples.
    """
    if isinstance(value, Samples):
        return Size(int(value.lengths.sum()), len(value), ())
    nbytes = 0
    leading: list[int] = []
    for leaf in leaves(value):
        if isinstance(leaf, _ARRAY):
            nbytes += _nbytes(leaf)
            if leaf.ndim:
                leading.append(rows_of(leaf))
        else:
            nbytes += leaf.nbytes if isinstance(leaf, memoryview) else len(_raw(leaf))
    return Size(nbytes, leading[0] if leading else _listed(value), tuple(leading))


def _nbytes(array: Array) -> int:
    """Bytes of an array. A sparse tensor counts as if it were dense, whatever its layout."""
    if isinstance(array, np.ndarray):
        return int(array.nbytes)
    return array.numel() * array.element_size()


def rows_of(array: Array) -> int:
    """The leading dimension of an array that has one; ``len`` fails for a nested tensor."""
    return array.size(0) if isinstance(array, torch.Tensor) else len(array)


def _raw(leaf: Plain) -> bytes | bytearray | memoryview:
    return leaf.encode("utf-8", "surrogatepass") if isinstance(leaf, str) else leaf


def _listed(value: object, depth: int = 0) -> int:
    """The entries of the first list in a batch without arrays; 1 for what is one leaf itself."""
    if isinstance(value, _LEAF):
        return 1
    if isinstance(value, Mapping):
        value = list(value.values())
    elif isinstance(value, (list, tuple)) and any(
        isinstance(each, (*_LEAF, Mapping)) for each in value
    ):
        return sum(1 for each in value if next(leaves(each), None) is not None)
    if depth >= MAX_DEPTH or not isinstance(value, (list, tuple)):
        return 0
    return next((found for each in value if (found := _listed(each, depth + 1))), 0)


def first_array(value: object) -> Array | None:
    """The first tensor or array of a batch that has a leading dimension; None if it has none."""
    for leaf in leaves(value):
        if isinstance(leaf, _ARRAY) and leaf.ndim:
            return leaf
    return None


def as_bytes(array: Array) -> torch.Tensor | None:
    """The bytes of an array, uint8 [bytes], without a copy.

    None if it has none in one piece: it is empty, its memory has gaps or another order, it holds
    objects, or is sparse or nested.
    """
    if isinstance(array, np.ndarray):
        if not array.size or array.dtype.hasobject or not array.flags.c_contiguous:
            return None
        return torch.from_numpy(np.asarray(array).reshape(-1).view(np.uint8))
    try:
        if not array.numel() or not array.is_contiguous():
            return None
        return array.detach().reshape(-1).view(torch.uint8)
    except RuntimeError:  # torch raises it for each kind of tensors that is not plain memory
        return None


def hashes(value: object, *, max_bytes: int | None = None) -> list[int]:
    """A hash (xxh3, 64 bits) of each sample of a batch: of its arrays, or its texts and bytes.

    A sample is a row of all arrays that are as long as the first: an array of labels alone says
    little. ``max_bytes``: hash no more, so that a training waits for milliseconds at most.
    """
    array = first_array(value)
    if array is None:
        return [
            xxhash.xxh3_64_intdigest(_raw(leaf))
            for leaf in leaves(value)
            if not isinstance(leaf, _ARRAY)
        ][:_MAX_ROWS]
    length = rows_of(array)
    alike = [
        leaf
        for leaf in leaves(value)
        if isinstance(leaf, _ARRAY) and leaf.ndim and rows_of(leaf) == length
    ]
    count = min(length, _MAX_ROWS)
    if max_bytes is not None and count:
        if any(isinstance(one, torch.Tensor) and one.device.type != "cpu" for one in alike):
            return []  # to copy it would make the device wait
        each = sum(map(_nbytes, alike)) // length
        count = min(count, max(1, max_bytes // max(1, each)))
    columns = [rows for one in alike if (rows := _rows(one, count)) is not None]
    if not columns:
        return []
    found = []
    for number in range(count):
        state = xxhash.xxh3_64()
        for column in columns:
            state.update(column[number])
        found.append(state.intdigest())
    return found


def _rows(array: Array, count: int) -> npt.NDArray[np.uint8] | None:
    """The bytes of the first rows of an array, uint8 [rows, bytes]; None as ``as_bytes``."""
    if isinstance(array, np.ndarray):
        whole = as_bytes(np.ascontiguousarray(array[:count]))
    else:
        try:
            whole = as_bytes(array[:count].cpu().contiguous())
        except RuntimeError:
            return None
    return None if whole is None else whole.numpy().reshape(count, -1)


def why_not_compared(made: Iterable[Any], inner: DataLoader[Any] | None, workers: int) -> str:
    """Why the samples of workers are not compared; empty if they are."""
    if inner is None or workers < 2:
        return "the loader has fewer than two worker processes"
    if is_map_style(inner):
        return "a sampler hands the samples of a map-style dataset out to the workers"
    if inner is not made:
        return "the loader has a DataLoader inside, and may regroup its batches"
    return ""


class Repeats:
    """Compares what the workers of a DataLoader deliver in the first batches of an iteration."""

    def __init__(self, made: Iterable[Any], inner: DataLoader[Any] | None, workers: int) -> None:
        self.why_not = why_not_compared(made, inner, workers)
        self.workers = workers
        self.in_order = inner is not None and inner.in_order
        self.most = max(MAX_BATCHES, workers)
        self._found: list[list[int]] = []

    def begin(self) -> None:
        """An iteration begins; a later one is looked at only if the earlier ones were shorter."""
        if len(self._found) < self.most:
            self._found = []

    def give_up(self, why: str) -> None:
        """It is no longer known which batches belong together."""
        self.why_not, self._found = self.why_not or why, []

    def look(self, value: object) -> None:
        """Look at the next batch."""
        if not self.why_not and len(self._found) < self.most:
            self._found.append(hashes(value, max_bytes=_MAX_HASHED))

    @property
    def counts(self) -> tuple[int, int] | None:
        """(samples that several workers delivered, samples compared), or None."""
        groups: dict[int, list[int]] = {}
        for number, found in enumerate(self._found):
            groups.setdefault(number % self.workers if self.in_order else number, []).extend(found)
        if self.why_not or len(groups) < 2:
            return None
        distinct = {number: set(found) for number, found in groups.items()}
        total = sum(map(len, groups.values()))
        if sum(map(len, distinct.values())) < _MIN_DISTINCT * total or not total:
            return None
        seen: dict[int, int] = {}
        for each in distinct.values():
            for one in each:
                seen[one] = seen.get(one, 0) + 1
        return sum(1 for count in seen.values() if count > 1), len(seen)

    def facts(self) -> dict[str, Any]:
        """The keys of ``UserFacts`` that say what was found."""
        counts = self.counts
        return {
            "worker_shared_samples": counts[0] if counts else None,
            "worker_compared_samples": counts[1] if counts else None,
        }

    @property
    def why(self) -> str:
        """Why nothing was compared; empty if something was."""
        if self.counts is not None:
            return ""
        return self.why_not or (
            "too few batches, or batches whose samples are equal to one another or on a device"
        )

"""The order of an epoch's samples: split over ranks, cut into batches, and given to workers.

All functions work on sample numbers only, in numpy arrays.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt

from ..record.typed import ArrayText

Indices = Annotated[npt.NDArray[np.int64], ArrayText()]


def epoch_order(
    firsts: Indices, counts: Indices, *, sequential: bool, shuffle: bool, seed: int, epoch: int
) -> Indices:
    """Return all sample numbers in the order of this epoch, each exactly once.

    The order depends on the seed and the epoch only, so that it is the same on every rank.
    ``firsts`` and ``counts`` describe the shards: samples ``first .. first + count - 1``. With
    ``shuffle``, random access permutes the samples. Sequential access permutes whole shards and
    keeps the order within each, so that a shard is read from front to back.
    """
    generator = np.random.Generator(np.random.PCG64DXSM([seed, epoch]))
    if shuffle and sequential:
        shards = generator.permutation(len(firsts))
        firsts, counts = firsts[shards], counts[shards]
    ends = np.cumsum(counts)
    order = np.repeat(firsts - (ends - counts), counts) + np.arange(
        int(counts.sum()), dtype=np.int64
    )
    return generator.permutation(order) if shuffle and not sequential else order


def rank_share(order: Indices, *, rank: int, world: int, batch_size: int, tail: str) -> Indices:
    """Return the consecutive part of ``order`` that ``rank`` of ``world`` reads.

    ``tail='keep'``: every sample goes to exactly one rank; the numbers of samples per rank differ
    by at most one, and the last batch may be short. ``tail='drop'``: every rank gets the same
    number of full batches; the samples that are left over are not read in this epoch.
    """
    if tail == "drop":
        share = len(order) // world // batch_size * batch_size
        return order[rank * share : (rank + 1) * share]
    return order[len(order) * rank // world : len(order) * (rank + 1) // world]


class BatchPlan:
    """One rank's batches in the order in which the loader asks for them.

    The loader gives batches to ``streams`` workers in turn. For sequential access the batches are
    ordered so that each worker reads a consecutive sequence of batches. It then reads its own
    shards, as a worker of a streaming loader does, and not every nth batch of shared shards.
    """

    def __init__(self, share: Indices, *, batch_size: int, streams: int = 1) -> None:
        self._share = share
        self._batch_size = batch_size
        count = -(-len(share) // batch_size)
        if streams <= 1 or count <= streams:
            self._sequence = np.arange(count)
        else:
            # The sequences differ by at most one batch, and the longer ones come first, so that
            # batch k goes to worker k modulo ``streams``.
            length, longer = divmod(count, streams)
            starts = np.arange(streams) * length + np.minimum(np.arange(streams), longer)
            turn, stream = np.divmod(np.arange(count), streams)
            self._sequence = starts[stream] + turn

    def __len__(self) -> int:
        return len(self._sequence)

    def after(self, count: int) -> BatchPlan:
        """Return the plan without its first ``count`` batches."""
        rest = BatchPlan(self._share, batch_size=self._batch_size)
        rest._sequence = self._sequence[count:]
        return rest

    def batch(self, number: int) -> Indices:
        start = int(self._sequence[number]) * self._batch_size
        return self._share[start : start + self._batch_size]

    def largest(self, sizes: Indices) -> int:
        """Return the largest sum of ``sizes`` (per sample) of any batch; 0 without batches."""
        if not len(self._share):
            return 0
        return int(
            np.add.reduceat(
                sizes[self._share], np.arange(0, len(self._share), self._batch_size)
            ).max()
        )

"""How well a loader shuffles, from the order in which it delivered the samples. Each figure is 1 for a uniform random order.

A training that sees neighbours together learns from batches that look alike. Loaders that stream trade this for sequential reads: shards in
random order, samples through a buffer; so the figure belongs beside the speed that was bought with it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]


def shuffle_quality(
    order: Array, shard_of: Array, batch_size: int, later: Array | None = None
) -> dict[str, float | None]:
    """``order``: sample numbers as delivered in one epoch, ``later``: in the next one; ``shard_of``: the shard of each sample number.

    ``distance``: how far samples were moved from their place in storage, mean, over what a uniform permutation moves them (n / 3).
    ``shards_per_batch``: different shards in a batch, mean, over what batches drawn at random would hold.
    ``epoch_distance``: as ``distance``, between two epochs; None where there is no second one.
    """
    return {
        "distance": _distance(order, np.sort(order)),
        "shards_per_batch": _diversity(order, shard_of, batch_size),
        "epoch_distance": None if later is None else _distance(later, order),
    }


def _distance(order: Array, reference: Array) -> float | None:
    """Mean displacement of the samples that both orders hold, each where it comes first.

    E|i - p(i)| of a uniform permutation of n is (n^2 - 1) / 3n.
    """
    order, reference = _once(order), _once(reference)
    common = np.intersect1d(order, reference)
    n = len(common)
    if n < 2:
        return None
    here, there = (
        _places(sequence[np.isin(sequence, common)], common) for sequence in (order, reference)
    )
    return float(np.abs(here - there).mean() / ((n * n - 1) / (3 * n)))


def _once(sequence: Array) -> Array:
    """Without repetitions."""
    _, first = np.unique(sequence, return_index=True)
    return np.asarray(sequence[np.sort(first)])


def _places(sequence: Array, common: Array) -> Array:
    """The place in ``sequence`` of each of ``common`` (sorted)."""
    values, first = np.unique(sequence, return_index=True)
    return np.asarray(first[np.searchsorted(values, common)])


def _diversity(order: Array, shard_of: Array, batch_size: int) -> float | None:
    """Expected number of distinct shards in a batch: shard s of m samples is in it with 1 - C(n - m, b) / C(n, b)."""
    full = len(order) // batch_size * batch_size
    if not full:
        return None
    batches = shard_of[order[:full]].reshape(-1, batch_size)
    seen = np.mean([len(np.unique(batch)) for batch in batches])
    _, counts = np.unique(shard_of[order], return_counts=True)
    n = len(order)
    absent = np.ones(len(counts))
    for drawn in range(batch_size):
        absent *= np.maximum(0, n - counts - drawn) / (n - drawn)
    return float(seen / (1 - absent).sum())


def identify(hashes: npt.NDArray[np.uint64], seen: npt.NDArray[np.uint64]) -> tuple[Array, int]:
    """(sample numbers behind ``seen``, how many of ``seen`` are no sample's). ``hashes``: of all samples, by number.

    Samples of equal contents can't be told apart, so the first that is seen is taken for the first of them, and so on; what is seen more
    often than there are samples of it counts as the last of them again.
    """
    by_hash = np.argsort(hashes, kind="stable")
    first, after = (
        np.searchsorted(hashes, seen, side=side, sorter=by_hash) for side in ("left", "right")
    )
    by_seen = np.argsort(seen, kind="stable")
    turn = np.empty(len(seen), np.int64)
    turn[by_seen] = np.arange(len(seen)) - np.searchsorted(seen, seen[by_seen], sorter=by_seen)
    known = after > first
    return by_hash[np.minimum(first + turn, after - 1)[known]].astype(np.int64), int((~known).sum())


def delivery(order: Array, samples: int | None, *, unknown: int) -> dict[str, int | None]:
    """What one epoch delivered against the ``samples`` that there are; ``unknown`` ones had contents that the dataset has not.

    ``samples``: None where only a part of the epoch was looked at; what is missing from it may come later, so it is None, too.
    """
    distinct = len(np.unique(order))
    return {
        "delivered": len(order) + unknown,
        "missing": None if samples is None else samples - distinct,
        "repeated": len(order) - distinct,
        "unknown": unknown,
    }

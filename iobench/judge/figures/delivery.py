"""What a loader delivered: how well it shuffles, and whether each sample came once.

Each figure of shuffling is 1 for a uniform random order. If neighbouring samples are delivered
together, the batches of a training resemble each other. Loaders that stream accept this for
sequential reads (shards in random order, samples through a buffer), so a report should show these
figures together with the speed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]


def shuffle_quality(
    order: Array, shard_of: Array, batch_size: int, later: Array | None = None
) -> dict[str, float | None]:
    """Compute the figures below for one epoch.

    ``order`` holds the sample numbers in the order of delivery, ``later`` those of the next epoch;
    ``shard_of`` maps a sample number to its shard.

    ``distance``: mean distance of the samples from their place in storage, divided by that of a
    uniform permutation (about n / 3).
    ``shards_per_batch``: mean number of distinct shards in a batch, divided by the number that is
    expected in batches drawn at random.
    ``epoch_distance``: like ``distance``, between the two epochs; None without ``later``.
    """
    return {
        "distance": _distance(order, np.sort(order)),
        "shards_per_batch": _diversity(order, shard_of, batch_size),
        "epoch_distance": None if later is None else _distance(later, order),
    }


def _distance(order: Array, reference: Array) -> float | None:
    """Mean displacement of the samples that are in both orders, over that of a random order.

    The first occurrence of each sample counts. For a uniform permutation p of n samples,
    E|i - p(i)| is (n^2 - 1) / 3n. The result is None for fewer than two common samples.
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
    """The first occurrence of each value, in order."""
    _, first = np.unique(sequence, return_index=True)
    return np.asarray(sequence[np.sort(first)])


def _places(sequence: Array, common: Array) -> Array:
    """The position in ``sequence`` of each value of ``common`` (sorted)."""
    values, first = np.unique(sequence, return_index=True)
    return np.asarray(first[np.searchsorted(values, common)])


def _diversity(order: Array, shard_of: Array, batch_size: int) -> float | None:
    """Distinct shards per batch, divided by the expected number; None without a full batch.

    A random batch of b out of n samples holds a shard of m samples with the probability
    1 - C(n - m, b) / C(n, b).
    """
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
    """(sample numbers for the hashes ``seen``, how many of ``seen`` belong to no sample).

    ``hashes`` holds the hashes of all samples, by sample number. Samples of equal contents cannot
    be told apart: the first one seen is taken for the first of them, the second for the second,
    and so on. If one is seen more often than there are such samples, it counts as the last again.
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
    """Count what one epoch delivered, compared with the ``samples`` of the dataset.

    ``unknown`` is the number of delivered samples whose contents are not in the dataset.
    ``samples`` is None if only a part of the epoch was observed. ``missing`` is then None as well,
    because the rest of the epoch may deliver those samples.
    """
    distinct = len(np.unique(order))
    return {
        "delivered": len(order) + unknown,
        "missing": None if samples is None else samples - distinct,
        "repeated": len(order) - distinct,
        "unknown": unknown,
    }

"""The order of an epoch: every sample once, whatever the number of ranks, workers and samples in a
batch.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.load.order import BatchPlan, epoch_order, rank_share
from iobench.runner.third_party import delivery, identify, shuffle_quality

SHARDS = st.lists(st.integers(1, 20), min_size=1, max_size=20)


def order_of(
    counts: list[int], *, sequential: bool, shuffle: bool = True, seed: int = 1, epoch: int = 0
) -> np.ndarray:
    lengths = np.array(counts)
    return epoch_order(
        np.cumsum(lengths) - lengths,
        lengths,
        sequential=sequential,
        shuffle=shuffle,
        seed=seed,
        epoch=epoch,
    )


@given(
    SHARDS, st.integers(1, 7), st.integers(1, 9), st.integers(0, 5), st.booleans(), st.booleans()
)
def test_every_sample_once(
    counts: list[int], world: int, batch_size: int, workers: int, sequential: bool, shuffle: bool
) -> None:
    order = order_of(counts, sequential=sequential, shuffle=shuffle)
    seen: list[int] = []
    sizes = []
    for rank in range(world):
        share = rank_share(order, rank=rank, world=world, batch_size=batch_size, tail="keep")
        sizes.append(len(share))
        plan = BatchPlan(share, batch_size=batch_size, streams=workers)
        batches = [plan.batch(number).tolist() for number in range(len(plan))]
        assert sum(len(batch) < batch_size for batch in batches) <= 1  # one short batch at most
        seen += [index for batch in batches for index in batch]
    assert sorted(seen) == list(range(sum(counts)))
    assert max(sizes) - min(sizes) <= 1


@given(SHARDS, st.integers(1, 7), st.integers(1, 9))
def test_dropping_the_tail_leaves_equal_ranks_of_full_batches(
    counts: list[int], world: int, batch_size: int
) -> None:
    order = order_of(counts, sequential=False)
    shares = [
        rank_share(order, rank=rank, world=world, batch_size=batch_size, tail="drop")
        for rank in range(world)
    ]
    assert {len(share) for share in shares} == {len(order) // world // batch_size * batch_size}
    together = np.concatenate(shares)
    assert len(set(together.tolist())) == len(together)


@pytest.mark.parametrize("sequential", [True, False])
def test_the_shuffle_has_an_effect(sequential: bool) -> None:
    """The reference benchmark's shuffle had none: every epoch opened the files in the same
    order.
    """
    counts = [3] * 50
    first = order_of(counts, sequential=sequential, epoch=0).tolist()
    assert first != list(range(150))
    assert first != order_of(counts, sequential=sequential, epoch=1).tolist()
    assert first != order_of(counts, sequential=sequential, seed=2).tolist()
    assert first == order_of(counts, sequential=sequential, epoch=0).tolist()


@given(SHARDS)
def test_sequential_access_walks_each_shard_front_to_back(counts: list[int]) -> None:
    order = order_of(counts, sequential=True).tolist()
    ends = np.cumsum(counts)
    position = 0
    seen = set()
    while position < len(order):
        shard = int(np.searchsorted(ends, order[position], side="right"))
        assert shard not in seen
        seen.add(shard)
        expected = list(range(int(ends[shard]) - counts[shard], int(ends[shard])))
        assert order[position : position + counts[shard]] == expected
        position += counts[shard]


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 6))
def test_each_worker_walks_its_own_part(samples: int, batch_size: int, workers: int) -> None:
    plan = BatchPlan(np.arange(samples), batch_size=batch_size, streams=workers)
    if len(plan) <= workers:
        return
    for worker in range(workers):  # the loader deals batch k to worker k modulo workers
        mine = [int(plan.batch(number)[0]) for number in range(worker, len(plan), workers)]
        assert all(b - a == batch_size for a, b in itertools.pairwise(mine))


# How well an order is shuffled


@given(st.integers(0, 2**32), st.integers(2, 40), st.integers(2, 64))
def test_a_uniform_order_scores_one(seed: int, shards: int, batch_size: int) -> None:
    n = 4096
    order, later = (np.random.default_rng([seed, part]).permutation(n) for part in range(2))
    found = shuffle_quality(order, np.arange(n) * shards // n, batch_size, later)
    assert all(value == pytest.approx(1, abs=0.08) for value in found.values()), found


def test_whole_shards_in_random_order_are_far_from_home_and_yet_alike_in_a_batch() -> None:
    shards = np.random.default_rng(3).permutation(100)
    order = np.concatenate([np.arange(shard * 50, shard * 50 + 50) for shard in shards])
    found = shuffle_quality(order, np.arange(5000) // 50, 50)
    assert found["distance"] == pytest.approx(1, abs=0.15)
    assert found["shards_per_batch"] == pytest.approx(1 / (100 * (1 - 0.99**50)), rel=0.02)
    assert found["epoch_distance"] is None


@given(st.lists(st.integers(0, 30), max_size=80), st.integers(0, 5))
def test_what_was_delivered_adds_up(order: list[int], unknown: int) -> None:
    proof = delivery(np.array(order, np.int64), 31, unknown=unknown)
    assert proof["delivered"] == len(order) + unknown
    assert proof["delivered"] - unknown - proof["repeated"] + proof["missing"] == 31


@given(st.lists(st.integers(0, 8), min_size=1, max_size=40), st.randoms())
def test_samples_of_equal_contents_are_each_delivered(
    contents: list[int], chance: random.Random
) -> None:
    """Foreign data holds some images twice: a loader that delivers both repeats none and misses
    none.
    """
    hashes = np.array(contents, np.uint64)
    seen = contents.copy()
    chance.shuffle(seen)
    order, unknown = identify(hashes, np.array(seen, np.uint64))
    assert (sorted(order.tolist()), unknown) == (list(range(len(contents))), 0)
    assert hashes[order].tolist() == seen

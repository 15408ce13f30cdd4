"""The order of an epoch: every sample once, whatever the number of ranks, workers and samples in a
batch.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.load.order import BatchPlan, epoch_order, rank_share

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


@given(SHARDS, st.booleans())
def test_without_shuffle_every_epoch_reads_in_order(counts: list[int], sequential: bool) -> None:
    for epoch in range(2):
        assert order_of(counts, sequential=sequential, shuffle=False, epoch=epoch).tolist() == list(
            range(sum(counts))
        )

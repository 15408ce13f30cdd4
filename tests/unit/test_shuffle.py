"""Shuffle quality against orders whose answer is known, and what counts as delivered."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.runner.third_party import delivery, identify, shuffle_quality


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


@pytest.mark.parametrize("order", [np.array([], np.int64), np.array([3])])
def test_too_few_samples_have_no_order(order: np.ndarray) -> None:
    assert shuffle_quality(order, np.zeros(5, int), 4)["distance"] is None


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

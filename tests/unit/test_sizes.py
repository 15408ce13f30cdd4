"""Sample sizes and the plan of shards: pure functions of the spec, right in distribution, quick for
a million samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.data.generator.plan import plan_shards, sample_sizes
from iobench.settings.dataset import DatasetSpec


def spec(**changes: Any) -> DatasetSpec:
    return DatasetSpec.model_validate(
        {"name": "x", "samples": 1000, "sample_size": {"mean": "100kB"}, **changes}
    )


def test_normal() -> None:
    sizes = sample_sizes(
        spec(
            samples=200_000,
            sample_size={"distribution": "normal", "mean": 1_000_000, "stdev": 100_000},
        )
    )
    assert sizes.mean() == pytest.approx(1_000_000, rel=0.002)
    assert sizes.std() == pytest.approx(100_000, rel=0.01)
    assert ((sizes > 900_000) & (sizes < 1_100_000)).mean() == pytest.approx(0.6827, abs=0.005)


def test_lognormal_has_the_stated_mean() -> None:
    sizes = sample_sizes(
        spec(
            samples=200_000,
            sample_size={"distribution": "lognormal", "mean": 100_000, "sigma": 0.4, "max": 10**9},
        )
    )
    assert sizes.mean() == pytest.approx(100_000, rel=0.01)
    assert np.log(sizes).std() == pytest.approx(0.4, rel=0.01)


def test_quantiles() -> None:
    points = [[0, 1000], [0.5, 2000], [0.9, 50_000], [1, 100_000]]
    sizes = sample_sizes(
        spec(samples=100_000, sample_size={"distribution": "quantiles", "quantiles": points})
    )
    assert np.quantile(sizes, [0.5, 0.9]) == pytest.approx([2000, 50_000], rel=0.03)
    assert sizes.min() >= 1000
    assert sizes.max() <= 100_000


@given(
    samples=st.integers(1, 3000),
    mean=st.integers(1, 5_000_000),
    shard_size=st.one_of(st.none(), st.integers(1, 1 << 28)),
    form=st.sampled_from(["tar", "tfrecord"]),
)
def test_plan_covers_every_sample_once_in_order(
    samples: int, mean: int, shard_size: int | None, form: str
) -> None:
    plan = plan_shards(
        spec(samples=samples, sample_size={"mean": mean}, shard_size=shard_size, format=form)
    )
    assert plan.first[0] == 0
    assert plan.first[-1] == samples
    assert (np.diff(plan.first) > 0).all()
    assert plan.units[0] == 0
    assert plan.units[-1] == plan.shard_count
    assert (np.diff(plan.units) > 0).all()
    assert plan.unit_bytes().sum() == plan.sample_bytes == samples * mean


@given(size=st.integers(1, 300), samples=st.integers(1, 200), window=st.integers(1, 3000))
def test_samples_of_one_size_are_cut_like_any_others(size: int, samples: int, window: int) -> None:
    """A shard takes every sample that starts within its window; where all are of one size that is
    worked out without looking at each.
    """
    plan = plan_shards(
        spec(samples=samples, sample_size={"mean": size}, format="tar", shard_size=window)
    )
    group = np.arange(samples) * size // window
    assert plan.first.tolist() == [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), samples]
    assert plan.sample_bytes == samples * size
    assert plan.unit_bytes().tolist() == [samples * size]

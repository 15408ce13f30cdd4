"""The rate of each second of a repetition, its steady state, and a lasting fall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.judge.figures.metrics import repetition_metrics
from iobench.judge.figures.rates import lasting_fall, steady_from
from iobench.record.training import MAX_BINS, Epoch, Rates, Repetition
from tests.unit.conftest import build_events


def rates(values: Sequence[float], bin_s: float = 1.0) -> Rates:
    return Rates(bin_s=bin_s, samples_per_s=list(values), stored_bytes_per_s=list(values))


def steps(
    seconds: Sequence[float], *, rank: int = 0, epoch: int = 0, begin: float = 0.0, **more: Any
) -> list[dict[str, Any]]:
    """Steps of a rank that last these seconds each, with 10 samples of 100 bytes."""
    found, start = [], begin
    for number, length in enumerate(seconds):
        found.append(
            {
                "rank": rank,
                "epoch": epoch,
                "step": number,
                "start": start,
                "wait": length,
                "samples": 10,
                "sample_bytes": 1000,
            }
            | more
        )
        start += length
    return found


def measured(rows: list[dict[str, Any]], *, startup_s: float = 0.0, **more: Any) -> Repetition:
    epochs = {row["epoch"] for row in rows}
    context = Repetition(
        seed=1,
        accelerators=len({row["rank"] for row in rows}),
        epochs=[Epoch(epoch=epoch, startup_s=startup_s) for epoch in sorted(epochs)],
    )
    return repetition_metrics(build_events(rows), context, **more)


def test_each_second_has_the_samples_of_all_ranks() -> None:
    # Rank 0 makes 2 steps a second, rank 1 makes 1 in 2 s: 20 + 5 samples/s for 8 s.
    rows = steps([0.5] * 16) + steps([2.0] * 4, rank=1)
    found = measured(rows).rates
    assert found.bin_s == 1.0
    assert found.samples_per_s == pytest.approx([25.0] * 8)
    assert found.stored_bytes_per_s == pytest.approx([2500.0] * 8)


@given(
    st.lists(
        st.lists(st.floats(0, 50, allow_nan=False), min_size=1, max_size=20), min_size=1, max_size=4
    ),
    st.integers(1, 9),
)
def test_no_sample_is_invented(lengths: list[list[float]], round_steps: int) -> None:
    rows = [row for rank, some in enumerate(lengths) for row in steps(some, rank=rank)]
    found = measured(rows, round_steps=round_steps).rates
    assert len(found.samples_per_s) == len(found.stored_bytes_per_s) <= MAX_BINS
    total = sum(found.samples_per_s) * found.bin_s
    assert total <= 10 * sum(map(len, lengths)) * (1 + 1e-4)


@pytest.mark.parametrize(
    ("values", "begin"),
    [
        ([100] * 8, 0.0),
        ([50, 80] + [100] * 8, 2.0),
        ([100, 109, 92, 101, 99, 100, 97, 103], 0.0),
        ([100, 112, 88, 100, 115, 85, 100, 113], None),  # beyond 10 % of the mean
        ([100, 104, 108, 112, 116, 121, 126, 131], None),  # within, but it rises by 15 %
        ([0] * 8, None),
    ],
)
def test_steady_state_as_snia_defines_it(values: list[float], begin: float | None) -> None:
    assert steady_from(rates(values)) == begin
    twice = steady_from(rates(values, bin_s=2.0))
    assert twice == (None if begin is None else 2 * begin)


@pytest.mark.parametrize(("fast", "slow"), [(10, 10), (10, 20), (10, 50), (5, 5), (10, 590)])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_lasting_fall_is_found_where_it_is(fast: int, slow: int, noise: float) -> None:
    jitter = np.exp(noise * np.random.default_rng(fast + slow).normal(size=fast + slow))
    found = lasting_fall(rates(np.r_[np.full(fast, 1000.0), np.full(slow, 500.0)] * jitter))
    assert found.at_s == pytest.approx(fast, abs=2)
    assert found.share == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(
    "values",
    [
        [1000.0] * 60,
        [200.0] + [1000.0] * 59,  # a slow first second
        [1900.0, 1900.0] + [1000.0] * 58,  # two fast ones
        [1000.0, 1000.0, 1000.0, 100.0] * 15,  # single slow seconds
        [1000.0] * 57 + [100.0] * 3,  # the end of an epoch
        [500.0] * 10 + [1000.0] * 10,  # a rise
        [1000.0] * 20 + [500.0] * 10 + [1000.0] * 30,  # it recovers
        [1000.0] * 30 + [950.0] * 30,  # less than 10 %
        [1000.0] * 4 + [500.0] * 3,  # shorter than 8 s
        [0.0] * 20,
    ],
)
def test_what_is_no_lasting_fall(values: list[float]) -> None:
    assert lasting_fall(rates(values)) is None


def test_larger_samples_are_no_fall() -> None:
    """Fewer of them arrive in a second, but as many bytes."""
    samples = [1000.0] * 15 + [500.0] * 15
    larger = Rates(bin_s=1.0, samples_per_s=samples, stored_bytes_per_s=[1e8] * 30)
    assert lasting_fall(larger) is None
    slower = Rates(bin_s=1.0, samples_per_s=samples, stored_bytes_per_s=[1e5 * n for n in samples])
    assert lasting_fall(slower) is not None


def test_noise_is_taken_for_a_fall_in_about_one_of_a_hundred_repetitions() -> None:
    chance = np.random.default_rng(20)
    found = 0
    for _ in range(200):
        found += lasting_fall(rates(1000 * np.exp(0.3 * chance.normal(size=40)))) is not None
    assert found <= 7  # with 1 %, 2 of 200 are expected, and 8 or more in one of 900 tries

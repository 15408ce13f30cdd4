"""The statistics of comparisons, against brute force and published tables."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iobench.judge import statistics
from iobench.judge.statistics import a12, mann_whitney_p, ratio_estimate, ratio_interval

values = st.lists(st.integers(1, 8).map(float), min_size=1, max_size=6)


def by_force(one: list[float], other: list[float]) -> float:
    """All ways to choose so many of the pooled values, each as likely as the others."""
    pooled = [*one, *other]

    def wins(chosen: tuple[int, ...]) -> float:
        rest = [pooled[i] for i in range(len(pooled)) if i not in chosen]
        return sum((pooled[i] > b) + 0.5 * (pooled[i] == b) for i in chosen for b in rest)

    mean = len(one) * len(other) / 2
    observed = abs(wins(tuple(range(len(one)))) - mean)
    found = [
        abs(wins(chosen) - mean) >= observed - 1e-9
        for chosen in combinations(range(len(pooled)), len(one))
    ]
    return sum(found) / len(found)


@given(one=values, other=values)
def test_p_is_the_share_of_choices_that_are_as_extreme(
    one: list[float], other: list[float]
) -> None:
    assert mann_whitney_p(one, other) == pytest.approx(by_force(one, other))


@pytest.mark.parametrize(
    ("n", "m", "u", "p"),
    # Two-sided probabilities of U without ties: Mann and Whitney 1947, table I (one-sided, doubled)
    [
        (3, 3, 0, 0.1),
        (4, 4, 0, 2 * 0.0143),
        (4, 4, 1, 2 * 0.0286),
        (5, 5, 2, 2 * 0.0159),
        (6, 6, 5, 2 * 0.0206),
        (8, 8, 13, 2 * 0.0249),
    ],
)
def test_published_probabilities(n: int, m: int, u: int, p: float) -> None:
    """Values in an order of which the U of the first group is ``u``: one value of it moved up by
    ``u`` places, as far as needed.
    """
    order = ["a"] * n + ["b"] * m
    for _ in range(u):  # swap the last 'a' that has a 'b' right of it
        position = max(i for i in range(len(order) - 1) if order[i] == "a" and order[i + 1] == "b")
        order[position], order[position + 1] = "b", "a"
    one = [float(i) for i, group in enumerate(order) if group == "a"]
    other = [float(i) for i, group in enumerate(order) if group == "b"]
    assert mann_whitney_p(one, other) == pytest.approx(p, abs=1.1e-4)


def test_the_approximation_for_large_groups_is_near_the_exact_p(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = np.random.default_rng(3)
    for shift in (0.0, 1.0, 2.0, 4.0):
        one, other = (
            chance.normal(100, 5, 30).round(1).tolist(),
            chance.normal(100 + shift, 5, 30).round(1).tolist(),
        )
        exact = mann_whitney_p(one, other)
        with monkeypatch.context() as patch:
            patch.setattr(statistics, "MAX_EXACT", 10)
            assert mann_whitney_p(one, other) == pytest.approx(exact, abs=0.005)


@given(one=values, other=values)
def test_sides_can_be_changed(one: list[float], other: list[float]) -> None:
    assert mann_whitney_p(one, other) == pytest.approx(mann_whitney_p(other, one))
    assert a12(one, other) == pytest.approx(1 - a12(other, one))
    ratio, low, high, _ = ratio_interval(one, other)
    back, back_low, back_high, _ = ratio_interval(other, one)
    assert (low, high) == (pytest.approx(1 / back_high), pytest.approx(1 / back_low))
    assert low <= ratio <= high
    assert back_low <= back <= back_high


@example(few=[1.0], many=1601)
@settings(max_examples=25)
@given(
    few=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=10),
    many=st.sampled_from([1, 2, 41, 161, 1601, 1700]),
)
def test_the_interval_of_a_few_values_against_many(few: list[float], many: int) -> None:
    """The ratio lies in it, and it narrows to the truth where the larger side hardly varies."""
    base = np.linspace(1.0, 1.001, many).tolist()
    for ratio, low, high, coverage in (ratio_interval(few, base), ratio_interval(base, few)):
        assert low <= ratio <= high
        assert 0 <= coverage < 1
        if many >= 41:
            assert coverage >= 0.94
    _, low, high, _ = ratio_interval(few, base)
    assert min(few) / 1.001 <= low
    assert high <= max(few)


def test_one_value_against_many_knows_little() -> None:
    """Its rank among 1,601 is any with equal chance: 2.5 % of the ratios are left out at each
    end.
    """
    base = [1 + number / 1600 for number in range(1601)]
    ratios = sorted(2.0 / value for value in base)
    assert ratio_interval([2.0], base)[1:3] == (ratios[39], ratios[-40])


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Candidates that are 1.2 x the baseline, 400 times: 95 % of the intervals hold 1.2 (and never
    much fewer).
    """
    chance = np.random.default_rng(11)
    inside = 0
    for _ in range(400):
        base, rates = chance.lognormal(0, 0.05, 6), 1.2 * chance.lognormal(0, 0.05, 6)
        _, low, high, _ = ratio_interval(rates.tolist(), base.tolist())
        inside += low <= 1.2 <= high
    assert inside >= 0.92 * 400


def test_a_ratio_in_turns_is_free_of_what_both_sides_share() -> None:
    """The machine is three times as fast in the last turn, and the ratio stays what it is."""
    drift = [1.0, 2.0, 3.0]
    found = ratio_estimate([(150 * speed, 100 * speed) for speed in drift])
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert found.n == 3


def test_the_interval_of_a_ratio_is_students() -> None:
    """Logarithms 0.1, 0.2, 0.3: mean 0.2, standard error 0.1 / sqrt 3, and t is 4.302653."""
    found = ratio_estimate([(np.exp(log), 1.0) for log in (0.1, 0.2, 0.3)])
    half = 4.302653 * 0.1 / np.sqrt(3)
    assert found.value == pytest.approx(np.exp(0.2))
    assert found.low == pytest.approx(np.exp(0.2 - half))
    assert found.high == pytest.approx(np.exp(0.2 + half))


def test_a_single_pair_has_no_interval_and_none_has_no_ratio() -> None:
    found = ratio_estimate([(3.0, 2.0), (0.0, 2.0), (3.0, 0.0)])
    assert (found.value, found.low, found.high, found.n) == (1.5, None, None, 1)
    assert ratio_estimate([]) is ratio_estimate([(1.0, 0.0)]) is None

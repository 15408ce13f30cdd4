"""The statistics of comparisons, against brute force and published tables."""

from __future__ import annotations

import math
import random
from itertools import combinations
from statistics import median

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iobench.ask.compare.sequential import MIN_ROUNDS, Sequential
from iobench.judge import statistics
from iobench.judge.statistics import a12, mann_whitney_p, ratio_estimate, ratio_interval, t_quantile
from iobench.record.ab import MAX_ROUNDS

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


def test_ratios_that_are_large_do_not_say_less_because_they_differ() -> None:
    """Of ten requests each, the slowest one is 10, 110 and 13 times as slow."""
    pairs = [(10.0, 1.0), (110.0, 1.0), (13.5, 1.0)]
    assert ratio_estimate(pairs).low < 1
    assert ratio_estimate(pairs, ample=10.0).low == pytest.approx(10)
    some = [(1.5, 1.0), (1.7, 1.0), (1.3, 1.0)]
    assert ratio_estimate(some, ample=10.0) == ratio_estimate(some)


def test_a_single_pair_has_no_interval_and_none_has_no_ratio() -> None:
    found = ratio_estimate([(3.0, 2.0), (0.0, 2.0), (3.0, 0.0)])
    assert (found.value, found.low, found.high, found.n) == (1.5, None, None, 1)
    assert ratio_estimate([]) is ratio_estimate([(1.0, 0.0)]) is None


# The test of two sides in turns: its errors by simulation with fixed seeds, and its books

SERIES = 4000


def ratios(kind: str, rounds: int) -> np.ndarray:
    """Series of log ratios of two equal sides, whose rates have a standard deviation of 1."""
    rng = np.random.default_rng(17)
    shape = (SERIES, 2 * rounds)
    rates = rng.standard_t(3, shape) / math.sqrt(3) if kind == "t3" else rng.standard_normal(shape)
    if kind == "ar":
        for time in range(1, 2 * rounds):
            rates[:, time] = 0.5 * rates[:, time - 1] + math.sqrt(0.75) * rates[:, time]
    if kind == "drift":
        rates += 0.5 * np.arange(2 * rounds)
    found = rates[:, 1::2] - rates[:, ::2]
    found[:, 1::2] *= -1  # A B, B A, A B, ...
    return found


def answers(test: Sequential, logs: np.ndarray) -> tuple[float, float]:
    """(share of series that end with different, with equal)."""
    ended = np.zeros(len(logs), dtype=bool)
    told = {"different": 0, "equal": 0}
    for look in test.looks:
        seen = logs[:, :look]
        half = t_quantile(look - 1, test.level) * seen.std(axis=1, ddof=1) / math.sqrt(look)
        low, high = seen.mean(axis=1) - half, seen.mean(axis=1) + half
        equal = (low >= -test.margin) & (high <= test.margin)
        different = ((low > 0) | (high < 0)) & ~equal
        told["equal"] += int((equal & ~ended).sum())
        told["different"] += int((different & ~ended).sum())
        ended |= equal | different
    return told["different"] / len(logs), told["equal"] / len(logs)


@pytest.mark.parametrize("kind", ["normal", "t3", "ar", "drift"])
@pytest.mark.parametrize("rounds", [4, 20])
def test_errors_are_rare(kind: str, rounds: int) -> None:
    """Of equal sides, and of sides that differ by exactly the threshold: 5 %, and 1 % of chance."""
    test, noise = Sequential(rounds, 0.05), ratios(kind, rounds)
    for cv in (0.02, 0.05, 0.1):
        assert answers(test, cv * noise)[0] <= 0.06
        assert answers(test, cv * noise + test.margin + 1e-9)[1] <= 0.06


def test_planned_turns_keep_their_power() -> None:
    """The rounds that the present spread asks for tell a difference of the threshold."""
    spread = 0.05 * math.sqrt(2)
    logs = [spread, -spread] * 10
    needed = Sequential(20, 0.05).rounds_for_threshold(logs)
    assert needed > 20
    test = Sequential(needed, 0.05)
    different, _ = answers(test, 0.05 * ratios("normal", needed) + test.margin)
    assert different >= 0.75


def test_the_simulated_test_is_the_one_that_runs() -> None:
    """The vectorized test above and the class agree, series by series."""
    test = Sequential(12, 0.05)
    for logs in 0.03 * ratios("normal", 12)[:60] + 0.02:
        for look in test.looks:
            different, equal = answers(Sequential(12, 0.05), np.array([logs]))
            if test.ends(list(logs[:look])):
                told = test.answer(list(logs[:look]))
                assert (told == "different", told == "equal") == (different == 1, equal == 1)
                break


def test_looks() -> None:
    before = 0.04
    for rounds in range(MIN_ROUNDS, MAX_ROUNDS + 1):
        test = Sequential(rounds, 0.05)
        looks = test.looks
        assert looks[0] == MIN_ROUNDS, rounds
        assert looks[-1] in (rounds, rounds - 1), rounds
        assert all(look % 2 == 0 for look in looks), rounds
        assert list(looks) == sorted(set(looks)), rounds
        assert 0 < test.level <= before, rounds
        before = test.level


def test_an_end_is_told() -> None:
    test = Sequential(20, 0.05)
    faster = [math.log(2), math.log(2.1), math.log(1.9), math.log(2.05)]
    assert not test.ends(faster[:3])
    assert test.ends(faster)
    claim = test.claim("samples_per_s", faster, higher_is_better=True)
    assert (claim.answer, claim.better, claim.more) == ("different", True, None)
    assert claim.ratio.low < 2 < claim.ratio.high
    assert claim.ratio.n == 4
    assert claim.basis == "rounds"
    assert test.claim("wait_s", faster, higher_is_better=False).better is False
    same = [0.001, -0.002, 0.0015, 0.0]
    assert test.claim("samples_per_s", same, higher_is_better=True).answer == "equal"


def test_too_little_is_not_told() -> None:
    test = Sequential(4, 0.05)
    wide = [0.2, -0.1, 0.15, -0.02]
    claim = test.claim("samples_per_s", wide, higher_is_better=True)
    assert claim.answer == "inconclusive"
    assert claim.why
    assert claim.more is not None
    assert claim.more % 2 == 0
    assert test.ends(wide)
    few = test.claim("samples_per_s", [0.7, 0.7, 0.7], higher_is_better=True)
    assert few.answer == "inconclusive"
    assert few.more == 1
    none = test.claim("samples_per_s", [], higher_is_better=True)
    assert (none.answer, none.ratio, none.more) == ("inconclusive", None, None)
    assert test.estimate([math.log(3)]) is not None


@pytest.mark.parametrize(("points", "trials"), [(2, 4), (12, 8), (30, 10)])
def test_the_best_of_many_is_rarely_better_by_chance(points: int, trials: int) -> None:
    """Equal points, of which the fastest is compared with the first one."""
    chance, wrong, sweeps = random.Random(7), 0, 300
    for _ in range(sweeps):
        base, *others = [
            [chance.lognormvariate(0, 0.1) for _ in range(trials)] for _ in range(points)
        ]
        best = max(others, key=median)
        _, low, high, coverage = ratio_interval(best, base, among=len(others))
        wrong += low > 1 or high < 1
        assert coverage > 0.9
    assert wrong / sweeps < 0.08

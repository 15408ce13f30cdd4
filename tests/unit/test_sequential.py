"""The test of two sides in turns: its errors by simulation with fixed seeds, and its books."""

from __future__ import annotations

import math

import numpy as np
import pytest

from iobench.ask.compare.sequential import MIN_ROUNDS, Sequential, log_ratio
from iobench.judge.statistics import t_quantile
from iobench.record.ab import MAX_ROUNDS

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


@pytest.mark.parametrize(("rounds", "threshold"), [(3, 0.05), (201, 0.05), (8, 0.0)])
def test_impossible_tests(rounds: int, threshold: float) -> None:
    with pytest.raises(ValueError):
        Sequential(rounds, threshold)


def test_ratios_that_do_not_exist() -> None:
    assert log_ratio(None, 1.0) is None
    assert log_ratio(1.0, 0.0) is None
    assert log_ratio(math.e, 1.0) == pytest.approx(1.0)

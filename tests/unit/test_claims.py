"""What may be said about two groups of runs, from one value for each run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from iobench.ask.compare.claims import MAX_MORE, Sides, answer_of, claim, claims_at_once
from iobench.ask.compare.comparison import outcome_of
from iobench.judge.statistics import t_quantile, t_two_sided_p
from iobench.record.ab import Claim, Drift
from iobench.record.verdict import Estimate


def rate(
    candidate: list[float],
    baseline: list[float],
    *,
    threshold: float = 0.05,
    drift: Drift | None = None,
    level: float = 0.05,
    higher_is_better: bool = True,
) -> Claim:
    sides = Sides(
        candidate=candidate, baseline=baseline, higher_is_better=higher_is_better, drift=drift
    )
    return claim("samples_per_s", sides, threshold=threshold, level=level)


def drift(sd: float, degrees: int = 10) -> Drift:
    return Drift(metric="samples_per_s", sd=sd, degrees=degrees, runs=degrees + 1)


def bounds(found: Claim) -> tuple[float, float]:
    return found.ratio.low, found.ratio.high


@pytest.mark.parametrize(
    ("low", "high", "threshold", "answer"),
    [
        (0.96, 0.98, 0.05, "equal"),  # told to differ, and by less than the threshold
        (0.96, 0.98, 0.02, "different"),
        (1.01, 1.2, 0.05, "different"),
        (0.94, 1.0, 0.05, "inconclusive"),
        (0.9, 1.1, 0.2, "equal"),
        (1.0, 1.0, 0.0, "equal"),
        (1.0, 1.1, 0.0, "inconclusive"),
    ],
)
def test_the_answer_follows_from_the_interval(
    low: float, high: float, threshold: float, answer: str
) -> None:
    assert answer_of(low, high, threshold) == answer


def test_four_runs_a_side_are_told_apart_by_their_ranks() -> None:
    base, fast = [100.0, 101.0, 99.0, 100.5], [120.0, 121.0, 119.0, 120.5]
    found = rate(fast, base)
    assert (found.answer, found.better, found.basis, found.method) == (
        "different",
        True,
        "runs",
        "ranks",
    )
    assert found.p == pytest.approx(2 / 70)
    assert found.ratio.value == pytest.approx(1.2, rel=0.01)
    assert bounds(found) == pytest.approx((119 / 101, 121 / 99))
    assert (found.candidate_runs, found.baseline_runs, found.ratio.n) == (4, 4, 4)
    assert rate(base, fast).better is False
    assert rate(base, fast, higher_is_better=False).better is True
    assert rate(base[::-1], base).answer == "equal"


def test_what_was_not_measured_is_not_told() -> None:
    for candidate, baseline in (([], [1.0]), ([1.0], []), ([], [])):
        found = rate(candidate, baseline)
        assert (found.answer, found.ratio) == ("inconclusive", None)
        assert found.why
    zero = rate([0.0, 0.1, 0.1, 0.1], [0.1, 0.3, 0.4, 0.5])
    assert (zero.answer, zero.ratio) == ("inconclusive", None)
    # without a ratio, the ranks still tell
    zero = rate([0.0, 0.1, 0.1, 0.1], [0.2, 0.3, 0.4, 0.5])
    assert (zero.answer, zero.better, zero.ratio) == ("different", False, None)
    assert zero.p == pytest.approx(2 / 70)


def test_further_runs_would_tell() -> None:
    """The number of further runs is enough in most cases, if the ratio is as estimated."""
    found = rate([97.0], [100.0], drift=drift(0.02, 20), threshold=0.01)
    assert found.answer == "inconclusive"
    assert found.more
    runs = 1 + found.more
    rng = np.random.default_rng(3)
    answers = [
        rate(
            list(np.exp(rng.normal(math.log(97), 0.02, runs))),
            list(np.exp(rng.normal(math.log(100), 0.02, runs))),
            threshold=0.01,
        ).answer
        for _ in range(200)
    ]
    assert answers.count("different") > 0.7 * 200
    assert rate([99.0], [100.0], drift=drift(0.5), threshold=0.01).more == MAX_MORE


def test_several_metrics_are_told_by_holms_procedure() -> None:
    one = Sides(
        candidate=[80.0, 81, 82, 83], baseline=[100.0, 101, 102, 103], higher_is_better=True
    )
    alone = claims_at_once({"a": one})["a"]
    assert alone == claim("a", one)
    both = claims_at_once({"a": one, "b": one})
    assert [found.answer for found in both.values()] == ["different", "different"]
    assert sorted(found.confidence for found in both.values()) == [0.95, 0.975]


@pytest.mark.parametrize(
    ("low", "high", "higher", "outcome"),
    [
        (0.96, 0.98, True, "passed"),  # equal: the loss is told, and smaller than 5 %
        (0.96, 1.2, True, "passed"),  # inconclusive, but no loss of 5 %
        (0.94, 1.2, True, "inconclusive"),
        (0.8, 0.9, True, "failed"),
        (0.8, 1.04, False, "passed"),
        (0.8, 1.06, False, "inconclusive"),
        (1.1, 1.2, False, "failed"),
    ],
)
def test_a_gate_passes_where_a_loss_is_excluded(
    low: float, high: float, higher: bool, outcome: str
) -> None:
    answer = answer_of(low, high, 0.05)
    found = Claim(
        metric="m",
        answer=answer,
        better=(low > 1) == higher if answer == "different" else None,
        ratio=Estimate(value=(low + high) / 2, low=low, high=high),
        threshold=0.05,
    )
    assert outcome_of(found, higher_is_better=higher) == outcome


@pytest.mark.parametrize(
    ("degrees", "level", "expected"),
    [
        (2, 0.05, 4.30265),
        (10, 0.05, 2.22814),
        (30, 0.01, 2.75000),
        (1000, 0.05, 1.96234),
        (120, 0.05, 1.97993),
    ],
)
def test_quantiles_of_students_t(degrees: int, level: float, expected: float) -> None:
    """Tables of the distribution, as in Abramowitz and Stegun, 26.10."""
    assert t_quantile(degrees, level) == pytest.approx(expected, rel=1e-5)
    assert t_two_sided_p(expected, degrees) == pytest.approx(level, rel=1e-4)
    assert t_two_sided_p(0.0, degrees) == pytest.approx(1.0)

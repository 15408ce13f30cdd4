"""Change points of planted sequences; chance is the noise of equal runs."""

from __future__ import annotations

import numpy as np
import pytest

from iobench.ask.compare.changes import can_tell, change_points


def planted(levels: list[float], *, spread: float = 0.02, seed: int = 0) -> list[float]:
    chance = np.random.default_rng(seed)
    return (100 * np.asarray(levels) * chance.lognormal(0, spread, len(levels))).tolist()


@pytest.mark.parametrize(
    ("levels", "at"),
    [
        ([1.0] * 10 + [0.8] * 5 + [1.0] * 10, [10, 15]),  # a dip that no single split tells
        ([1.0] * 10 + [0.8] * 10, [10]),
        ([1.0] * 18 + [0.8] * 2, [18]),
        ([1.0] * 2 + [0.8] * 18, [2]),
        ([1.0] * 5 + [0.3] + [1.0] * 4 + [0.85] * 10, [10]),  # one odd run hides nothing
        ([1.0] * 5 + [0.3] + [1.0] * 14, []),  # and is no change
        ([1.0] * 19 + [0.3], []),
        ([1.0] * 7, []),
        ([1.0], []),
        ([], []),
    ],
)
def test_planted_changes(levels: list[float], at: list[int]) -> None:
    assert [change.at for change in change_points(planted(levels))] == at


def test_runs_that_are_all_the_same_have_no_change() -> None:
    assert change_points([7.0] * 30) == []
    assert [change.at for change in change_points([7.0] * 5 + [8.0] * 5)] == [5]


def test_a_change_below_the_noise_threshold_does_not_count() -> None:
    steady = planted([1.0] * 10 + [0.97] * 10, spread=0.002)
    assert change_points(steady) == []
    assert [change.at for change in change_points(steady, noise=0.0)] == [10]


def test_how_many_runs_can_tell() -> None:
    assert not can_tell(7, 3)
    assert can_tell(8, 4)
    assert not can_tell(8, 3)
    assert can_tell(9, 3)
    assert not can_tell(40, 1)

"""Intervals against what was published, and against the functions that they are said to make
largest or smallest.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analyse.checkpoint.interval import (
    availability_s,
    daly_s,
    overhead,
    waste,
    young_s,
)


@pytest.mark.parametrize(("mtbf_min", "printed"), [(24 * 60, "117"), (6 * 60, "57"), (15, "9.1")])
def test_dalys_own_examples(mtbf_min: float, printed: str) -> None:
    """Figures 3 to 5 of his paper: dumps of 5 minutes, restarts of 10, M of 24 h, 6 h and 15 min:
    117, 57 and 9.1 minutes.
    """
    found = daly_s(5 * 60, mtbf_min * 60) / 60
    assert f"{found:.{printed.count('.')}f}" == printed


def test_a_published_example_of_the_availability() -> None:
    """changlan.org: interrupted every 6,000 s, 600 s to recover, 10 s to save, steps of 15 s: save
    every 24 steps.
    """
    assert round(availability_s(10, 6000, 600) / 15) == 24


@given(mtbf=st.floats(60, 1e7), save=st.floats(1e-5, 2), restart=st.floats(0, 2))
def test_the_interval_of_largest_availability(mtbf: float, save: float, restart: float) -> None:
    """No interval near it has a larger availability, by the function that the docstring states."""
    blocked, down = save * mtbf, restart * mtbf

    def availability(interval: float) -> float:
        period = interval + blocked
        return interval / period * mtbf / (mtbf + down + period / 2)

    best = availability_s(blocked, mtbf, down)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert availability(best) >= availability(best * factor)
    assert availability(best) > max(availability(best / 1.5), availability(best * 1.5))


@given(mtbf=st.floats(60, 1e7), save=st.floats(1e-5, 0.5))
def test_waste_at_dalys_interval_is_within_a_percent_of_the_least(mtbf: float, save: float) -> None:
    """Of the training's whole time, up to a save of half the time between interruptions; Young's
    costs more where saves are long.
    """
    blocked = save * mtbf
    least = min(
        waste(young_s(blocked, mtbf) * 2 ** (step / 64), blocked, mtbf) for step in range(-256, 129)
    )
    found = waste(daly_s(blocked, mtbf), blocked, mtbf)
    assert 1 - found == pytest.approx(1 - least, rel=0.01)
    if save > 0.05:
        assert found < waste(young_s(blocked, mtbf), blocked, mtbf)


@given(
    interval=st.floats(1, 1e5),
    blocked=st.floats(0.01, 1e4),
    mtbf=st.floats(100, 1e8),
    restart=st.floats(0, 1e4),
    exposed=st.floats(0, 1e3),
)
def test_waste_is_a_share_and_grows_with_all_that_is_lost(
    interval: float, blocked: float, mtbf: float, restart: float, exposed: float
) -> None:
    found = waste(interval, blocked, mtbf, restart, exposed)
    assert overhead(interval, blocked) - 1e-6 <= found <= 1
    assert found <= waste(interval, blocked * 1.5, mtbf, restart, exposed) + 1e-9
    assert found <= waste(interval, blocked, mtbf, restart + 100, exposed) + 1e-9
    assert found <= waste(interval, blocked, mtbf, restart, exposed + 100) + 1e-9
    assert found <= waste(interval, blocked, mtbf / 2, restart, exposed) + 1e-9


def test_waste_is_what_a_simulation_of_failures_finds() -> None:
    """A training of 20,000 saves with exponential failures, played through second by second of its
    own clock.
    """
    import random

    interval, blocked, mtbf, restart = 100.0, 10.0, 400.0, 30.0
    generator = random.Random(11)
    clock = 0.0
    for _ in range(20_000):
        while (until := generator.expovariate(1 / mtbf)) < interval + blocked:
            clock += until
            while (again := generator.expovariate(1 / mtbf)) < restart:
                clock += again
            clock += restart
        clock += interval + blocked
    assert waste(interval, blocked, mtbf, restart) == pytest.approx(
        1 - 20_000 * interval / clock, abs=0.01
    )
    assert math.isclose(overhead(interval, blocked), 10 / 110)

"""What a sweep's time budget holds: visits, and the data that they need."""

from __future__ import annotations

import time

import pytest

from iobench.runner.sweeping.visits import _Clock
from iobench.schema.sweep import Sweep, SweepPoint


@pytest.mark.parametrize(
    ("left_s", "generating", "visited", "late"),
    [
        (30.0, False, True, False),
        (30.0, True, True, True),
        (90.0, True, True, False),
        (5.0, False, True, True),
        (30.0, True, False, True),
    ],
)
def test_a_point_whose_data_takes_longer_than_is_left_is_not_begun(
    left_s: float, generating: bool, visited: bool, late: bool
) -> None:
    """10 s a visit, and a minute for 60 MB at a microsecond a byte."""
    known = SweepPoint(settings={"a": 1}, dataset_bytes=60_000_000, seconds=[10.0])
    point = known if visited else SweepPoint(settings={"a": 2}, dataset_bytes=60_000_000)
    sweep = Sweep(
        created="",
        command=[],
        workload="w",
        data_root="d",
        seed=1,
        repetitions=5,
        calibration_s=0,
        axes={"a": [1, 2]},
        points=[known, point],
    )
    clock = _Clock(budget_s=1000.0, started=time.monotonic() - 1000.0 + left_s, pace_s=1e-6)
    assert clock.out_of_time(sweep, point, generating=generating) is late
    assert _Clock(None, 0.0, 1.0).out_of_time(sweep, point, generating=generating) is False


def test_the_time_that_a_sweep_has_left() -> None:
    """As many visits as are missing, each as long as those so far, and no longer than the limit."""
    points = [
        SweepPoint(settings={"a": 1}, runs=["x", "y"], seconds=[10.0, 20.0]),
        SweepPoint(settings={"a": 2}),
        SweepPoint(settings={"a": 3}, failed="it failed"),
    ]
    sweep = Sweep(
        created="",
        command=[],
        workload="w",
        data_root="d",
        seed=1,
        repetitions=5,
        calibration_s=0,
        axes={"a": [1, 2, 3]},
        points=points,
    )
    assert _Clock(None, 0.0).left_s(sweep) == 8 * 15.0
    assert _Clock(1.0, time.monotonic() - 100.0).left_s(sweep) == 0.0
    assert _Clock(None, 0.0).left_s(sweep.model_copy(update={"points": points[1:]})) is None

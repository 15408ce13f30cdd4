"""The storage curve's plateau, knee and bounds are those of planted models."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iobench.judge.figures.curve import (
    bound_at,
    conclude_curve,
    expected_rate,
    has_flattened,
    highest,
    plateau,
    rate_of,
    spent,
)
from iobench.record.curve import CurvePoint, Rate, StorageCurve
from tests.curves import curve, point


def planted(
    latency_s: float,
    limit: float,
    *,
    noise: float = 0.0,
    seed: int = 0,
    size: int = 4096,
    most: int = 256,
) -> list[CurvePoint]:
    """What a probe would measure: windows with noise, until two doublings bring nothing."""
    chance, points, in_flight = random.Random(seed), [], 1
    while in_flight <= most and not has_flattened(points):
        truth = min(in_flight / latency_s, limit)
        windows = [truth * (1 + chance.uniform(-noise, noise)) for _ in range(5)]
        points.append(point(in_flight, rate_of(sum(windows) / 5, windows), size))
        in_flight *= 2
    return points


LATENCIES = st.floats(1e-5, 0.5)
KNEES = st.floats(0.05, 60)
NOISE = st.floats(0.001, 0.02)


@given(LATENCIES, KNEES, NOISE, st.integers(0, 1000))
def test_plateau_and_knee_are_the_planted_ones(
    latency_s: float, knee: float, noise: float, seed: int
) -> None:
    limit = knee / latency_s  # Little's law
    found = plateau(planted(latency_s, limit, noise=noise, seed=seed))
    assert found is not None
    reads, there, at = found
    truth = min(limit, 64 / latency_s)
    # No window errs by more than the noise, so its mean does not.
    assert reads.low * (1 - noise) * (1 - 1e-9) <= truth <= reads.high * (1 + noise) * (1 + 1e-9)
    assert reads.low <= reads.value <= reads.high
    assert there.value == pytest.approx(reads.value * 4096)
    assert knee / 2 <= at <= max(1, 2 * knee)


def test_the_interval_covers_the_plateau_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(400):
        found = plateau(planted(0.01, 1234.0, noise=0.04, seed=seed))
        covered += found[0].low <= 1234.0 <= found[0].high
    assert covered >= 380


@given(LATENCIES, st.floats(300, 1e4))
def test_a_curve_that_still_grows_has_no_plateau(latency_s: float, knee: float) -> None:
    points = planted(latency_s, knee / latency_s)
    found = conclude_curve(curve(points))
    assert plateau(points) is None
    assert (found.plateau_reads_per_s, found.knee_in_flight) == (None, None)
    assert found.not_measured
    assert set(found.bound[:-1]) == {"latency"}
    assert found.bound[-1] == "unknown"  # more reads in flight were not tried
    beyond = expected_rate(points, 512)
    assert beyond.high is None


@given(LATENCIES, KNEES, st.floats(0.1, 500))
def test_expected_rates_follow_littles_law(latency_s: float, knee: float, asked: float) -> None:
    points = planted(latency_s, knee / latency_s)
    found = expected_rate(points, asked)
    truth = min(max(asked, 1.0 if knee < 1 else 0) / latency_s, knee / latency_s)
    if knee < 1:  # one read at a time already waits for the limit
        assert found.value <= truth * (1 + 1e-6)
        return
    powers = [2.0**n for n in range(10)]
    below = max((power for power in powers if power <= asked), default=1.0)
    if below <= knee < 2 * below:  # between two points around the knee it is a lower bound
        assert found.value <= truth * (1 + 1e-6)
        assert found.value >= 0.6 * truth
    else:
        assert found.value == pytest.approx(truth, rel=1e-6)


RATES = st.one_of(
    st.just(Rate(value=0.0)),
    st.floats(0, 1e9).map(lambda value: Rate(value=value)),
    st.tuples(st.floats(0, 1e9), st.lists(st.floats(0, 1e9), max_size=6)).map(
        lambda found: rate_of(*found)
    ),
)
POINTS = st.lists(st.builds(point, st.integers(1, 300), RATES, client=st.booleans()), max_size=8)


@given(POINTS, POINTS, st.sampled_from([0.5, 1, 3, 17, 256, 1e6]))
@example([point(1, Rate(value=5e-324))], [], 0.5)
@example([point(1, Rate(value=5e-324)), point(4, Rate(value=1.0))], [], 3)
def test_odd_points_are_no_error(
    points: list[CurvePoint], others: list[CurvePoint], in_flight: float
) -> None:
    mine, large = conclude_curve(curve(points)), conclude_curve(curve(others, 1 << 22))
    concluded = conclude_curve(mine, large)
    assert len(concluded.bound) == len(points)
    assert (concluded.plateau_reads_per_s is None) == bool(concluded.not_measured)
    assert spent(mine, large) in {"operations", "bandwidth", "unknown"}
    assert bound_at(mine, in_flight, None) != "bandwidth"
    found = expected_rate(points, in_flight)
    if found is not None:
        assert math.isfinite(found.value)
        assert (found.low or 0) <= found.value * (1 + 1e-9)


def _limited(size: int, iops: float, bytes_per_s: float) -> StorageCurve:
    points = planted(0.005, min(iops, bytes_per_s / size), noise=0.01, size=size)
    return conclude_curve(curve(points, size))


@pytest.mark.parametrize(
    ("iops", "bytes_per_s", "bound"),
    [
        (400, 1e9, "operations"),  # 400 reads of 4 KiB are 1.6 MB/s of 1 GB/s
        (1e4, 20e6, "bandwidth"),  # 20 MB/s in small requests as in large ones
    ],
)
def test_two_curves_tell_operations_from_bytes(iops: float, bytes_per_s: float, bound: str) -> None:
    small, large = _limited(4096, iops, bytes_per_s), _limited(1 << 22, iops, bytes_per_s)
    assert spent(small, large) == bound
    knee = small.knee_in_flight
    assert knee > 1
    assert bound_at(small, knee / 2, large) == "latency"
    assert bound_at(small, knee, large) == bound
    assert bound_at(small, 10 * knee, large) == bound
    assert bound_at(small, knee, None) == "operations or bandwidth"


@pytest.mark.parametrize(
    ("opens", "found"),
    [(400, "metadata"), (460, "metadata"), (600, "operations"), (4000, "operations")],
)
def test_opens_alone_tell_metadata_from_other_operations(opens: float, found: str) -> None:
    """400 whole files a second: is it because no more are opened?"""
    whole, smaller = _limited(112 << 10, 400, 1e9), _limited(4096, 400, 1e9)
    alone = conclude_curve(curve(planted(0.005, opens, noise=0.01, size=1), 1))
    assert spent(whole, smaller, alone) == found
    knee = whole.knee_in_flight or 0
    assert bound_at(whole, knee / 2, smaller, alone) == "latency"
    assert bound_at(whole, knee, smaller, alone) == found
    # Bytes that are spent are, however long an open takes.
    full = _limited(112 << 10, 1e5, 20e6)
    assert spent(full, _limited(4096, 1e5, 20e6), alone) == "bandwidth"


@pytest.mark.parametrize(
    ("iops", "bytes_per_s", "bound"), [(400, 1e9, "operations"), (1e5, 20e6, "bandwidth")]
)
def test_smaller_requests_tell_it_where_the_objects_are_small(
    iops: float, bytes_per_s: float, bound: str
) -> None:
    """Files of 112 KiB hold no large requests, but their first 4 KiB are a smaller one."""
    whole = _limited(112 << 10, iops, bytes_per_s)
    smaller = _limited(4096, iops, bytes_per_s)
    assert spent(whole, smaller) == bound
    assert bound_at(whole, 10 * (whole.knee_in_flight or 0), smaller) == bound
    client = smaller.model_copy(
        update={"points": [each.model_copy(update={"client": True}) for each in smaller.points]}
    )
    # Then the storage could do more small reads, so only that it can do more is certain.
    assert spent(whole, client) == ("unknown" if bound == "operations" else bound)


@pytest.mark.parametrize(
    ("size", "other", "bound"),
    [
        (64 << 10, 4 << 10, "operations"),  # bytes would be 16 times the reads/s
        (1000 << 10, 1 << 20, "bandwidth"),  # its own requests are large ones
        (64 << 10, 32 << 10, "unknown"),  # twice the reads/s is no further than the intervals
    ],
)
def test_short_windows_tell_where_the_sizes_are_far_apart(
    size: int, other: int, bound: str
) -> None:
    """Intervals of +-35 %, as a throttle that works in slices of 100 ms gives them."""
    found = [
        conclude_curve(curve(planted(0.005, 250.0, noise=0.35, size=each), each))
        for each in (size, other)
    ]
    if bound == "bandwidth":  # as many bytes/s, not as many reads/s
        found[1] = conclude_curve(
            curve(planted(0.005, 250.0 * size / other, noise=0.35, size=other), other)
        )
    assert spent(*found) == bound


def lucky(windows: int) -> StorageCurve:
    """The second point is far above all others, in its only windows."""
    rates = [(1, 230.0), (2, 860.0), (4, 400.0), (8, 511.0), (16, 600.0), (32, 690.0), (64, 828.0)]
    return curve([point(n, Rate(value=rate, windows=windows), 110_000) for n, rate in rates])


def test_one_lucky_window_is_no_plateau_and_not_the_best_point() -> None:
    """No slow read fell into it: no point with more reads in flight is as fast."""
    found = conclude_curve(lucky(1))
    assert found.knee_in_flight is None
    best = highest(found.points)
    assert best.in_flight == 64
    expected = expected_rate(found.points, 2)
    assert 230 < expected.value < 400  # between its neighbours
    assert found.bound[3] == "latency"  # more reads in flight bring more


def test_a_point_of_two_windows_does_not_decide_the_plateau() -> None:
    """The first one, of slow reads, seems to be faster than the storage can be."""
    rates = [(1, 276.0, 2), (2, 198.0, 5), (4, 200.0, 5), (8, 201.0, 5)]
    points = [
        point(in_flight, Rate(value=value, low=value - 4, high=value + 4, windows=windows), 65536)
        for in_flight, value, windows in rates
    ]
    found = conclude_curve(curve(points))
    assert found.plateau_reads_per_s.value == pytest.approx(200, rel=0.01)
    assert found.knee_in_flight == 2


def _without_interval(points: list[CurvePoint], size: int = 4096) -> list[CurvePoint]:
    return [
        point(each.in_flight, Rate(value=each.reads_per_s.value, windows=1), size)
        for each in points
    ]


@given(LATENCIES, KNEES, NOISE, st.integers(0, 1000), st.integers(0, 8))
def test_an_unknown_interval_stays_unknown(
    latency_s: float, knee: float, noise: float, seed: int, which: int
) -> None:
    """One point of the plateau, or none of the points, has an interval; one of width zero, as
    records of earlier versions have it, is none.
    """
    points = planted(latency_s, knee / latency_s, noise=noise, seed=seed)
    near = max(points, key=lambda each: each.reads_per_s.value)
    one = near.reads_per_s.model_copy(update={"low": near.reads_per_s.value, "high": None})
    flat = one.model_copy(update={"high": near.reads_per_s.value})
    for unknown in (one, flat):
        mixed = [point(p.in_flight, unknown) if p is near else p for p in points]
        found = plateau(mixed)
        assert (found[0].low, found[0].high) == (None, None)
        asked = expected_rate(mixed, near.in_flight)
        assert (asked.low, asked.high) == (None, None)
    concluded = conclude_curve(curve(_without_interval(points)))
    for rate in (concluded.plateau_reads_per_s, concluded.plateau_bytes_per_s):
        assert (rate.low, rate.high) == (None, None)
    for asked_for in (1, 3, which + 0.5, 500):
        rate = expected_rate(concluded.points, asked_for)
        assert (rate.low, rate.high) == (None, None)

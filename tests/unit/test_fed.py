"""Accelerators fed: what wins, the interval, and more ranks than were measured."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.judge import fed as feeding
from iobench.judge.evidence import Bottleneck, Decision
from iobench.judge.figures.curve import conclude_curve, rate_of
from iobench.judge.figures.instep import OwnStepTimes, at_more_ranks, step_times
from iobench.judge.judged import judge
from iobench.judge.rebuild import conclude
from iobench.record.curve import StorageCurve
from iobench.record.run import TrainingRecord
from iobench.record.training import Ceiling, CeilingDetails, FindMax
from iobench.record.verdict import Estimate, Fed, FedAt, RunCurve
from tests import curves
from tests.curves import point
from tests.unit.conftest import build_events, build_run
from tests.unit.test_find_max import point as tried

PUBLISHED = Path(__file__).parent.parent / "published" / "unet3d_h100_411_ranks.npz"
SIZE = 100_000
"""Bytes of a sample, and of a read."""


def curve_of(
    rate: float, *, latency_s: float = 0.001, points: int = 8, spread: float = 0.02
) -> StorageCurve:
    """A storage of ``rate`` reads/s that takes ``latency_s`` for each."""
    found = []
    for number in range(points):
        reached = min(2**number / latency_s, rate)
        windows = [reached * (1 - spread), reached, reached * (1 + spread)]
        found.append(point(2**number, rate_of(reached, windows), SIZE))
    return conclude_curve(curves.curve(found, SIZE))


def with_curve(doc: TrainingRecord, curve: StorageCurve, in_flight: float = 64.0) -> TrainingRecord:
    most = max(each.reads_per_s.value for each in curve.points)
    details = CeilingDetails(read_bytes_per_sample=float(SIZE))
    raw = Ceiling(samples_per_s=most, by="fio", details=details)
    return doc.with_job(
        curve=RunCurve(curve=curve, in_flight=in_flight),
        ceilings=doc.job.ceilings | {"storage_raw": raw},
    )


def fed(doc: TrainingRecord, bottleneck: Bottleneck = "prep") -> Fed:
    """The number for a run of which this is the bottleneck."""
    return feeding.fed(replace(judge(doc), decision=Decision(bottleneck=bottleneck)))


def test_the_plateau_over_the_required_demand() -> None:
    """Two accelerators of 1,000 samples/s at 90 %: 5,000 samples/s feed five of them."""
    found = fed(with_curve(build_run(), curve_of(5000.0)))
    assert (found.accelerators, found.basis) == (5, "plateau")
    assert found.low == 5  # 4,750 / 900
    assert found.high == 5
    assert found.reads_in_flight == 8  # 5,000/s x 1 ms is five, and eight was tried
    wide = fed(with_curve(build_run(), curve_of(5000.0, spread=0.1)))
    assert (wide.low, wide.accelerators, wide.high) == (4, 5, 6)


def test_the_jobs_own_reader_says_what_its_reads_in_flight_bring() -> None:
    """The fetch ceiling is that of the same reads, in a longer time: both figures come from it."""
    found = fed(with_curve(build_run(rates={"fetch": 3000.0}), curve_of(5000.0), in_flight=2.0))
    assert (found.today, found.accelerators) == (3, 5)
    more = fed(with_curve(build_run(rates={"fetch": 7000.0}), curve_of(5000.0), in_flight=2.0))
    assert (more.today, more.accelerators) == (7, 7)


def test_the_fetch_ceiling_stands_in_with_its_interval() -> None:
    doc = build_run(rates={"fetch": 4000.0})
    plain = fed(doc)
    assert (plain.accelerators, plain.low, plain.high, plain.basis) == (4, None, None, "fetch")
    windows = Estimate(value=4000.0, low=3500.0, high=4600.0, n=5)
    fetch = doc.job.ceilings["fetch"].model_copy(update={"windows": windows})
    found = fed(doc.with_job(ceilings=doc.job.ceilings | {"fetch": fetch}))
    assert (found.low, found.accelerators, found.high) == (3, 4, 5)


def test_a_search_wins_over_every_model() -> None:
    search = FindMax(required_accelerator_utilization=0.9, accelerators=7, low=6, high=8, points=[])
    found = fed(with_curve(build_run(find_max=search), curve_of(11_000.0)))
    assert (found.low, found.accelerators, found.high) == (6, 7, 8)
    assert found.basis == "find-max"
    ended = search.model_copy(update={"bound": "the dataset has too few samples"})
    found = fed(with_curve(build_run(find_max=ended), curve_of(11_000.0)))
    assert (found.low, found.accelerators, found.high) == (6, 7, None)


@pytest.mark.parametrize(("failed", "high"), [(1, None), (2, 5)])
def test_a_number_that_failed_twice_is_too_many_although_the_time_was_used_up(
    failed: int, high: int | None
) -> None:
    passed = [tried(5, trial, 0.95) for trial in range(2)]
    tries = [*passed, *(tried(6, trial, 0.7) for trial in range(failed))]
    search = FindMax(
        required_accelerator_utilization=0.9,
        accelerators=5,
        low=5,
        high=5,
        points=tries,
        bound="the budget had no time for another try",
    )
    found = fed(build_run(find_max=search))
    assert (found.low, found.accelerators, found.high) == (5, 5, high)


def test_starved_ranks_are_more_than_the_storage_feeds() -> None:
    """The curve says 5, but two accelerators starve because of the storage."""
    doc = with_curve(build_run(measured=1400.0, au=0.7), curve_of(5000.0))
    found = fed(doc, "storage")
    assert (found.accelerators, found.low, found.high, found.today) == (1, 1, 1, 1)
    assert found.potential is None
    perhaps = fed(doc, "undecided")  # it can't be told what is too slow
    assert (perhaps.accelerators, perhaps.low) == (found.accelerators, found.low)
    other = fed(doc)  # another stage is too slow
    assert (perhaps.high or 0) >= (other.accelerators or 0) > (found.high or 0)
    assert other.accelerators == 5


def test_a_storage_that_may_not_be_to_blame_could_feed_what_it_delivers_alone() -> None:
    """One window has no interval: 4,000 samples/s are 4 accelerators, of which 2 starve."""
    found = fed(build_run(measured=1400.0, au=0.7), "undecided")
    assert (found.accelerators, found.low, found.high) == (1, 0, 4)


# More ranks than were measured


def published() -> tuple[np.ndarray[Any, Any], float]:
    with np.load(PUBLISHED) as file:
        return file["own_step_10us"].astype(np.float64) / 1e5, 0.323


@pytest.mark.parametrize("seed", range(2))
def test_411_published_ranks_from_8_of_them(seed: int) -> None:
    """8 ranks and 120 steps: utilization of 411 ranks within 0.01 of that of all."""
    own_s, busy_s = published()
    truth = busy_s / own_s.max(axis=0).mean()  # a barrier after each step
    some = np.random.default_rng(seed).choice(len(own_s), 8, replace=False)
    (found,) = at_more_ranks([OwnStepTimes(own_s[some], busy_s)], ranks=(411,))
    utilization = found.accelerator_utilization
    assert utilization.value == pytest.approx(truth, abs=0.01)
    alone = busy_s / own_s.mean()
    assert utilization.value < alone - 0.01, "a barrier of 411 ranks costs more than the tolerance"
    # The interval is that of which steps were drawn; it does not know the ranks that were not.
    assert utilization.low <= truth + 0.005


def test_the_mean_of_the_slowest_is_exact() -> None:
    """Two values, equally often: a step is fast only if all of its ranks draw the fast one."""
    own_s = np.tile([1.0, 2.0], (16, 512))
    (found,) = at_more_ranks([OwnStepTimes(own_s, 1.0)], ranks=(3,))
    assert found.accelerator_utilization.value == pytest.approx(1 / (2 - 0.5**3))


def test_merged_rows_have_no_step_times() -> None:
    rows = [{"step": 2 * step, "steps": 2, "busy": 1.0} for step in range(4)]
    assert step_times(build_events(rows), round_steps=1) == []


def test_more_ranks_are_limited_by_the_storage_too() -> None:
    """In step, 64 ranks lose 5 %, but storage for 55 of them does not feed 64."""
    doc = build_run(
        accelerators=1,
        measured=970.0,
        au=0.97,
        repetition={
            "at_more_ranks": [
                FedAt(
                    ranks=number,
                    accelerator_utilization=Estimate(value=0.95, low=0.93, high=0.96, n=40),
                    fed=None,
                    how="extrapolated",
                )
                for number in (8, 64)
            ]
        },
    )
    own, few, many = fed(with_curve(doc, curve_of(50_000.0, points=9))).at
    assert (own.ranks, own.how, own.fed) == (1, "measured", True)
    assert (few.ranks, few.fed) == (8, True)
    assert (many.ranks, many.fed) == (64, False)
    assert many.accelerator_utilization.value == pytest.approx(50 / 64)
    alone = fed(doc).at[1]  # storage for four, by its fetch ceiling without an interval
    assert alone.accelerator_utilization.value == pytest.approx(4 / 8)
    wide = Estimate(value=4000.0, low=0.0, high=9000.0, n=2)  # of two windows that differ
    fetch = doc.job.ceilings["fetch"].model_copy(update={"windows": wide})
    doc = doc.with_job(ceilings=doc.job.ceilings | {"fetch": fetch})
    assert fed(doc).at[1].accelerator_utilization.low == 0


def test_accelerators_fed_are_a_property_of_the_storage() -> None:
    """100,000 reads/s in all, 8 in flight for each rank, which takes 0.9 x 500 samples/s: how many
    it could feed does not depend on how many ranks asked. With so few reads in flight it feeds
    fewer than these.
    """
    could = set()
    for ranks in (1, 2, 4, 8):
        doc = build_run(
            accelerators=ranks,
            rates={"fetch": 400 * ranks, "prep": 1e5, "loader": 1e5},
            measured=400 * ranks,
            au=0.8,
            workload={"accelerator": {"kind": "emulated", "name": "h", "step_time": 0.2}},
        )
        doc = with_curve(doc, curve_of(100_000.0, points=9), in_flight=8 * ranks)
        found = conclude(doc).job.verdict.fed
        assert found.accelerators < ranks
        could.add(found.potential)
    assert could == {math.floor(100_000 / (0.9 * 500))}


@pytest.mark.parametrize(("shared", "high"), [(True, 0.67), (False, 0.1)])
def test_ranks_that_wait_at_the_same_time_widen_what_more_of_them_may_have(
    shared: bool, high: float
) -> None:
    """Of 4 ranks with steps of 0.1 s, one step in 20 waits for a second: in all, or in any."""
    chance = np.random.default_rng(1)
    waits = (chance.random((1 if shared else 4, 2000)) < 0.05) * 1.0
    steps = OwnStepTimes(0.1 + np.repeat(waits, 4 if shared else 1, axis=0), 0.1)
    [found] = at_more_ranks([steps], ranks=(64,))
    assert found.accelerator_utilization.value == pytest.approx(0.094, abs=0.01)
    assert found.accelerator_utilization.high == pytest.approx(high, abs=0.03)

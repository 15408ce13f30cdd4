"""Figures from small timelines, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.ask.compare.runs import values_of
from iobench.judge.figures.metrics import repetition_metrics, uncounted_reads
from iobench.judge.figures.rates import lasting_fall, steady_from
from iobench.judge.figures.windows import ceiling_from_events
from iobench.judge.rebuild import rebuild
from iobench.judge.validity import evaluate
from iobench.record.training import (
    MAX_BINS,
    Ceiling,
    CeilingDetails,
    CeilingWindow,
    Epoch,
    FindMax,
    Rates,
    Repetition,
)
from iobench.settings.workload import Subject
from tests.unit.conftest import build_events, build_run
from tests.unit.test_find_max import point


def context(startup_s: float | None = None, **more: Any) -> Repetition:
    return Repetition.model_validate(
        {"seed": 1, "accelerators": 1, "epochs": [Epoch(epoch=0, startup_s=startup_s)]} | more
    )


def test_one_rank_one_epoch() -> None:
    # Asked at 0, got at 2 (1 s of it start-up), busy 1; then waits of 0.5 and 0, busy 1 each: the
    # epoch ends at 5.5 s.
    ten = {"busy": 1, "samples": 10, "bytes_read": 1100, "sample_bytes": 1000}
    seven = {"busy": 1, "samples": 7, "bytes_read": 800, "sample_bytes": 700}
    events = build_events(
        [
            {"step": 0, "start": 0, "wait": 2, **ten},
            {"step": 1, "start": 3, "wait": 0.5, **ten},
            {"step": 2, "start": 4.5, "wait": 0, **seven},
        ]
    )
    found = repetition_metrics(events, context(1.0, cpu_s=3.0))
    assert (found.samples, found.steps, found.bytes_read, found.sample_bytes) == (27, 3, 3000, 2700)
    assert found.wall_s == pytest.approx(5.5)
    assert found.samples_per_s == pytest.approx(6.0)  # 27 / (5.5 - 1)
    assert found.read_bytes_per_s == pytest.approx(3000 / 4.5)
    assert found.read_amplification == pytest.approx(3000 / 2700)
    assert found.requests_per_sample is None
    assert found.busy_s == pytest.approx(3.0)
    assert found.wait_s == pytest.approx(2.5)
    assert found.accelerator_utilization == pytest.approx(0.8)  # 2 s busy from 3.0 to 5.5
    assert found.accelerator_utilization_sustained == pytest.approx(
        3 / 4.5
    )  # the second of process creation left out, no more
    assert found.accelerator_utilization_strict == pytest.approx(3 / 5.5)
    assert found.time_to_first_batch_s == pytest.approx(2.0)
    assert found.wait_p50_s == pytest.approx(0.0)
    assert found.wait_p99_s == pytest.approx(0.5)
    assert found.cpu_s == 3.0
    assert set(found.not_measured) == {"requests_per_sample"}


def test_lateness_reaches_the_clock_once() -> None:
    # Each step wakes 0.1 s late and the next one makes up for it: 3 steps of 1 s end at 3.1 s.
    events = build_events(
        [{"step": i, "start": s, "busy": 1, "late": 0.1} for i, s in enumerate((0.0, 1.1, 2.1))]
    )
    found = repetition_metrics(events, context())
    assert found.wall_s == pytest.approx(3.1)
    assert found.accelerator_utilization == pytest.approx(1.0)
    assert found.late_p99_s == pytest.approx(0.1)
    assert found.late_left_s == pytest.approx(0.1)
    merged = build_events(
        [
            {"step": 0, "start": 0, "busy": 1, "late": 0.1},
            {"step": 1, "steps": 2, "start": 1.1, "busy": 2, "late": 0.2},
        ]
    )
    again = repetition_metrics(merged, context())
    assert [each.steps for each in again.epochs] == [3]
    assert (again.wall_s, again.late_left_s) == pytest.approx((found.wall_s, found.late_left_s))


STEPS = st.lists(
    st.tuples(st.integers(0, 10**7), st.integers(10**6, 10**8), st.integers(1, 50)),
    min_size=4,
    max_size=20,
)


def timeline(steps: list[tuple[int, int, int]], rank: int = 0) -> list[dict[str, Any]]:
    rows, now = [], 0
    for index, (wait, busy, samples) in enumerate(steps):
        times = {"start_ns": now, "wait_ns": wait, "busy_ns": busy}
        sizes = {"samples": samples, "sample_bytes": samples * 10, "bytes_read": samples * 11}
        rows.append({"step": index, "rank": rank, **sizes, **times})
        now += wait + busy
    return rows


@given(STEPS, st.integers(1, 4))
def test_merging_rows_changes_no_sum(steps: list[tuple[int, int, int]], cut: int) -> None:
    rows = timeline(steps)
    first, rest = rows[0], rows[1:]
    sums = ("wait_ns", "busy_ns", "samples", "sample_bytes", "bytes_read")
    groups = [rest[i : i + cut] for i in range(0, len(rest), cut)]
    merged = [
        group[0] | {"steps": len(group)} | {name: sum(row[name] for row in group) for name in sums}
        for group in groups
    ]
    fine = repetition_metrics(build_events(rows), context())
    coarse = repetition_metrics(build_events([first, *merged]), context())
    for name in (
        *("samples", "steps", "bytes_read", "wall_s", "busy_s", "wait_s", "time_to_first_batch_s"),
        *("samples_per_s", "read_bytes_per_s"),
        *("accelerator_utilization", "accelerator_utilization_strict"),
    ):
        assert getattr(coarse, name) == pytest.approx(getattr(fine, name)), name
    assert coarse.wait_p50_s <= max(row["wait_ns"] for row in rows) / 1e9


def test_a_ceiling_is_rated_over_whole_rounds_of_workers() -> None:
    # Two workers finish together: batches come in pairs, at 4 s, 5 s, 6 s and 7 s. The first pair
    # paid for a slow start.
    ends = [4, 4, 5, 5, 6, 6, 7, 7]
    starts = [0, *ends[:-1]]
    rows = [
        {"step": n, "start": a, "wait": b - a, "samples": 10, "sample_bytes": 50}
        for n, (a, b) in enumerate(zip(starts, ends, strict=False))
    ]
    assert ceiling_from_events(build_events(rows), context(0.0), round_steps=2) == (
        pytest.approx(20.0),
        pytest.approx(100.0),
    )
    # So few pairs after the first one may have been read with it: from the first read on.
    assert ceiling_from_events(build_events(rows[:6]), context(1.0), round_steps=2) == (
        pytest.approx(60 / 5),
        pytest.approx(300 / 5),
    )


def test_rebuild_finds_every_figure_again() -> None:
    sizes = {"samples": 100, "bytes_read": 10**7, "sample_bytes": 10**7}
    measure = [{"step": i, "start": 1.25 * i, "wait": 0.25, "busy": 1, **sizes} for i in range(4)]
    fetch = [row | {"phase": "calibrate.fetch", "busy": 0, "wait": 1.25} for row in measure]
    slower = [row | {"repetition": 1, "start": 2.5 * i, "wait": 2.5} for i, row in enumerate(fetch)]
    search = [row | {"phase": "find-max.3", "busy": 1.25, "wait": 0} for row in measure]
    events = build_events(measure + fetch + slower + search)
    doc = build_run(accelerators=1, repetitions=1, concluded=False)
    window = CeilingWindow(seconds=5.0, startup_s=[1.0], cpu_s=0.02)
    other = window.model_copy(update={"startup_s": [0.0]})
    details = CeilingDetails(windows=[window, other], round_steps=3)
    ceilings = doc.job.ceilings | {
        "fetch": Ceiling(samples_per_s=1, bytes_per_s=1, cpu_s_per_gb=9, details=details)
    }
    stale = [point(3, 0, 0.1)]
    found = FindMax(required_accelerator_utilization=0.9, accelerators=None, points=stale)
    again = rebuild(doc.with_job(ceilings=ceilings, find_max=found), events)
    fetched = again.job.ceilings["fetch"]
    # 400 in 5 s less 1 s of start-up, and 400 in 10 s
    rates = [each.samples_per_s for each in fetched.details.windows]
    assert rates == [pytest.approx(100.0), pytest.approx(40.0)]
    assert fetched.samples_per_s == pytest.approx(70.0)
    assert fetched.bytes_per_s == pytest.approx(7e6)
    assert fetched.cpu_s_per_gb == pytest.approx(0.5)  # 0.02 s for 0.04 GB
    assert again.job.ceilings["prep"] == doc.job.ceilings["prep"]
    assert again.job.repetitions[0].samples == 400
    assert again.metrics["accelerator_utilization"].median == pytest.approx(0.8)
    assert again.job.find_max.accelerators == 3
    assert again.job.find_max.points[0].accelerator_utilization == pytest.approx(1.0)
    assert rebuild(again, events) == again


def test_what_a_library_reads_is_not_measured() -> None:
    """Its events carry the samples' stored bytes in the place of reads; a document rebuilt from
    them must not take these for reads.
    """
    rows = [
        {"step": n, "start": n, "wait": 0.5, "busy": 0.5, "bytes_read": 1000, "sample_bytes": 1000}
        for n in range(4)
    ]
    unseen = {"not_measured": uncounted_reads(Subject(kind="webdataset"))}
    few = {"workload": {"epochs": 1}, "dataset": {"samples": 4}}
    doc = build_run(
        loader={"kind": "webdataset"},
        repetitions=1,
        repetition=unseen,
        quiet=context(0.0, **unseen),
        **few,
    )
    again = rebuild(doc, build_events(rows + [row | {"phase": "quiet"} for row in rows]))
    for one in (again.job.repetitions[0], again.job.quiet):
        assert (one.bytes_read, one.read_amplification, one.sample_bytes) == (None, None, 4000)
        assert (
            "webdataset" in one.not_measured["bytes_read"] == one.not_measured["read_amplification"]
        )
        assert one.read_bytes_per_s is not None
    assert again.job.quiet.read_bytes_per_s == pytest.approx(1000.0)
    assert "read_amplification" not in again.metrics
    assert not {"read.amplification", "data.mismatch"} & {
        finding.rule for finding in evaluate(again)
    }
    assert values_of(again, "read_bytes_per_s") == []
    assert values_of(again, "samples_per_s") != []


# The rate of each second of a repetition, its steady state, and a lasting fall


def rates(values: Sequence[float], bin_s: float = 1.0) -> Rates:
    return Rates(bin_s=bin_s, samples_per_s=list(values), stored_bytes_per_s=list(values))


def steps(
    seconds: Sequence[float], *, rank: int = 0, epoch: int = 0, begin: float = 0.0, **more: Any
) -> list[dict[str, Any]]:
    """Steps of a rank that last these seconds each, with 10 samples of 100 bytes."""
    starts = accumulate(seconds, initial=begin)
    every = {"rank": rank, "epoch": epoch, "samples": 10, "sample_bytes": 1000, **more}
    return [
        every | {"step": number, "start": start, "wait": length}
        for number, (start, length) in enumerate(zip(starts, seconds, strict=False))
    ]


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

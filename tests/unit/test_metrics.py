"""Figures from small timelines, worked out by hand."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.ask.compare.runs import values_of
from iobench.base.documents import json_text
from iobench.judge.figures.metrics import repetition_metrics, uncounted_reads
from iobench.judge.figures.windows import ceiling_from_events, pooled
from iobench.judge.rebuild import rebuild
from iobench.judge.validity import evaluate
from iobench.record.run import TrainingRecord
from iobench.record.training import (
    Ceiling,
    CeilingDetails,
    CeilingWindow,
    Epoch,
    FindMax,
    FindMaxPoint,
    Repetition,
)
from iobench.settings.workload import Subject
from tests.reports import run_csv
from tests.unit.conftest import build_events, build_run


def context(startup_s: float | None = None, **more: Any) -> Repetition:
    return Repetition.model_validate(
        {"seed": 1, "accelerators": 1, "epochs": [Epoch(epoch=0, startup_s=startup_s)]} | more
    )


def test_steps_of_each_epoch() -> None:
    """Two ranks; a row of merged steps counts each of them."""
    rows = [
        {"rank": rank, "epoch": epoch, "step": 0, "steps": steps, "busy": 1}
        for rank in (0, 1)
        for epoch, steps in ((0, 3), (1, 1))
    ]
    two = {"accelerators": 2, "epochs": [Epoch(epoch=0), Epoch(epoch=1)]}
    found = repetition_metrics(build_events(rows), context(**two))
    assert [epoch.steps for epoch in found.epochs] == [6, 2]
    assert found.steps == 8


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


def test_what_was_prefetched_in_the_first_step_flatters_no_sustained_utilization() -> None:
    # Four batches arrive together after 4 s and are then consumed without a wait: 4 s busy in 8 s,
    # whatever the first step hides.
    rows = [{"step": 0, "start": 0, "wait": 4, "busy": 1}] + [
        {"step": n, "start": 4 + n, "wait": 0, "busy": 1} for n in (1, 2, 3)
    ]
    found = repetition_metrics(build_events(rows), context(0.0))
    assert found.accelerator_utilization == pytest.approx(1.0)
    assert found.accelerator_utilization_sustained == pytest.approx(0.5)


def test_ranks_and_epochs() -> None:
    # Epoch 0: rank 0 ends at 3, rank 1 at 4. Epoch 1: both end at 2. AU: rank 0 (1+1)/(1+1), rank 1
    # (1+1)/(2+1).
    rows = [
        {"epoch": 0, "rank": 0, "step": 0, "start": 0, "wait": 1, "busy": 1},
        {"epoch": 0, "rank": 0, "step": 1, "start": 2, "wait": 0, "busy": 1},
        {"epoch": 0, "rank": 1, "step": 0, "start": 0, "wait": 1, "busy": 1},
        {"epoch": 0, "rank": 1, "step": 1, "start": 2, "wait": 1, "busy": 1},
        {"epoch": 1, "rank": 0, "step": 0, "start": 0, "wait": 0, "busy": 1},
        {"epoch": 1, "rank": 0, "step": 1, "start": 1, "wait": 0, "busy": 1},
        {"epoch": 1, "rank": 1, "step": 0, "start": 0, "wait": 0, "busy": 1},
        {"epoch": 1, "rank": 1, "step": 1, "start": 1, "wait": 0, "busy": 1},
    ]
    found = repetition_metrics(build_events(rows), context())
    assert found.wall_s == pytest.approx(6.0)  # 4 + 2
    assert found.samples_per_s == pytest.approx(8 / 6)
    assert found.busy_s == pytest.approx(4.0)
    assert found.wait_s == pytest.approx(1.5)  # (1 + 2) / 2 ranks
    assert found.accelerator_utilization == pytest.approx((1 + 2 / 3) / 2)
    assert found.accelerator_utilization_strict == pytest.approx(4 / 6)
    reordered = {name: column[::-1] for name, column in build_events(rows).items()}
    assert repetition_metrics(reordered, context()) == found


def test_rate_counts_every_sample_over_all_the_time() -> None:
    """The reference benchmark divided n - 2 steps by a window that begins after the first step, in
    which workers had read ahead.
    """
    # Six batches of 4. The first wait of 4 s brings five batches at once; all is over after 6 s of
    # which 0 was busy.
    waits = [4.0, 0.0, 0.0, 0.0, 0.0, 2.0]
    starts = [0.0, 4.0, 4.0, 4.0, 4.0, 4.0]
    events = build_events(
        [
            {"step": i, "start": s, "wait": w, "samples": 4}
            for i, (s, w) in enumerate(zip(starts, waits, strict=True))
        ]
    )
    assert repetition_metrics(events, context()).samples_per_s == pytest.approx(
        4.0
    )  # 24 in 6 s; the odd window says 16 / 2 s = 8


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


def test_ceiling_is_the_rate_from_the_first_read_to_the_last_batch() -> None:
    events = build_events(
        [
            {"step": 0, "wait": 3, "samples": 5, "sample_bytes": 500},
            {"step": 1, "start": 3, "wait": 2, "samples": 5, "sample_bytes": 500},
        ]
    )
    assert ceiling_from_events(events, context(1.0)) == (pytest.approx(2.5), pytest.approx(250.0))
    assert ceiling_from_events(build_events([]), context()) == (None, None)


def test_a_ceiling_is_rated_over_whole_rounds_of_workers() -> None:
    # Two workers finish together: batches come in pairs, at 4 s, 5 s and 6 s. The first pair paid
    # for a slow start.
    ends = [4, 4, 5, 5, 6, 6]
    starts = [0, *ends[:-1]]
    rows = [
        {"step": n, "start": a, "wait": b - a, "samples": 10, "sample_bytes": 50}
        for n, (a, b) in enumerate(zip(starts, ends, strict=False))
    ]
    assert ceiling_from_events(build_events(rows), context(0.0), round_steps=2) == (
        pytest.approx(20.0),
        pytest.approx(100.0),
    )
    # One pair alone can only be rated from the first read on.
    assert ceiling_from_events(build_events(rows[:2]), context(1.0), round_steps=2) == (
        pytest.approx(20 / 3),
        pytest.approx(100 / 3),
    )


def test_rebuild_finds_every_figure_again() -> None:
    sizes = {"samples": 100, "bytes_read": 10**7, "sample_bytes": 10**7}
    measure = [{"step": i, "start": 1.25 * i, "wait": 0.25, "busy": 1, **sizes} for i in range(4)]
    fetch = [row | {"phase": "calibrate.fetch", "busy": 0, "wait": 1.25} for row in measure]
    search = [row | {"phase": "find-max.3", "busy": 1.25, "wait": 0} for row in measure]
    events = build_events(measure + fetch + search)
    doc = build_run(accelerators=1, repetitions=1, concluded=False)
    window = CeilingWindow(seconds=5.0, startup_s=[1.0], cpu_s=0.02)
    details = CeilingDetails(windows=[window], round_steps=3)
    ceilings = doc.job.ceilings | {
        "fetch": Ceiling(samples_per_s=1, bytes_per_s=1, cpu_s_per_gb=9, details=details)
    }
    stale = FindMaxPoint(
        accelerators=3,
        accelerator_utilization=0.1,
        samples_per_s=1,
        read_bytes_per_s=1,
        passed=False,
        steps=1,
    )
    found = FindMax(required_accelerator_utilization=0.9, accelerators=None, points=[stale])
    again = rebuild(doc.with_job(ceilings=ceilings, find_max=found), events)
    assert again.job.ceilings["fetch"].samples_per_s == pytest.approx(
        100.0
    )  # 400 in 5 s less 1 s of start-up
    assert again.job.ceilings["fetch"].bytes_per_s == pytest.approx(1e7)
    assert again.job.ceilings["fetch"].cpu_s_per_gb == pytest.approx(0.5)  # 0.02 s for 0.04 GB
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
    [line] = csv.DictReader(io.StringIO(run_csv(again)))
    assert (line["bytes_read"], line["read_amplification"], line["sample_bytes"]) == (
        "",
        "",
        "4000",
    )
    # What reading found changed is not written.
    assert TrainingRecord.model_validate_json(json_text(again)).model_dump() == again.model_dump()


# Windows of a ceiling


def ceiling_of(*rates: float | None, seconds: float = 1.0) -> Ceiling:
    windows = [
        CeilingWindow(
            seconds=seconds,
            samples_per_s=rate,
            bytes_per_s=None if rate is None else rate * 1e6,
            cpu_s_per_gb=0.5,
        )
        for rate in rates
    ]
    return Ceiling(not_measured="nothing yet", details=CeilingDetails(windows=windows))


def test_one_window_has_no_interval_and_none_has_no_rate() -> None:
    one = pooled(ceiling_of(90.0))
    assert (one.windows.value, one.windows.low, one.windows.high) == (90.0, None, None)
    none = ceiling_of(None)
    assert pooled(none) == none


def test_rebuild_rates_each_window_by_its_own_events() -> None:
    rows = [
        {
            "phase": "calibrate.fetch",
            "repetition": window,
            "step": n,
            "start": n * each_s,
            "wait": each_s,
            "samples": 10,
            "sample_bytes": 1000,
        }
        for window, each_s in enumerate((0.1, 0.2))
        for n in range(11)
    ]
    ceiling = ceiling_of(1.0, 2.0).model_copy(update={"by": "reader"})
    for window in ceiling.details.windows:
        window.cpu_s = 0.011
    doc = build_run().with_job(ceilings={"fetch": ceiling})
    fetch = rebuild(doc, build_events(rows)).job.ceilings["fetch"]
    rates = [window.samples_per_s for window in fetch.details.windows]
    assert rates == [pytest.approx(100.0), pytest.approx(50.0)]
    assert fetch.samples_per_s == pytest.approx(75.0)
    assert fetch.cpu_s_per_gb == pytest.approx(1000.0)

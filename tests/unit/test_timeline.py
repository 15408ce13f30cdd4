"""Merging loses resolution and nothing else; the file gives back what was recorded, is small, and
its damage is noticed.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iobench.host.timeline import Columns, Recorder, StepEvent, read_events, write_events
from iobench.judge.figures.events import Events
from iobench.judge.figures.timeline import MAX_BINS, spreads, step_times
from iobench.record.training import EVENT_COLUMNS
from tests.processes import python

SUMMED = (
    *("wait_ns", "copy_ns", "busy_ns", "late_ns", "samples", "bytes_read"),
    *("sample_bytes", "read_ns", "prep_ns"),
)


@given(
    epochs=st.lists(st.integers(1, 120), min_size=1, max_size=12),
    capacity=st.integers(2, 40),
    seed=st.integers(0, 2**32 - 1),
)
@example(
    epochs=[1, 2, 18], capacity=7, seed=0
)  # filled by short epochs, then a long one: 13 rows where the room was doubled
@example(epochs=[120], capacity=3, seed=0)
@example(epochs=[1] * 12 + [120], capacity=2, seed=0)
def test_sums_are_exact_and_rows_bounded(epochs: list[int], capacity: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    recorder = Recorder(capacity)
    truth: dict[int, list[list[int]]] = {}
    for epoch, steps in enumerate(epochs):
        for step in range(steps):
            values = [int(value) for value in random.integers(0, 2**24, len(SUMMED))]
            truth.setdefault(epoch, []).append([step * 1000, *values])
            recorder.record(event(epoch, step, step * 1000, *values))
    columns = recorder.columns()
    assert len(recorder) == len(columns["step"]) <= max(capacity, 4 * len(epochs))
    for epoch, rows in truth.items():
        mine = columns["epoch"] == epoch
        assert columns["steps"][mine].sum() == len(rows)
        for index, name in enumerate(SUMMED, start=1):
            assert int(columns[name][mine].sum()) == sum(row[index] for row in rows)
        # rows are whole runs of steps: each starts where the one before it ends, and carries its
        # first step's start
        ends = np.cumsum(columns["steps"][mine])
        assert columns["step"][mine].tolist() == [0, *ends[:-1].tolist()]
        assert columns["start_ns"][mine].tolist() == [
            rows[step][0] for step in columns["step"][mine]
        ]


def event(epoch: int, step: int, *values: int) -> StepEvent:
    """One step; ``values`` from ``start_ns`` on."""
    return StepEvent(epoch, step, 1, *values)


def realistic(steps: int, seed: int) -> Columns:
    """Noisy durations in nanoseconds, as a run has them."""
    random = np.random.default_rng(seed)
    recorder = Recorder()
    clock = 0
    for step in range(steps):
        wait, busy = int(random.gamma(2, 2e6)), 323_000_000
        late, read, prep = (int(random.gamma(2, scale)) for scale in (2e4, 5e7, 1e7))
        size = int(random.normal(146_600_000, 2e7))
        recorder.record(
            event(0, step, clock, wait, 0, busy, late, 4, size + 4096, size, read, prep)
        )
        clock += wait + busy + late
    return recorder.columns()


def test_round_trip(tmp_path: Path) -> None:
    first, second = realistic(50, 1), realistic(30, 2)
    write_events(
        tmp_path / "e.parquet", [("calibrate.fetch", 0, 0, first), ("measure", 3, 7, second)]
    )
    found = read_events(tmp_path / "e.parquet")
    assert list(found) == list(EVENT_COLUMNS)
    assert found["phase"].tolist() == ["calibrate.fetch"] * 50 + ["measure"] * 30
    assert found["repetition"].tolist() == [0] * 50 + [3] * 30
    assert found["rank"].tolist() == [0] * 50 + [7] * 30
    for name in first:
        assert found[name].tolist() == first[name].tolist() + second[name].tolist()
        assert str(found[name].dtype) == EVENT_COLUMNS[name].split(",")[0]
    assert [path.name for path in tmp_path.iterdir()] == ["e.parquet"]


def test_reading_leaves_no_thread_behind(tmp_path: Path) -> None:
    """Arrow's threads that outlived it ended one in 25 of the processes that only read events by
    SIGABRT.
    """
    write_events(tmp_path / "events.parquet", [("measure", 0, 0, Recorder(4).columns())])
    code = (
        "import os, sys; from pathlib import Path; import numpy, pyarrow.parquet; from "
        "iobench.host.timeline import read_events\n"
        "before = len(os.listdir('/proc/self/task')); read_events(Path(sys.argv[1]))\n"
        "print(len(os.listdir('/proc/self/task')) - before)"
    )
    assert python(code, tmp_path / "events.parquet") == "0\n"


def test_no_compute_functions_are_imported_to_write_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their import takes longer than the file, and a training that was watched waits for it."""
    monkeypatch.setitem(sys.modules, "pyarrow.compute", None)
    write_events(tmp_path / "events.parquet", [("measure", 0, 0, realistic(5, 1))])


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_events_have_the_mode_that_the_umask_leaves(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        write_events(tmp_path / "events.parquet", [("measure", 0, 0, realistic(5, 1))])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "events.parquet").stat().st_mode) == mode
    assert [path.name for path in tmp_path.iterdir()] == ["events.parquet"]


# Steps along a repetition's time, and how their times are spread

MS = 1_000_000


def events(wait_ms: npt.ArrayLike, *, read_ms: float = 0.0, steps: npt.ArrayLike = 1) -> Events:
    """Rows of so many steps of one rank, which begin every 10 ms: each waits, and is busy for 5."""
    waits = np.asarray(wait_ms, dtype=np.float64)
    nothing = np.zeros(len(waits), np.int64)
    each = nothing + np.asarray(steps)
    number = np.arange(len(waits))
    columns = dict.fromkeys(
        ("epoch", "rank", "copy_ns", "checkpoint_ns", "sync_ns", "lost_ns", "prep_ns", "retries"),
        nothing,
    )
    return columns | {
        "step": number,
        "steps": each,
        "start_ns": number * 10 * MS,
        "wait_ns": (waits * MS * each).astype(np.int64),
        "busy_ns": 5 * MS * each,
        "read_ns": (read_ms * MS * each).astype(np.int64),
    }


def test_no_outlier_is_lost_in_a_million_steps() -> None:
    """One long and one short wait lie between others: both are an end of their bin."""
    wait = np.full(1_000_000, 2.0)
    wait[123_456], wait[654_321] = 900.0, 0.0
    found = step_times(events(wait))
    (rank,) = found.ranks
    assert found.merged
    assert len(rank.wait.at_s) <= MAX_BINS
    assert max(rank.wait.high) == 0.9
    assert min(rank.wait.low) == 0.0
    assert rank.wait_p99_s == pytest.approx(0.002)


def test_merged_rows_count_once_for_each_step() -> None:
    rows = events([1.0, 5.0, 7.0], steps=[1, 98, 1])
    found = step_times(rows)
    (rank,) = found.ranks
    assert rank.wait.high == (0.001, 0.005, 0.007)
    assert rank.wait_p99_s == pytest.approx(0.005)
    assert found.merged
    spread = spreads(events([2.0, 4.0, 4.0, 4.0], steps=1000))["wait"]
    assert (spread.merged, spread.steps) == (True, 4000)
    assert (spread.quantiles[0.25], spread.quantiles[0.5]) == (0.002, 0.004)


def test_the_tail_of_a_known_distribution() -> None:
    """Of 10,000 waits 1 % are 100 ms, and 0.1 % are 1 s."""
    wait = [1000.0] * 10 + [100.0] * 90 + [10.0] * 9900
    found = spreads(events(np.random.default_rng(1).permutation(wait), read_ms=3.0))
    assert set(found) == {"wait", "read", "step"}
    wanted = {0.5: 0.010, 0.99: 0.010, 0.995: 0.100, 0.999: 0.100}
    assert {level: found["wait"].quantiles[level] for level in wanted} == pytest.approx(wanted)
    assert found["wait"].longest_s == 1.0
    assert found["step"].quantiles[0.999] == pytest.approx(0.105)
    assert set(found["read"].quantiles.values()) == {0.003}

"""Steps along a repetition's time: no outlier is lost, and epochs follow one another."""

from __future__ import annotations

import numpy as np
import pytest

from iobench.analyse.figures.events import Events
from iobench.analyse.figures.timeline import MAX_BINS, step_times

MS = 1_000_000


def events(count: int, *, epochs: int = 1, rank: int = 0, wait_ms: int = 2) -> Events:
    """Steps of 10 ms: each rank waits ``wait_ms``, and is busy for the rest."""
    step = np.tile(np.arange(count), epochs)
    total = count * epochs
    return {
        "epoch": np.repeat(np.arange(epochs), count),
        "step": step,
        "steps": np.ones(total, dtype=np.int64),
        "rank": np.full(total, rank),
        "start_ns": step * 10 * MS,
        "wait_ns": np.full(total, wait_ms * MS),
        "copy_ns": np.zeros(total, dtype=np.int64),
        "busy_ns": np.full(total, (10 - wait_ms) * MS),
        "checkpoint_ns": np.zeros(total, dtype=np.int64),
        "sync_ns": np.zeros(total, dtype=np.int64),
        "retries": np.zeros(total, dtype=np.int64),
    }


def test_no_outlier_is_lost_in_a_million_steps() -> None:
    """One long and one short wait lie between others: both are an end of their bin."""
    rows = dict(events(1_000_000))
    wait = rows["wait_ns"].copy()
    wait[123_456], wait[654_321] = 900 * MS, 0
    found = step_times({**rows, "wait_ns": wait})
    assert found is not None
    (rank,) = found.ranks
    assert found.merged
    assert len(rank.wait.at_s) <= MAX_BINS
    assert max(rank.wait.high) == rank.longest_wait_s == 0.9
    assert min(rank.wait.low) == 0.0
    assert rank.quantiles["p99.9"] == pytest.approx(0.002)
    assert rank.steps == 1_000_000


def test_merged_rows_count_once_for_each_step() -> None:
    rows = dict(events(3))
    rows["steps"] = np.array([1, 98, 1])
    rows["wait_ns"] = np.array([1, 98 * 5, 7]) * MS
    found = step_times(rows)
    assert found is not None
    (rank,) = found.ranks
    assert rank.wait.high == (0.001, 0.005, 0.007)
    assert rank.quantiles["p50"] == pytest.approx(0.005)
    assert rank.steps == 100
    assert found.merged


def test_without_steps_there_is_no_timeline() -> None:
    assert step_times(events(0)) is None

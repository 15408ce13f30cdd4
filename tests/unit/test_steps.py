"""Steps along a repetition's time, and how their times are spread: no outlier is lost, and figures
that are planted are found.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from iobench.judge.figures.events import Events
from iobench.judge.figures.timeline import MAX_BINS, spreads, step_times

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

"""How the times of steps are spread: figures that are planted are found, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from iobench.analyse.figures.events import Events
from iobench.analyse.figures.timeline import spreads

MS = 1_000_000


def events(wait_ms: list[float], *, read_ms: float = 0.0, steps: int = 1) -> Events:
    count = len(wait_ms)
    nothing = np.zeros(count, np.int64)
    return {
        "rank": nothing,
        "steps": np.full(count, steps),
        "wait_ns": (np.array(wait_ms) * MS * steps).astype(np.int64),
        "copy_ns": nothing,
        "busy_ns": np.full(count, 5 * MS * steps),
        "read_ns": np.full(count, int(read_ms * MS * steps)),
        "prep_ns": nothing,
        "step": np.arange(count),
    }


def test_the_tail_of_a_known_distribution() -> None:
    """Of 10,000 waits 1 % are 100 ms, and 0.1 % are 1 s."""
    wait = [1000.0] * 10 + [100.0] * 90 + [10.0] * 9900
    found = spreads(events(np.random.default_rng(1).permutation(wait).tolist(), read_ms=3.0))
    assert set(found) == {"wait", "read", "step"}
    wanted = {0.5: 0.010, 0.99: 0.010, 0.995: 0.100, 0.999: 0.100}
    assert {level: found["wait"].quantiles[level] for level in wanted} == pytest.approx(wanted)
    assert found["wait"].longest_s == 1.0
    assert found["step"].quantiles[0.999] == pytest.approx(0.105)
    assert set(found["read"].quantiles.values()) == {0.003}


def test_a_merged_row_counts_once_for_each_step() -> None:
    found = spreads(events([2.0, 4.0, 4.0, 4.0], steps=1000))["wait"]
    assert found.merged
    assert found.steps == 4000
    assert found.quantiles[0.25] == 0.002
    assert found.quantiles[0.5] == 0.004


def test_without_steps_there_is_nothing() -> None:
    assert spreads(events([])) == {}

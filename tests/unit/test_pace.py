"""How fast a run goes at this moment: rates, histories and the slowest rank, by its counters."""

from __future__ import annotations

import os

import pytest

from iobench.cli import live as living
from iobench.cli.live import Live
from iobench.cli.pace import Now, PhasePace, SlowRank
from iobench.runner.counters import STEPS, Counters

S = 1_000_000_000
MB = 1_000_000


class _Run:
    """Ranks whose steps take ``step_s``, of which ``busy_s``, and the readings of a screen."""

    def __init__(self, step_s: list[float], *, busy_s: float, read: int = MB) -> None:
        self.counters = Counters(len(step_s))
        self.step_s, self.busy_s, self.read = step_s, busy_s, read
        self.pace = PhasePace(0.0)
        self.now = 0.0

    def until(self, end: float, *, step_s: list[float] | None = None) -> Now:
        self.step_s = step_s or self.step_s
        found = Now()
        while self.now < end:
            self.now += 0.25
            for rank, each in enumerate(self.step_s):
                while each and (self.counters.read()[rank, STEPS] + 1) * each <= self.now:
                    self.counters.add(
                        rank,
                        read=self.read,
                        busy_ns=round(self.busy_s * S),
                        wall_ns=round(each * S),
                        sync_ns=0,
                        retries=0,
                    )
            found = self.pace.add(self.now, self.counters.read())
        return found


def test_the_slowest_rank() -> None:
    assert _Run([0.1, 0.2, 0.1], busy_s=0.1).until(10.0).slow == SlowRank(1, pytest.approx(2.0))
    assert _Run([0.1, 0.102, 0.1], busy_s=0.1).until(10.0).slow is None
    assert _Run([0.1, 0.0, 0.1], busy_s=0.1).until(10.0).slow == SlowRank(1, None)
    assert _Run([0.1], busy_s=0.1).until(10.0).slow is None


def test_a_run_that_stands_still_is_told() -> None:
    run = _Run([0.1], busy_s=0.1)
    assert run.until(10.0).idle_s < 1.0
    assert run.until(20.0, step_s=[0.0]).idle_s == pytest.approx(10.0, abs=0.5)


def test_forked_ranks_count_in_memory_of_the_parent() -> None:
    counters = Counters(2)
    child = os.fork()
    if not child:
        counters.add(1, read=7, busy_ns=1, wall_ns=2, sync_ns=0, retries=3)
        os._exit(0)
    os.waitpid(child, 0)
    assert counters.steps() == 1
    assert counters.read()[:, :6].tolist() == [[0] * 6, [1, 7, 1, 2, 0, 3]]


def test_the_time_left_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rate since the first report: what an earlier process has done took no time now."""
    clock = [100.0]
    monkeypatch.setattr(living.time, "monotonic", lambda: clock[0])
    live = Live(quiet=True)
    live.phase("generating")
    live.bytes(500, 1000)
    assert live.left() == ""
    clock[0] = 110.0
    live.bytes(600, 1000)
    assert live.left() == "about 40 s left"
    live.bytes(1000, 1000)
    assert live.left() == ""

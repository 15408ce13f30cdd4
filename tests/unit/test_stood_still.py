"""A rank or a host that stood still for seconds: the time counts, and who it was is told."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any

import numpy as np
import pytest

from iobench.judge.figures.metrics import repetition_metrics
from iobench.judge.validity import evaluate
from iobench.record.host import JobHost
from iobench.record.training import Epoch, Repetition
from iobench.runner.counters import Stops, lost_in_waits
from tests.processes import wait_until
from tests.unit.conftest import build_events, build_run

STEP_S, STEPS = 0.5, 40


def rows(still: dict[int, float], ranks: int, at: int) -> list[dict[str, Any]]:
    """Steps of ranks that always have a batch at hand; some stand still after their step ``at``."""
    found = []
    for rank in range(ranks):
        asked = 0.0
        for step in range(STEPS):
            lost = still.get(rank, 0.0) if step == at else 0.0
            row = {"rank": rank, "epoch": 0, "step": step, "start": asked, "wait": 0.0}
            row |= {"busy": STEP_S, "read": 0.1, "prep": 0.1, "samples": 10, "lost": lost}
            found.append(row)
            asked += STEP_S + lost
    return found


@pytest.mark.parametrize("at", [5, STEPS - 1])
def test_the_time_in_which_a_rank_stood_still_counts(at: int) -> None:
    blank = Repetition(seed=1, accelerators=2, sync="none", epochs=[Epoch(epoch=0)])
    found = repetition_metrics(build_events(rows({1: 3.0}, 2, at)), blank)
    assert found.wall_s == pytest.approx(STEPS * STEP_S + 3.0)
    assert [each.lost_s for each in found.ranks] == pytest.approx([0.0, 3.0])
    assert [each.rest_s for each in found.ranks] == pytest.approx([0.0, 0.0], abs=1e-6)


def ranks_of(still: dict[int, float], ranks: int) -> list[dict[str, float]]:
    return [
        {
            "rank": rank,
            "wall_s": 20.0,
            "busy_s": 16.0,
            "fill_s": 0.0,
            "lost_s": still.get(rank, 0.0),
        }
        for rank in range(ranks)
    ]


def told(still: dict[int, float], hosts: int = 1) -> list[Any]:
    run = build_run(repetition={"ranks": ranks_of(still, 4)}, accelerators=4)
    if hosts > 1:
        each = 4 // hosts
        run.job.hosts = [
            JobHost(name=f"node{at}", first_rank=at * each, ranks=each) for at in range(hosts)
        ]
    return [each for each in evaluate(run) if each.rule == "rank.stood-still"]


def test_who_stood_still_is_named() -> None:
    assert told({}) == []
    assert told({2: 0.1}) == []  # a delay of half a percent is none
    (rank,) = told({2: 3.0})
    assert "rank 2 " in rank.evidence
    (host,) = told({2: 3.0, 3: 2.9}, hosts=2)
    assert "host 1 (node1)" in host.evidence
    assert "rank" not in host.evidence
    (one,) = told({3: 3.0}, hosts=2)
    assert "rank 3 " in one.evidence


S = 1_000_000_000


@pytest.mark.parametrize(
    ("stop", "lost"),
    [
        ((112, 115), [0, 3, 0, 0]),  # within a wait
        ((111.8, 115), [0, 3, 0, 0]),  # the parent looked a little earlier
        ((113, 117), [0, 0, 0, 0]),  # the rank took its batch meanwhile: it did not stand still
        ((117, 119), [0, 0, 0, 0]),  # in a step, where the emulation tells it
        ((112, 112.1), [0, 0, 0, 0]),  # no longer than a wake-up may be late
        ((230, 233), [0, 0, 0, 3]),  # somewhere in steps that share a row
    ],
)
def test_what_is_lost_in_waits(stop: tuple[float, float], lost: list[float]) -> None:
    seconds = {"start_ns": [0, 12, 20, 100], "wait_ns": [2, 3, 1, 8], "lost_ns": [0, 0, 0, 0]}
    events = {name: np.array(values) * S for name, values in seconds.items()}
    events |= {"epoch": np.array([0, 0, 0, 1]), "steps": np.array([1, 1, 1, 40])}
    before = events["wait_ns"].copy()
    lost_in_waits(events, {0: 100 * S, 1: 100 * S}, [(int(stop[0] * S), int(stop[1] * S))])
    assert events["lost_ns"].tolist() == [each * S for each in lost]
    assert (events["lost_ns"] + events["wait_ns"]).tolist() == before.tolist()


def test_a_parent_sees_which_rank_stands_still() -> None:
    stops = Stops(2)
    child = subprocess.Popen(["sleep", "1000"])

    def seen() -> bool:
        stops.waited({0: os.getpid(), 1: child.pid}, time.monotonic_ns(), 0.2)
        return any(ended > began for began, ended in stops.of(1))

    try:
        child.send_signal(signal.SIGSTOP)
        wait_until(seen, "a process that is stopped was not seen")
        assert stops.of(0) == []
    finally:
        child.kill()
        child.wait()
    now = time.monotonic_ns()
    stops.waited({0: os.getpid()}, now - 5 * S, 0.2)  # a wait of 0.2 s that lasted for 5
    ((began, ended),) = stops.of(0)
    assert (began, ended >= now) == (now - 5 * S, True)

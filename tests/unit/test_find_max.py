"""The search for the largest number of accelerators, over simulated storage of a known rate."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.analyse.verdict.rebuild import rebuild
from iobench.analyse.verdict.search import find_max_point, steady, with_answer
from iobench.cli.main import main
from iobench.errors import NoRoomError, UsageError
from iobench.runner.calibration.findmax import MAX_POINT_S, TRIALS, search, wanted_steps
from iobench.schema.training import FindMax, FindMaxPoint
from iobench.schema.workload import Workload, load_workload
from tests.conftest import MakeDataset
from tests.unit.conftest import build_events

Attempt = Callable[[int, int], FindMaxPoint]

REQUESTS = 4
"""Requests for a batch; the storage serves those of all workers in the order of their arrival."""


def simulated(
    ranks: int, workload: Workload, *, supply: float, in_step: bool, jitter: float, seed: int
) -> dict[str, np.ndarray[Any, Any]]:
    """Events of ``ranks`` at a storage that delivers ``supply`` times one accelerator's demand.

    Each worker reads one batch after the other as long as a slot is free. ``jitter``: the standard
    deviation of a service time, as a share of its mean.
    """
    chance = np.random.default_rng(seed)
    workers = workload.loader.workers
    slots = workers * workload.loader.prefetch_factor
    busy = workload.accelerator.step_time or 1.0
    service = busy / supply / REQUESTS
    steps = workers + wanted_steps(workload)
    ready = [[0.0] * (steps + slots) for _ in range(ranks)]
    left = [[REQUESTS] * (steps + slots) for _ in range(ranks)]
    asked = [0.0] * ranks
    begun = [workers] * ranks  # batches whose reads have been asked for, in order
    consumed = [0] * ranks
    idle: list[set[int]] = [set() for _ in range(ranks)]
    arrivals = [(0.0, rank, batch) for rank in range(ranks) for batch in range(workers)]
    rows: list[list[tuple[float, float, float]]] = [[] for _ in range(ranks)]
    server = 0.0
    heapq.heapify(arrivals)

    def begin(rank: int, now: float) -> None:
        while begun[rank] < consumed[rank] + slots and idle[rank]:
            batch = begun[rank]
            if batch % workers not in idle[rank]:
                break
            idle[rank].discard(batch % workers)
            begun[rank] += 1
            heapq.heappush(arrivals, (now, rank, batch))

    def advance() -> bool:
        """Let every rank that has its batch do its step; all of them together if in step."""
        moved = False
        able = [r for r in range(ranks) if len(rows[r]) < steps and ready[r][len(rows[r])] > 0]
        if in_step and len(able) < ranks:
            return False
        starts = {rank: max(asked[rank], ready[rank][len(rows[rank])]) for rank in able}
        end = max((start + busy for start in starts.values()), default=0.0)
        for rank, start in starts.items():
            over = end if in_step else start + busy
            rows[rank].append((asked[rank], start - asked[rank], over - start - busy))
            asked[rank] = over
            consumed[rank] += 1
            heapq.heappush(arrivals, (over, rank, -1))
            moved = True
        return moved

    while arrivals:
        now, rank, batch = heapq.heappop(arrivals)
        if batch < 0:  # a step has ended, and with it a slot is free
            begin(rank, now)
            continue
        if now > MAX_POINT_S:
            break
        noise = max(0.05, 1 + jitter * chance.standard_normal())
        server = max(server, now) + service * noise
        left[rank][batch] -= 1
        if left[rank][batch]:
            heapq.heappush(arrivals, (server, rank, batch))
            continue
        ready[rank][batch] = server
        idle[rank].add(batch % workers)
        begin(rank, server)
        while advance():
            pass
    table = [
        (rank, step, start, wait, sync)
        for rank, own in enumerate(rows)
        for step, (start, wait, sync) in enumerate(own)
        if start < MAX_POINT_S
    ]
    columns = np.array(table, dtype=np.float64).T
    count = len(table)
    events: dict[str, np.ndarray[Any, Any]] = {
        name: np.zeros(count, dtype=np.int64) for name in build_events([]) if name not in ("phase",)
    }
    events |= {
        "phase": np.full(count, f"find-max.{ranks}", dtype=object),
        "rank": columns[0].astype(np.int64),
        "step": columns[1].astype(np.int64),
        "steps": np.ones(count, dtype=np.int64),
        "start_ns": np.round(columns[2] * 1e9).astype(np.int64),
        "wait_ns": np.round(columns[3] * 1e9).astype(np.int64),
        "sync_ns": np.round(columns[4] * 1e9).astype(np.int64),
        "busy_ns": np.full(count, round(busy * 1e9)),
        "samples": np.full(count, workload.batch_size),
        "sample_bytes": np.full(count, workload.batch_size),
    }
    return events


def searched(attempt: Attempt, *, first: int = 1, most: int = 256) -> FindMax:
    found = FindMax(
        required_accelerator_utilization=0.9, accelerators=None, points=[], bound="not ended"
    )
    search(found, attempt, first=first, most=most, why="no more were allowed")
    return found


def point(number: int, trial: int, utilization: float) -> FindMaxPoint:
    return FindMaxPoint(
        accelerators=number,
        accelerator_utilization=utilization,
        accelerator_utilization_steady=utilization,
        samples_per_s=1.0,
        read_bytes_per_s=1.0,
        passed=utilization >= 0.9,
        trial=trial,
        steps=500,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50-h100", "unet3d-h100"])
@pytest.mark.parametrize("in_step", [False, True])
def test_storage_of_ten_times_the_demand_feeds_ten_or_eleven(name: str, in_step: bool) -> None:
    """At 90 %, 10 times the demand are enough for 11.1 accelerators."""
    workload = load_workload(name)

    def attempt(number: int, trial: int) -> FindMaxPoint:
        events = simulated(
            number, workload, supply=10.0, in_step=in_step, jitter=0.1, seed=100 * number + trial
        )
        return find_max_point(
            events,
            accelerators=number,
            required=0.9,
            round_steps=workload.loader.workers,
            trial=trial,
        )

    found = searched(attempt, first=11)
    assert found.accelerators in (10, 11), [
        (each.accelerators, each.accelerator_utilization_steady) for each in found.points
    ]
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.accelerators <= found.high
    assert found.low >= 9


def test_the_window_leaves_out_the_first_round_and_the_end_of_a_single_rank() -> None:
    """Rank 1 ends later, alone and without waits, and both fill for 5 s."""
    rows = [
        {"rank": rank, "step": step, "start": 5.0 + 2 * (step - 1) if step else 0.0,
         "wait": 1.0 if step else 4.0, "busy": 1.0, "samples": 10, "sample_bytes": 1000}
        for rank in range(2)
        for step in range(9)
    ]  # fmt: skip
    rows += [
        {"rank": 1, "step": step, "start": 21.0 + (step - 9), "busy": 1.0, "samples": 10}
        for step in range(9, 20)
    ]
    found = steady(build_events(rows), round_steps=2)
    assert found is not None
    assert found.accelerator_utilization == pytest.approx(0.5)
    assert found.steps == 6  # from step 2 to 8 are seven, of which three rounds are whole
    assert found.samples_per_s == pytest.approx(10.0)  # of both ranks
    assert found.stored_bytes_per_s == pytest.approx(1000.0)


def test_a_try_without_a_whole_round_fails_with_its_reason() -> None:
    rows = [{"rank": 0, "step": step, "start": step, "busy": 1.0} for step in range(3)]
    found = find_max_point(build_events(rows), accelerators=1, required=0.5, round_steps=4)
    assert not found.passed
    assert found.steps == 0
    assert found.not_measured["accelerator_utilization_steady"]


def test_the_edge_is_tried_three_times_in_turns() -> None:
    tried: list[tuple[int, int]] = []

    def attempt(number: int, trial: int) -> FindMaxPoint:
        tried.append((number, trial))
        return point(number, trial, 0.95 if number <= 6 else 0.8)

    found = searched(attempt)
    assert (found.accelerators, found.low, found.high, found.bound) == (6, 6, 6, "")
    assert tried[-4:] == [(6, 1), (7, 1), (6, 2), (7, 2)]
    assert len([each for each in tried if each[0] == 6]) == TRIALS


def test_one_disturbed_try_does_not_decide() -> None:
    """6 pass, but one try of 6 fails, and one of 7 passes by chance."""
    results = {(6, 0): 0.7, (7, 0): 0.92}

    def attempt(number: int, trial: int) -> FindMaxPoint:
        return point(number, trial, results.get((number, trial), 0.95 if number <= 6 else 0.8))

    found = searched(attempt, first=7)
    assert found.accelerators == 6
    assert (found.low, found.high) == (5, 7)


def test_a_median_that_fails_moves_the_edge_down() -> None:
    def attempt(number: int, trial: int) -> FindMaxPoint:
        lucky = number == 8 and trial == 0
        return point(number, trial, 0.95 if number <= 5 or lucky else 0.8)

    found = searched(attempt, first=8)
    assert found.accelerators == 5
    assert (found.low, found.high) == (5, 8)


@given(st.integers(0, 40), st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_the_search_ends_at_the_truth(truth: int, first: int, most: int) -> None:
    found = searched(
        lambda number, trial: point(number, trial, 0.95 if number <= truth else 0.5),
        first=first,
        most=most,
    )
    expected = min(truth, most)
    assert (found.accelerators or 0) == expected
    assert (found.low, found.high) == (expected, expected)
    assert bool(found.bound) == (truth >= most)
    assert with_answer(found) == found


@given(st.integers(0, 10_000), st.floats(0.0, 0.2))
@settings(max_examples=60, deadline=None)
def test_noise_never_keeps_the_search_from_its_end(seed: int, noise: float) -> None:
    chance = np.random.default_rng(seed)

    def attempt(number: int, trial: int) -> FindMaxPoint:
        found = min(1.0, 11 / number) + noise * chance.standard_normal()
        return point(number, trial, float(np.clip(found, 0, 1)))

    found = searched(attempt, first=11)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= (found.accelerators or 0) <= found.high
    assert len(found.points) < 200


def test_too_little_memory_is_the_hosts_limit() -> None:
    def attempt(number: int, trial: int) -> FindMaxPoint:
        if number > 5:
            raise NoRoomError("the ring needs 9 GiB")
        return point(number, trial, 0.99)

    found = searched(attempt, first=20)
    assert found.accelerators == 5
    assert "the ring needs 9 GiB" in found.bound
    assert len(found.points) >= TRIALS  # of 5, since no number above it could be tried


def test_another_error_is_not_taken_for_too_little_memory() -> None:
    def attempt(number: int, trial: int) -> FindMaxPoint:
        raise UsageError("the library needs a shard for each worker")

    with pytest.raises(UsageError, match="a shard for each worker"):
        searched(attempt)


def test_a_search_without_a_step_time_is_refused_before_anything_is_measured(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    _, path = make_dataset(format="tar", samples_per_shard=20)
    null = ("accelerator.kind=null", "accelerator.step_time=null")
    settings = [word for setting in null for word in ("--set", setting)]
    results = tmp_path / "r"
    asked = ["run", "demo", "--data", str(path), "--find-max", "--results", str(results)]
    assert main([*asked, *settings]) == 2
    assert not results.exists()


def test_a_search_is_computed_again_from_its_events(make_run: Callable[..., Any]) -> None:
    """Each trial from its own events; one without any stays as recorded."""
    rows = [
        {"phase": "find-max.2", "repetition": trial, "rank": rank, "step": step,
         "start": 2.0 * step, "wait": 1.0 - 0.9 * trial, "busy": 1.0 + 0.9 * trial, "samples": 1}
        for trial in range(2)
        for rank in range(2)
        for step in range(10)
    ]  # fmt: skip
    stale = [point(2, 0, 0.1), point(2, 1, 0.1), point(3, 0, 0.1)]
    found = FindMax(required_accelerator_utilization=0.9, accelerators=None, points=stale)
    doc = make_run(find_max=found, workload={"loader": {"workers": 2}})
    again = rebuild(doc, build_events(rows)).job.find_max
    assert again is not None
    told = [(each.trial, each.accelerator_utilization_steady, each.steps) for each in again.points]
    assert told == [(0, pytest.approx(0.5), 8), (1, pytest.approx(0.95), 8), (0, 0.1, 500)]
    assert (again.accelerators, again.low, again.high) == (None, 0, 2)

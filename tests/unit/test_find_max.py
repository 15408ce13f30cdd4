"""The search for the largest number of accelerators, over planted tries and their events."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.base.errors import NoRoomError
from iobench.host.timeline import Recorder, StepEvent
from iobench.judge.figures.search import find_max_point, steady, with_answer
from iobench.judge.rebuild import rebuild
from iobench.record.job import LoaderFacts
from iobench.record.training import Epoch, FindMax, FindMaxPoint
from iobench.runner.budget import Budget
from iobench.runner.calibration import findmax
from iobench.runner.calibration.findmax import begin_search, find_max, search
from iobench.runner.hosts.hosts import Hosts
from iobench.runner.options import Observer
from iobench.runner.phase import Outcome, Phase
from iobench.runner.plan import make_plan
from iobench.runner.requests import CLOSE, RateSearch
from iobench.runner.trials import TRIALS
from iobench.settings.workload import load_workload
from tests.conftest import MakeDataset
from tests.unit.conftest import build_events, build_run

Attempt = Callable[[int, int], FindMaxPoint]


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
    assert found.accelerator_utilization == pytest.approx(0.5)
    assert found.steps == 6  # from step 2 to 8 are seven, of which three rounds are whole
    assert found.samples_per_s == pytest.approx(10.0)  # of both ranks
    assert found.stored_bytes_per_s == pytest.approx(1000.0)


@pytest.mark.parametrize(
    ("in_flight", "fill_s", "passed"), [(12, 12.0, False), (12, 0.5, True), (4, 12.0, True)]
)
def test_what_was_read_before_the_window_may_have_fed_it(
    in_flight: int, fill_s: float, passed: bool
) -> None:
    """97 steps of 1 s, 8 % of them waits: 12 batches that took 12 s to read may have fed 12 %.

    Where reading them took half a second, the storage is fast enough; 4 batches are too few.
    """
    rows = [
        {"phase": "find-max.1", "step": step, "start": fill_s * (step > 0) + 1.087 * (step - 1),
         "wait": 0.087 if step else fill_s, "busy": 1.0, "samples": 1}
        for step in range(97)
    ]  # fmt: skip
    rows[0]["start"] = 0.0
    tried = find_max_point(
        build_events(rows), accelerators=1, required=0.9, round_steps=1, in_flight=in_flight,
        startup_s=0.0,
    )  # fmt: skip
    assert tried.accelerator_utilization_steady == pytest.approx(0.92, abs=0.005)
    assert tried.passed == passed
    found = FindMax(required_accelerator_utilization=0.9, accelerators=None, points=[tried])
    answer = with_answer(found)
    assert (answer.accelerators, answer.low, answer.high) == ((1, 1, 1) if passed else (None, 0, 1))


def test_one_disturbed_try_does_not_decide() -> None:
    """6 pass, but one try of 6 fails, and one of 7 passes by chance."""
    results = {(6, 0): 0.7, (7, 0): 0.92}

    def attempt(number: int, trial: int) -> FindMaxPoint:
        return point(number, trial, results.get((number, trial), 0.95 if number <= 6 else 0.8))

    found = searched(attempt, first=7)
    assert found.accelerators == 6
    assert (found.low, found.high) == (5, 7)


@pytest.mark.parametrize(
    ("tries", "answer"),
    [
        ([(6, 0.95), (6, 0.5)], 6),  # as many of 6 pass as fail, and the first one did
        ([(4, 0.95), (6, 0.5), (6, 0.5), (8, 0.95)], 4),  # 8 is beyond a number that fails
    ],
)
def test_the_answer_goes_by_the_rule_of_the_next_try(
    tries: list[tuple[int, float]], answer: int
) -> None:
    points = [point(number, trial, share) for trial, (number, share) in enumerate(tries)]
    found = FindMax(required_accelerator_utilization=0.9, accelerators=None, points=points)
    assert with_answer(found).accelerators == answer


@given(st.integers(0, 40), st.integers(1, 40), st.integers(1, 40))
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
def test_noise_never_keeps_the_search_from_its_end(seed: int, noise: float) -> None:
    chance = np.random.default_rng(seed)

    def attempt(number: int, trial: int) -> FindMaxPoint:
        found = min(1.0, 11 / number) + noise * chance.standard_normal()
        return point(number, trial, float(np.clip(found, 0, 1)))

    found = searched(attempt, first=11)
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


def test_a_search_is_computed_again_from_its_events() -> None:
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
    doc = build_run(find_max=found, workload={"loader": {"workers": 2}})
    again = rebuild(doc, build_events(rows)).job.find_max
    told = [(each.trial, each.accelerator_utilization_steady, each.steps) for each in again.points]
    assert told == [(0, pytest.approx(0.5), 8), (1, pytest.approx(0.95), 8), (0, 0.1, 500)]
    assert (again.accelerators, again.low, again.high) == (None, 0, 2)


@pytest.mark.parametrize("epochs", [1, 50])
def test_no_number_is_tried_whose_window_would_be_what_was_in_flight(
    make_dataset: MakeDataset, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 60 samples that are read once, two ranks have 20 batches each after their first: more
    ranks would be fed by what was read ahead. The answer is then "or more", whatever ``epochs``.

    Hosts that may have one rank each try as many as there are hosts.
    """
    _, folder = make_dataset(samples=60)
    settings = ["accelerator.step_time=10ms", "batch_size=1", f"epochs={epochs}"]
    settings += ["reader.crop=null", "reader.direct=false"]
    settings += ["loader.workers=1", "loader.prefetch_factor=1"]
    workload = load_workload("demo", settings)
    plan = make_plan(workload, str(folder), accelerators=1, repetitions=1, seed=0)
    tried: list[Phase] = []

    def run(phase: Phase, *, stored: bool) -> Outcome:
        tried.append(phase)
        assert phase.limit_s is not None
        assert phase.limit_s <= budget.left_s + 5  # whatever the tries before have taken
        budget.began_s -= 10 if budget.limited else 0
        recorder = Recorder()
        for step in range(60 // phase.accelerators):
            recorder.record(
                StepEvent(0, step, start_ns=step * 10**7, busy_ns=10**7, samples=1, sample_bytes=1)
            )
        return Outcome(
            columns={rank: recorder.columns() for rank in range(phase.accelerators)},
            epochs=[Epoch(epoch=0, startup_s=0.0)],
        )

    bench: Any = SimpleNamespace(
        plan=plan,
        ceilings={},
        run=run,
        keep=lambda *given: None,
        observer=Observer(),
        loader=LoaderFacts(),
        hosts=Hosts(),
    )
    found, budget = begin_search(bench), Budget()
    find_max(bench, found, budget)
    assert {phase.accelerators for phase in tried} == {1, 2}
    assert (found.accelerators, bool(found.bound)) == (2, True)
    assert all((point.steps or 0) >= 20 for point in found.points if point.accelerators < 2)
    tried.clear()
    budget = Budget(seconds=40.0, end_s=0.0)
    find_max(bench, begin_search(bench), budget)
    assert len(tried) > 2
    monkeypatch.setattr(findmax, "MAX_ACCELERATORS", 1)
    for hosts, most in ((1, 1), (2, 2)):
        bench.hosts.names, found, budget = [""] * hosts, begin_search(bench), Budget()
        find_max(bench, found, budget)
        assert found.accelerators == most


# The largest rate of requests


def rate_searched(
    search: RateSearch, largest: float, noise: float = 0.0, seed: int = 1
) -> list[float]:
    """All rates that were tried; those up to ``largest`` hold, but for some luck."""
    generator, tried = random.Random(seed), []
    while (rate := search.next_load()) is not None:
        tried.append(rate)
        search.tried(rate, passed=rate <= largest * (1 + generator.gauss(0, noise)))
        assert len(tried) < 100
    return tried


@pytest.mark.parametrize("largest", [0.9, 3, 31, 32, 33, 410, 4_999])
def test_the_answer_is_between_the_rates_of_its_interval(largest: float) -> None:
    search = RateSearch(least=0.2, most=5_000, first=32)
    rate_searched(search, largest)
    found = search.found()
    assert found.low <= largest < found.high <= CLOSE * found.low + 1e-9
    assert found.bound == ""


def test_the_rates_at_the_edge_are_tried_several_times() -> None:
    search = RateSearch(least=0.2, most=5_000, first=32)
    tried, found = rate_searched(search, 410), search.found()
    assert [tried.count(rate) for rate in (found.low, found.high)] == [TRIALS, TRIALS]


@pytest.mark.parametrize("seed", range(10))
def test_one_disturbed_window_does_not_decide(seed: int) -> None:
    search = RateSearch(least=0.2, most=5_000, first=32)
    rate_searched(search, 410, noise=0.05, seed=seed)
    assert search.found().low == pytest.approx(410, rel=0.2)


@pytest.mark.parametrize(("holds", "low", "high"), [(1e9, 100, None), (0, None, 4)])
def test_where_every_rate_holds_or_none_one_end_is_not_known(
    holds: float, low: float | None, high: float | None
) -> None:
    search = RateSearch(least=4, most=100, first=32)
    rate_searched(search, holds)
    found = search.found()
    assert (found.low, found.high) == (low, high)
    assert f"{low or high} requests/s" in found.bound

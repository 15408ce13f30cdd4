"""Requests in virtual time: queues whose answer is known, and the figures of a window."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from iobench.judge.figures.requests import growth_of, quantile, served, with_served_figures
from iobench.record.serving import ServedTrial
from iobench.serve.arrivals import Arrivals
from iobench.settings.scenario import ArrivalSpec, Scenario

SCENARIO = Scenario(name="x", dataset="demo", limit=0.015, step_time=0.002)
NUMBER, STEP = 100_000, 0.002


def one_by_one(ready: Any, step: float = STEP) -> npt.NDArray[np.float64]:
    """When each request is answered, by one server."""
    _, ends = served(np.asarray(ready), servers=1, batch_size=1, batch_delay=0, step=step)
    return ends


def poisson(rate: float, seed: int = 7) -> npt.NDArray[np.float64]:
    found = Arrivals(ArrivalSpec()).window(rate, NUMBER / rate, seed)
    return found / 1e9


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_a_queue_waits_as_long_as_queueing_theory_says(load: float) -> None:
    """M/D/1: Poisson arrivals, steps of one length, one server (Pollaczek and Khinchine)."""
    arrivals = poisson(load / STEP)
    wait = (one_by_one(arrivals) - STEP - arrivals).mean()
    assert wait == pytest.approx(load / (2 * (1 - load)) * STEP, rel=0.05)
    assert len(arrivals) == pytest.approx(NUMBER, rel=0.02)


BATCHES: dict[str, tuple[dict[str, float], list[float], list[float]]] = {
    "full at once": ({"batch_size": 2, "batch_delay": 9}, [1, 1, 1, 1], [1, 1, 11, 11]),
    "full in time": ({"batch_size": 2, "batch_delay": 9}, [1, 4], [4, 4]),
    "the delay ends": ({"batch_size": 3, "batch_delay": 5}, [1, 4, 30], [6, 6, 35]),
    "no delay": ({"batch_size": 3, "batch_delay": 0}, [1, 4, 5, 6], [1, 11, 11, 11]),
    "more while it is busy": ({"batch_size": 2, "batch_delay": 0}, [1, 2, 3, 4], [1, 11, 11, 21]),
    "in the order of readiness": ({"batch_size": 1, "batch_delay": 0}, [5, 1], [11, 1]),
    "none": ({"batch_size": 4, "batch_delay": 1}, [], []),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_begin_when_they_are_full_or_their_delay_ends(name: str) -> None:
    """Steps of 10; by hand."""
    settings, ready, begins = BATCHES[name]
    found, ends = served(np.array(ready), servers=1, step=10, **settings)  # type: ignore[arg-type]
    assert found.tolist() == begins
    assert ends.tolist() == [begin + 10 for begin in begins]


# The figures of a window


def window(intended: Any, storage: Any, **changes: Any) -> ServedTrial:
    """A window whose reads begin in time and take ``storage``, in seconds."""
    intended = np.asarray(intended, np.float64)
    rows = {
        "intended_ns": intended * 1e9,
        "taken_ns": intended * 1e9,
        "issued_ns": intended * 1e9,
        "ready_ns": (intended + storage) * 1e9,
        "failed": np.zeros(len(intended), np.uint8),
    }
    rows = {name: each.astype(np.int64) for name, each in rows.items()}
    rows.update({name: np.asarray(each) for name, each in changes.items()})
    trial = ServedTrial(kind="repetition", seed=1, rate=100, seconds=10, requests=len(intended))
    return with_served_figures(trial, rows, SCENARIO)


EVENLY = np.arange(1000) / 100


def test_a_stall_is_in_the_latency_of_every_request_that_arrives_in_it() -> None:
    """Storage that stands still for one second delays a hundred requests, not one.

    Those that arrive at its begin wait for all of it, those at its end hardly at all.
    """
    left = np.where((EVENLY >= 4) & (EVENLY < 5), 5 - EVENLY, 0.0)
    found = window(EVENLY, 0.001 + left)
    assert found.latency_max_s == pytest.approx(1.003, abs=0.001)
    assert found.latency_p99_s == pytest.approx(0.9, abs=0.15)
    assert found.latency_p50_s == pytest.approx(0.003, abs=0.0005)
    # The accelerator, too, takes a while until it has caught up.
    assert 0.1 <= found.over <= 0.13
    assert found.holds is False


def test_a_request_that_was_issued_late_has_waited_since_its_instant() -> None:
    late = (EVENLY + 0.5) * 1e9
    found = window(
        EVENLY, 0.5, issued_ns=late.astype(np.int64), taken_ns=(EVENLY * 1e9).astype(np.int64)
    )
    assert found.latency_p50_s == pytest.approx(0.5 + STEP, abs=1e-6)
    assert found.parts.reader_wait_s == pytest.approx(0.5, abs=1e-6)
    assert found.late_p99_s == pytest.approx(0.5, abs=1e-6)
    busy = window(EVENLY, 0.5, issued_ns=late.astype(np.int64), taken_ns=late.astype(np.int64))
    assert busy.late_p99_s == 0  # nobody was free: no fault of the client
    assert busy.latency_p50_s == found.latency_p50_s
    one = (EVENLY[:8] + np.eye(8)[0]) * 1e9
    few = window(EVENLY[:8], 1.5, issued_ns=one.astype(np.int64))
    assert few.late_p99_s == 0  # one of eight is an accident, and no 1 % of the requests


def test_requests_that_no_reader_took_are_over_the_limit_and_no_rate_lasts() -> None:
    ready = ((EVENLY + 0.001) * 1e9).astype(np.int64)
    ready[-300:] = -1
    found = window(EVENLY, 0.001, ready_ns=ready)
    assert (found.unserved, found.holds, found.steady) == (300, False, False)
    assert found.over == pytest.approx(0.3)


def test_a_window_of_failures_has_no_latency() -> None:
    found = window(EVENLY, 0.001, failed=np.ones(1000, np.uint8))
    assert (found.latency_p99_s, found.over, found.holds) == (None, 1.0, False)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (0.999, 100), (1, 100)])
def test_a_quantile_is_one_of_the_values(share: float, expected: float) -> None:
    assert quantile(np.arange(1.0, 101.0), share) == expected


@pytest.mark.slow
def test_a_latency_that_grows_is_told_and_one_that_does_not_is_not() -> None:
    """100 windows each: of a queue at 105 % of its rate, and at 50 and 70 %."""
    grows = dict.fromkeys((0.5, 0.7, 1.05), 0)
    for load in grows:
        for seed in range(100):
            arrivals = Arrivals(ArrivalSpec()).window(load / STEP, 4000 * STEP / load, seed) / 1e9
            grows[load] += growth_of(one_by_one(arrivals) - arrivals)[1]
    assert grows[1.05] >= 95
    assert grows[0.5] <= 2
    assert grows[0.7] <= 5


def test_a_few_requests_tell_nothing_about_growth() -> None:
    assert growth_of(np.arange(40.0)) == (None, False)

"""How long reads may take so that requests hold a limit, against queues whose answer is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.ask.capacity.ceilings import Change
from iobench.ask.capacity.requests import (
    ServedNeed,
    ServedPrediction,
    recorded_reads,
    replayed,
    served_if,
    served_need,
    stated_reads,
)
from iobench.base.errors import UsageError
from iobench.base.units import Quantity
from iobench.host.tables import read_requests
from iobench.judge.figures.requests import served
from iobench.judge.rebuild import served_again
from iobench.record.run import ServingRecord, load_run
from iobench.report.glance import resting_on
from iobench.report.serving import what_if_sections
from iobench.settings.scenario import Scenario

GOLDEN = Path(__file__).parents[1] / "golden/0.1.0/runs/serving"
RATE, STEP, LIMIT = 500.0, 0.001, 0.02


def scenario(**changes: Any) -> Scenario:
    """Accelerators enough that no request waits for one."""
    usual = {"name": "s", "dataset": "demo", "limit": LIMIT, "step_time": STEP}
    more = {"accelerators": 1000, "reader": {"concurrency": 1000}}
    return Scenario.model_validate({**usual, **more, **changes})


def poisson(number: int = 6_000) -> np.ndarray:
    gaps = np.random.default_rng(7).exponential(1e9 / RATE, number)
    return np.cumsum(gaps).astype(np.int64)


def need(reads: np.ndarray | None = None, **changes: Any) -> ServedNeed:
    return served_need(scenario(**changes), poisson(), reads, rate=RATE, sample_bytes=100_000)


def test_where_nothing_is_waited_for_a_read_has_what_the_step_leaves() -> None:
    found = need()
    assert found.most_read_s == pytest.approx(LIMIT - STEP, rel=0.01)
    assert found.bytes_per_s == RATE * 100_000
    assert found.in_flight == pytest.approx(RATE * (LIMIT - STEP), rel=0.03)  # Little's law
    assert (found.read_s, found.latency_s, found.holds) == (None, None, None)


def test_with_one_reader_the_limit_just_holds_in_its_queue() -> None:
    """A queue with one server and reads of one length, carried out by another function."""
    longest = need(reader={"concurrency": 1}).most_read_s
    assert longest is not None
    arrived = poisson() / 1e9

    def p99(read_s: float) -> float:
        _, done = served(arrived, servers=1, batch_size=1, batch_delay=0, step=read_s)
        return float(np.quantile(done - arrived, 0.99)) + STEP

    assert p99(longest) <= LIMIT * 1.001
    assert p99(longest * 1.03) > LIMIT
    assert RATE * longest < 1


def test_the_spread_of_reads_stays_and_their_length_is_found() -> None:
    """Of lognormal reads, p99 is the limit less the step."""
    found = need(stated_reads(0.002, 0.010))
    assert found.most_read_p99_s == pytest.approx(LIMIT - STEP, rel=0.05)
    assert found.most_read_p99_s / found.most_read_s == pytest.approx(5, rel=0.1)
    assert found.holds is True
    assert found.latency_s == pytest.approx(0.010 + STEP, rel=0.05)
    slow = need(stated_reads(0.006, 0.030))
    assert slow.holds is False
    assert slow.most_read_s == pytest.approx(found.most_read_s, rel=0.03)


def test_what_no_storage_can_hold_has_no_length() -> None:
    """One accelerator takes 250 requests/s."""
    found = need(accelerators=1, step_time=0.004)
    assert (found.most_read_s, found.most_read_p99_s, found.in_flight) == (None, None, None)


def test_reads_of_a_run_are_drawn_from_what_it_recorded() -> None:
    rows, doc = read_requests(GOLDEN / "events.parquet"), load_run(GOLDEN)
    assert isinstance(doc, ServingRecord)
    place = [one.kind for one in doc.job.trials].index("repetition")
    mine = rows["trial"] == place
    took = (rows["ready_ns"] - rows["issued_ns"])[mine] / 1e9
    found = recorded_reads(doc, rows)
    assert took.min() <= np.median(found) <= took.max()


# What if: a run that served requests, with changes whose answer is known

READERS, READ_NS = 4, 2_000_000
TWICE = Quantity(2, relative=True)


def rows(read_ns: float = READ_NS, readers: int = READERS) -> dict[str, np.ndarray]:
    """Requests whose reads take turns at so many readers."""
    arrived = np.cumsum(np.random.default_rng(1).exponential(800_000, 5_000)).astype(np.int64)
    begins, ends = served(arrived, servers=readers, batch_size=1, batch_delay=0, step=read_ns)
    return {
        "intended_ns": arrived,
        "taken_ns": begins.astype(np.int64),
        "issued_ns": begins.astype(np.int64),
        "ready_ns": ends.astype(np.int64),
        "failed": np.zeros(len(arrived), np.uint8),
    }


@pytest.mark.parametrize(("factor", "readers"), [(0.5, READERS), (1.5, READERS), (0.3, 1), (1, 9)])
def test_other_reads_are_queued_as_if_they_had_been_measured(factor: float, readers: int) -> None:
    found = replayed(rows(), readers=readers, factor=factor)
    truth = rows(READ_NS * factor, readers)
    assert np.abs(found["ready_ns"] - truth["ready_ns"]).max() < 10_000


def predicted(**changes: Any) -> ServedPrediction:
    requests = read_requests(GOLDEN / "events.parquet")
    doc = load_run(GOLDEN)
    assert isinstance(doc, ServingRecord)
    return served_if(served_again(doc, requests), requests, Change(**changes))


def p99(doc: ServingRecord) -> float:
    return doc.metrics["latency_p99_s"].median


def test_a_prediction_says_what_its_run_is_worth() -> None:
    found = predicted(accelerators=Quantity(1))
    failed = replace(found, before=found.before.model_copy(update={"status": "failed"}))
    for each, said in ((found, False), (failed, True)):
        worth = f"Run {found.run_id} failed, and the prediction rests on it."
        shown = resting_on([each.before], what_if_sections(each))
        assert (worth in shown[0].sentences) is said


def test_what_does_not_change_stays() -> None:
    found = predicted(accelerators=Quantity(1))
    assert p99(found.what_if) == p99(found.before)
    again = predicted(latency=Quantity(1.0, relative=True))
    assert p99(again.what_if) == pytest.approx(p99(again.before), rel=0.02)
    assert again.model_error == pytest.approx(0, abs=0.02)


WRONG: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a bandwidth": {"storage_bandwidth": TWICE},
    "a bandwidth beside a latency": {"storage_bandwidth": TWICE, "latency": TWICE},
    "a step beyond the limit": {"step_time": Quantity(5.0)},
    "half a reader": {"concurrency": Quantity(0.5)},
    "too many readers": {"concurrency": Quantity(2000)},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_change_that_can_not_be_predicted_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        predicted(**WRONG[name])

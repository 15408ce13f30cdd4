"""What if: a run that served requests, with changes whose answer is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.ask.capacity.ceilings import Change
from iobench.ask.capacity.requests import ServedPrediction, replayed, served_if
from iobench.base.errors import UsageError
from iobench.base.units import Quantity
from iobench.host.requests import read_requests
from iobench.judge.figures.requests import served
from iobench.judge.rebuild import served_again
from iobench.record.run import ServingRecord, load_run
from tests.processes import in_process

GOLDEN = Path(__file__).parents[1] / "golden/0.1.0/runs/serving"
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


def test_a_longer_step_is_in_every_latency() -> None:
    found = predicted(step_time=TWICE)
    step = found.before.job.scenario.step_time
    assert found.model_error == 0
    for one, other in zip(found.what_if.job.repetitions, found.before.job.repetitions, strict=True):
        assert (one.latency_p50_s or 0) >= (other.latency_p50_s or 0) + step * 0.99
        assert one.parts.storage_s == other.parts.storage_s


def test_what_does_not_change_stays() -> None:
    found = predicted(accelerators=Quantity(1))
    assert p99(found.what_if) == p99(found.before)
    again = predicted(latency=Quantity(1.0, relative=True))
    assert p99(again.what_if) == pytest.approx(p99(again.before), rel=0.02)
    assert again.model_error == pytest.approx(0, abs=0.02)


def test_slower_reads_break_the_limit() -> None:
    found = predicted(latency=Quantity(10, relative=True))
    assert found.what_if.job.verdict is not None
    assert found.what_if.job.verdict.holds is False
    assert p99(found.what_if) > 3 * p99(found.before)


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


def test_as_a_user_calls_it() -> None:
    code, out, err = in_process("whatif", GOLDEN, "--latency", "0.5x", "--concurrency", 8)
    assert (code, err) == (0, "")
    assert "predicted" in out
    document = json.loads(in_process("whatif", GOLDEN, "--accelerators", 2, "--json")[1])
    assert document["what_if"]["job"]["scenario"]["accelerators"] == 2
    assert in_process("whatif", GOLDEN, "--workers", 8)[0] == 2

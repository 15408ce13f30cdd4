"""How long reads may take so that requests hold a limit, against queues whose answer is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.ask.capacity.requests import ServedNeed, recorded_reads, served_need, stated_reads
from iobench.host.requests import read_requests
from iobench.judge.figures.requests import served
from iobench.record.run import ServingRecord, load_run
from iobench.settings.scenario import Scenario
from tests.processes import in_process

GOLDEN = Path(__file__).parents[1] / "golden/0.1.0/runs/serving"
RATE, STEP, LIMIT = 500.0, 0.001, 0.02


def scenario(**changes: Any) -> Scenario:
    """Accelerators enough that no request waits for one."""
    usual = {"name": "s", "dataset": "demo", "limit": LIMIT, "step_time": STEP}
    more = {"accelerators": 1000, "reader": {"concurrency": 1000}}
    return Scenario.model_validate({**usual, **more, **changes})


def poisson(number: int = 20_000) -> np.ndarray:
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


def test_the_command_answers_for_a_scenario_and_a_run(tmp_path: Path) -> None:
    words = ("size", "resnet50-server", "--rate", 1000, "--from", GOLDEN, "--json")
    code, out, err = in_process(*words)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["limit_s"], found["measured_run"]) == (0.015, load_run(GOLDEN).run_id)
    assert found["holds"] == (found["latency_s"] <= 0.015)
    assert found["holds"] == (found["most_read_s"] >= found["read_s"])
    for form in ("text", "html", "markdown"):
        assert in_process(*words[:-1], "--format", form)[0] == 0

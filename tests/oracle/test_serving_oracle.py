"""Requests that arrive at storage of known speed: what they wait is computed, in virtual time, from
the same arrivals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.host.tables import read_requests
from iobench.judge.figures.requests import quantile, served
from iobench.record.run import EVENTS_FILE, ServingRecord
from iobench.record.serving import ServedTrial
from iobench.runner.options import VerbOptions
from iobench.runner.serving import make_serving_plan, run_serving
from iobench.serve.arrivals import Arrivals
from iobench.settings.scenario import ArrivalSpec, Scenario

FILES: dict[str, Any] = {"samples": 100, "sample_size": {"mean": 20_000}, "format": "files"}


def answered(
    results: Path, url: object, *, find_max: bool = False, rate: float | None = None,
    seconds: float = 5.0, repetitions: int = 1, log: object = None, **scenario: Any,
) -> tuple[ServingRecord, Path]:  # fmt: skip
    usual = {"name": "planted", "dataset": "demo", "limit": 10.0, "step_time": 0.0001}
    scenario = {name.rstrip("_"): value for name, value in scenario.items()}
    scenario["arrivals"] = {**scenario.get("arrivals", {}), "rate": rate}
    scenario["log"] = {**scenario.get("log", {}), "to": None if log is None else str(log)}
    spec = Scenario.model_validate({**usual, "cache": "any", "duration": seconds, **scenario})
    plan = make_serving_plan(spec, str(url), find_max=find_max, repetitions=repetitions)
    return run_serving(plan, VerbOptions(results=results))


def first(doc: ServingRecord) -> ServedTrial:
    return doc.job.repetitions[0]


@pytest.mark.nightly
def test_a_queue_at_the_storage_waits_as_in_virtual_time(tmp_path: Path, make_dataset: Any) -> None:
    """One read of 10 ms at a time, at 30 % of what the storage can do."""
    url = f"throttled+{make_dataset(**FILES)[1]}?latency=10ms"
    _, place = answered(tmp_path, url, rate=30, seconds=20, reader={"concurrency": 1})
    rows = read_requests(place / EVENTS_FILE)
    mine = rows["trial"] == 0
    intended, issued, ready = (
        rows[name][mine] / 1e9 for name in ("intended_ns", "issued_ns", "ready_ns")
    )
    assert len(intended) == pytest.approx(600, abs=100)
    read_s = float(np.median(ready - issued))
    assert read_s == pytest.approx(0.010, abs=0.001)
    begins, _ = served(intended, servers=1, batch_size=1, batch_delay=0, step=read_s)
    truth = float((begins - intended).mean())
    assert float((issued - intended).mean()) == pytest.approx(truth, rel=0.1, abs=0.0003)


def test_a_stall_delays_every_request_that_arrives_in_it(tmp_path: Path, make_dataset: Any) -> None:
    """One read stands still for a second: a closed loop would tell of one slow request.

    Before the requests there are 101 reads: of the copies in memory, and to open a connection.
    """
    url = f"faulty+{make_dataset(**FILES)[1]}?stall_every=400&stall=1s"
    doc, _ = answered(
        tmp_path,
        url,
        rate=100,
        limit=0.05,
        reader={"concurrency": 1},
        arrivals={"kind": "constant"},
    )
    found = first(doc)
    assert found.requests == pytest.approx(500, abs=1)
    assert found.latency_max_s == pytest.approx(1.0, abs=0.05)
    assert found.latency_p99_s == pytest.approx(0.95, abs=0.05)
    # 95 of 500 arrive more than 50 ms before the end of the stall.
    assert found.over == pytest.approx(0.19, abs=0.02)
    assert (found.latency_p50_s or 1) < 0.01


@pytest.mark.nightly
def test_the_largest_rate_is_the_planted_one(tmp_path: Path, make_dataset: Any) -> None:
    """Four reads of 20 ms at a time, and 50 ms at p99."""
    url = f"throttled+{make_dataset(**FILES)[1]}?latency=20ms"
    doc, _ = answered(
        tmp_path, url, find_max=True, seconds=4, limit=0.05, reader={"concurrency": 4}
    )
    found = doc.job.found
    truth = _largest(first(doc).storage_p50_s or 0.02, readers=4, limit_s=0.05)
    assert found.low <= 1.1 * truth
    assert found.high >= truth / 1.1
    assert found.low >= truth / 1.21  # the ends are within 10 % of one another, and of the truth
    assert found.high <= 1.21 * truth


def _largest(read_s: float, *, readers: int, limit_s: float) -> float:
    """The largest rate of Poisson arrivals that holds the limit, by bisection."""
    low, high = 1.0, readers / read_s
    for _ in range(12):
        rate = (low + high) / 2
        arrivals = Arrivals(ArrivalSpec()).window(rate, 40_000 / rate, 3) / 1e9
        _, ends = served(arrivals, servers=readers, batch_size=1, batch_delay=0, step=read_s)
        low, high = (rate, high) if quantile(ends - arrivals, 0.99) <= limit_s else (low, rate)
    return low


INDEX: dict[str, Any] = {
    "samples": 5000,
    "sample_size": {"mean": 4096, "distribution": "constant"},
    "format": "tokens",
}
WALK = {"search_list": 20, "reads_per_candidate": 1.0, "beam_width": 4, "spread": 0.0}


@pytest.mark.nightly
def test_a_search_takes_a_latency_for_each_round(tmp_path: Path, make_dataset: Any) -> None:
    """Twenty reads, four at once, each of 10 ms: five times 10 ms."""
    url = f"throttled+{make_dataset(**INDEX)[1]}?latency=10ms"
    doc, _ = answered(tmp_path, url, rate=10, walk=WALK)
    assert first(doc).storage_p50_s == pytest.approx(0.05, rel=0.05)
    assert first(doc).reads == 20 * first(doc).requests


@pytest.mark.nightly
def test_queries_are_as_many_as_the_operations_of_the_storage_allow(
    tmp_path: Path, make_dataset: Any
) -> None:
    """2,000 reads/s and twenty for each query are 100 queries/s, however many are asked."""
    url = f"throttled+{make_dataset(**INDEX)[1]}?iops=2000"
    doc, _ = answered(tmp_path, url, rate=200, walk=WALK)
    assert first(doc).reads_per_s == pytest.approx(2000, rel=0.05)
    assert first(doc).requests_per_s == pytest.approx(100, rel=0.05)


SYNC_S = 0.02
COMMITS: dict[str, tuple[dict[str, Any], int]] = {
    "each for itself": ({"wait": False}, 1),
    "groups of five": ({"commit": "group", "group_records": 5, "group_delay": 60}, 5),
}


@pytest.mark.parametrize(
    "name", [pytest.param("each for itself", marks=pytest.mark.nightly), "groups of five"]
)
def test_a_log_commits_as_many_records_as_syncs_of_a_known_cost_allow(
    tmp_path: Path, make_dataset: Any, name: str
) -> None:
    """Twice as many records as one sync after the other can commit, of 20 ms each."""
    spec, group = COMMITS[name]
    truth = group / SYNC_S
    log = f"throttled+{tmp_path / 'log'}?sync={SYNC_S}s"
    doc, _ = answered(
        tmp_path / "results",
        make_dataset(**FILES)[1],
        rate=2 * truth,
        seconds=2,
        log=log,
        log_=spec,
    )
    found = first(doc)
    assert found.log_left == 0
    assert found.log_commits == pytest.approx(found.requests / group, abs=1)
    assert found.log_records_per_s == pytest.approx(truth, rel=0.1)
    assert found.log_keeps_up is False
    assert {finding.rule for finding in doc.findings} >= {"serve.log-behind"}
    # A half of those that arrived within the window is left at its end.
    assert found.log_backlog_end == pytest.approx(found.requests / 2, rel=0.15)
    assert not (tmp_path / "log").exists()


def test_a_crash_loses_the_group_and_what_arrives_during_a_sync(
    tmp_path: Path, make_dataset: Any
) -> None:
    """Records arrive every 5 ms: of 10, one group, 9 wait, and 4 more while it is synced."""
    log = f"throttled+{tmp_path / 'log'}?sync={SYNC_S}s"
    spec = {"commit": "group", "group_records": 10, "group_delay": 60}
    doc, _ = answered(
        tmp_path / "results", make_dataset(**FILES)[1], rate=200, seconds=2, log=log, log_=spec,
        arrivals={"kind": "constant"},
    )  # fmt: skip
    found = first(doc)
    assert found.log_keeps_up is True
    assert found.log_backlog_max is not None
    if found.log_at_risk is not None:  # else pages are not counted here
        assert 4 <= found.log_at_risk <= found.log_backlog_max
        assert found.log_volatile == 0


PLANTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "storage": ("?latency=10ms", {"step_time": 0.0005}, "storage"),
    "accelerator": ("?latency=1ms", {"step_time": 0.012}, "accelerator"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", PLANTED)
def test_the_bottleneck_is_the_planted_one(tmp_path: Path, make_dataset: Any, name: str) -> None:
    options, scenario, bottleneck = PLANTED[name]
    url = f"throttled+{make_dataset(**FILES)[1]}{options}"
    doc, _ = answered(tmp_path, url, rate=50, seconds=4, repetitions=4, limit=0.5, **scenario)
    assert doc.job.verdict.bottleneck == bottleneck

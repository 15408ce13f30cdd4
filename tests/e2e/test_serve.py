"""``iobench serve`` as its users call it: every flag, what is its own, and mistakes.

The limits are long, so that a busy machine breaks none of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iobench.host.tables import read_requests
from iobench.record.run import load_run
from iobench.record.serving import SERVED_COLUMNS
from iobench.runner import serving
from iobench.runner.budget import Budget
from iobench.settings.scenario import load_scenario
from tests.conftest import MakeDataset
from tests.e2e.test_requests import asked, data, document, scenario
from tests.processes import in_process, refused

__all__ = ["asked", "data", "scenario"]


@pytest.fixture
def verb() -> str:
    return "serve"


def check_windows(found: dict[str, Any], results: Path) -> None:
    """Each request of the record is a row, and those that were answered have a latency."""
    trials = found["job"]["trials"]
    rows = read_requests(results / found["run_id"] / "events.parquet")
    assert list(rows) == list(SERVED_COLUMNS)
    assert [int((rows["trial"] == place).sum()) for place in range(len(trials))] == [
        trial["requests"] for trial in trials
    ]
    for trial in trials:
        assert 0 < trial["latency_p50_s"] <= trial["latency_p99_s"] <= trial["latency_max_s"]
        parts = trial["parts"]
        assert sum(parts.values()) == pytest.approx(trial["latency_mean_s"], rel=1e-3)
        assert trial["bytes"] > 0


@pytest.mark.parametrize("form", ["files", pytest.param("parquet", marks=pytest.mark.nightly)])
def test_requests_are_answered(
    make_dataset: MakeDataset, asked: tuple[object, ...], tmp_path: Path, form: str
) -> None:
    _, folder = make_dataset(format=form)
    found = document(*asked, "--data", folder, "--rate", 60)
    kinds = [trial["kind"] for trial in found["job"]["trials"]]
    assert kinds == ["repetition", "without-storage"]
    check_windows(found, tmp_path / "results")
    (repetition,) = found["job"]["trials"][:1]
    assert (repetition["failed"], repetition["unserved"], repetition["holds"]) == (0, 0, True)
    assert found["metrics"]["latency_p99_s"]["n"] == 1
    assert found["job"]["verdict"]["holds"] is True
    assert found["job"]["dataset"]["changed"] == []


def test_every_flag(scenario: Path, data: Path, tmp_path: Path) -> None:
    trace = tmp_path / "a: trace #1.jsonl"
    trace.write_text("".join(f'{{"timestamp": {20 * number}}}\n' for number in range(100)))
    found = document(
        *("serve", scenario, "--data", data, "--trace", trace, "--trace-format", "mooncake"),
        *("--rate", 80, "--limit", "30s", "--duration", "400ms", "--repeat", 2, "--seed", 5),
        *("--budget", "1min", "--set", "reader.direct=false", "--set", "batch_size=4"),
        *("--set", "batch_delay=5ms", "--set", "accelerators=2", "--set", "cache=any"),
        *("--results", tmp_path / "results", "--rules", "mlperf", "--tag", "box=a", "--quiet"),
    )
    scenario_as_run = found["job"]["scenario"]
    assert scenario_as_run["arrivals"]["format"] == "mooncake"
    assert (scenario_as_run["limit"], scenario_as_run["batch_size"]) == (30, 4)
    assert (found["rules"], found["tags"], found["job"]["rate"]) == ("mlperf", {"box": "a"}, 80)
    assert len(found["job"]["trials"]) == 4
    assert found["job"]["trials"][0]["seed"] == 5


def test_requests_arrive_at_the_rate_of_a_trace(
    asked: tuple[object, ...], data: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp\n" + "".join(f"{number / 50}\n" for number in range(101)))
    job = document(*asked, "--data", data, "--trace", trace)["job"]
    assert job["rate"] == pytest.approx(50)
    for trial in job["trials"]:
        assert trial["requests"] == pytest.approx(50 * trial["seconds"], abs=1)


SEARCH = """
name: search
dataset: diskann
limit: 20s
step_time: 1ms
reader: {concurrency: 4}
walk: {search_list: 10, beam_width: 3}
"""


def test_searches_in_an_index_are_answered(
    asked: tuple[object, ...], scenario: Path, tmp_path: Path
) -> None:
    scenario.write_text(SEARCH)
    url = tmp_path / "index"
    assert in_process("generate", "diskann", "--to", url, "--samples", 2000, "--quiet")[0] == 0
    found = document(*asked, "--data", url, "--rate", 40)
    (trial,) = (one for one in found["job"]["trials"] if one["kind"] == "repetition")
    assert trial["failed"] == 0
    assert trial["reads"] / trial["requests"] == pytest.approx(8, rel=0.2)
    assert trial["reads_per_s"] > 0
    assert found["job"]["not_measured"]["recall"]


def test_storage_that_fails_always_is_one_line(
    asked: tuple[object, ...], data: Path, tmp_path: Path
) -> None:
    code, out, err = in_process(*asked, "--data", f"faulty+{data}?short_every=1", "--rate", 60)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    (kept,) = (tmp_path / "results").iterdir()
    assert load_run(kept).status == "failed"


def test_requests_leave_a_log(asked: tuple[object, ...], data: Path, tmp_path: Path) -> None:
    log = tmp_path / "logs"
    words = ("--data", data, "--rate", 60, "--log", log, "--set", "log.commit=rotation")
    found = document(*asked, *words)
    trials = {trial["kind"]: trial for trial in found["job"]["trials"]}
    assert list(trials) == ["repetition", "without-storage", "without-log"]
    for kind, trial in trials.items():
        number = trial["requests"] if kind != "without-log" else 0
        assert (trial["log_records"], trial["log_bytes"]) == (number, 1000 * number)
    assert found["job"]["log"]["url"] == str(log)
    assert not log.exists()
    rows = read_requests(tmp_path / "results" / found["run_id"] / "events.parquet")
    assert (rows["logged_ns"][rows["trial"] == 2] == -1).all()
    page = in_process("report", tmp_path / "results" / found["run_id"], "--details")[1]
    assert "The log:" in page


def test_a_log_has_inputs(asked: tuple[object, ...], data: Path, tmp_path: Path) -> None:
    words = ("--data", data, "--rate", 60, "--log", tmp_path / "logs")
    trial = document(*asked, *words, "--set", "log.inputs=true")["job"]["trials"][0]
    assert trial["log_bytes"] > 5 * 1000 * trial["log_records"] > 0  # of samples of 20 kB


def test_a_log_needs_room_for_what_a_budget_has_time_for(
    scenario: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed: list[float] = []
    monkeypatch.setattr(serving, "check_room", lambda to, each, *words: needed.append(each))
    spec = load_scenario(str(scenario), ["log.to=logs", "arrivals.rate=9", "duration=600"])
    for seconds in (None, 60.0):
        serving.make_serving_plan(spec, str(data), budget=Budget(seconds=seconds))
    assert needed[1] < 0.5 * needed[0]


def test_a_log_without_room_is_one_line(
    asked: tuple[object, ...], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other mistakes are in tests/snapshots/errors.txt."""
    monkeypatch.chdir(tmp_path)
    words = ("--rate", 3000, "--log", "logs", "--duration", "10min", "--set", "log.record=64MiB")
    assert "the log of a window takes" in refused(*asked, "--data", data, *words)
    assert not (tmp_path / "results").exists()

"""``iobench serve`` as its users call it: every flag, every storage, failures and mistakes.

The limits are long, so that a busy machine breaks none of them.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from iobench.host.requests import read_requests
from iobench.record.run import RUN_FILE, ServingRecord, load_run
from iobench.record.serving import SERVED_COLUMNS
from iobench.serve.logs import LOGS
from iobench.storage.local.storage import LocalStorage
from tests.conftest import MakeDataset
from tests.processes import in_process, refused, running, wait_until
from tests.servers.nfs import NfsServer, nfs_server
from tests.servers.s3 import S3Server, rclone_s3, s3_environment

__all__ = ["nfs_server", "rclone_s3", "s3_environment"]

SCENARIO = """
name: mine
dataset: demo
limit: 20s
step_time: 1ms
reader: {concurrency: 4}
"""
QUICK = ("--duration", "500ms", "--repeat", 1, "--quiet")


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def data(make_dataset: MakeDataset) -> Path:
    return make_dataset(format="tar")[1]


@pytest.fixture
def asked(scenario: Path, tmp_path: Path) -> tuple[object, ...]:
    """Of each command of a test: what is measured, for a short time."""
    return ("serve", scenario, "--results", tmp_path / "results", *QUICK)


def document(*words: object) -> dict[str, Any]:
    """The record, which a busy machine may have made INVALID: its client is late."""
    code, out, err = in_process(*words, "--json")
    assert (code in (0, 3), err) == (True, ""), (code, out, err)
    found = json.loads(out)
    ServingRecord.model_validate(found)
    assert isinstance(found, dict)
    return found


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


@pytest.mark.parametrize("form", ["files", "tar", "parquet"])
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


def test_s3(
    asked: tuple[object, ...], rclone_s3: S3Server, s3_environment: Mapping[str, str],
    tmp_path: Path, data: Path,
) -> None:  # fmt: skip
    place = rclone_s3.url(tmp_path.name)
    assert in_process("generate", "demo", "--to", place, "--samples", 24, "--quiet")[0] == 0
    found = document(*asked, "--data", place, "--rate", 60)
    check_windows(found, tmp_path / "results")
    assert found["storage"]["scheme"] == "s3"


def test_nfs(asked: tuple[object, ...], nfs_server: NfsServer, tmp_path: Path, data: Path) -> None:
    shutil.copytree(data, nfs_server.root / tmp_path.name)
    found = document(*asked, "--data", nfs_server.url(tmp_path.name), "--rate", 60)
    check_windows(found, tmp_path / "results")
    assert found["storage"]["scheme"] == "nfs"


def test_the_largest_rate_is_searched(
    asked: tuple[object, ...], data: Path, tmp_path: Path
) -> None:
    """One read of 25 ms at a time: about 40 requests/s."""
    found = document(
        *(*asked, "--data", f"throttled+{data}?latency=25ms", "--find-max"),
        *("--set", "reader.concurrency=1", "--limit", "1s", "--duration", "2s"),
    )
    job = found["job"]
    tried = [trial for trial in job["trials"] if trial["kind"] == "find-max"]
    assert len(tried) >= 2
    assert {trial["rate"] for trial in tried} >= {job["found"]["low"], job["found"]["high"]}
    assert job["rate"] == job["found"]["low"]
    check_windows(found, tmp_path / "results")


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


def test_without_a_rate_a_trace_has_its_own(
    asked: tuple[object, ...], data: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp\n" + "".join(f"{number / 40}\n" for number in range(400)))
    found = document(*asked, "--data", data, "--trace", trace)
    assert found["job"]["rate"] == pytest.approx(40)


def test_a_report_computes_the_figures_again(
    asked: tuple[object, ...], data: Path, tmp_path: Path
) -> None:
    found = document(*asked, "--data", data, "--rate", 60)
    place = tmp_path / "results" / found["run_id"]
    assert in_process("report", place, "--details")[0] in (0, 3)
    again = json.loads(in_process("report", place, "--json")[1])
    assert again["job"] == found["job"]
    for form in ("csv", "markdown", "html", "openmetrics"):
        assert in_process("report", place, "--format", form)[1]
    assert in_process("report", place, "--format", "trace")[0] == 2
    assert in_process("compare", place, place)[0] in (0, 2)
    # Whoever changes a figure in the record alone is found.
    record = json.loads((place / RUN_FILE).read_text())
    record["job"]["trials"][0]["latency_p99_s"] /= 2
    (place / RUN_FILE).write_text(json.dumps(record))
    changed = json.loads(in_process("report", place, "--json")[1])
    assert "record.changed" in {finding["rule"] for finding in changed["findings"]}
    assert changed["job"]["trials"] == found["job"]["trials"]


SEARCH = """
name: search
dataset: diskann
limit: 20s
step_time: 1ms
reader: {concurrency: 4}
walk: {search_list: 10, beam_width: 3}
"""


@pytest.mark.parametrize("where", ["disk", "s3", "nfs"])
def test_searches_in_an_index_are_answered(
    asked: tuple[object, ...],
    scenario: Path,
    tmp_path: Path,
    where: str,
    request: pytest.FixtureRequest,
) -> None:
    scenario.write_text(SEARCH)
    url: object = tmp_path / "index"
    if where != "disk":
        request.getfixturevalue("s3_environment")
        server = request.getfixturevalue("rclone_s3" if where == "s3" else "nfs_server")
        url = server.url(f"{tmp_path.name}/index")
    assert in_process("generate", "diskann", "--to", url, "--samples", 2000, "--quiet")[0] == 0
    found = document(*asked, "--data", url, "--rate", 40)
    (trial,) = (one for one in found["job"]["trials"] if one["kind"] == "repetition")
    assert trial["failed"] == 0
    assert trial["reads"] / trial["requests"] == pytest.approx(8, rel=0.2)
    assert trial["reads_per_s"] > 0
    assert found["job"]["not_measured"]["recall"]


def test_a_search_wants_an_index(data: Path, scenario: Path) -> None:
    command = f"serve {scenario} --data {data} --rate 5"
    scenario.write_text(SEARCH.replace("diskann", "demo"))
    assert "generate diskann" in refused(command)
    assert "walk.beam_width" in refused(f"{command} --set walk.beam_width=0")


def test_failed_reads_are_failed_requests(asked: tuple[object, ...], data: Path) -> None:
    found = document(*asked, "--data", f"faulty+{data}?fail_every=5", "--rate", 100)
    (trial,) = (one for one in found["job"]["trials"] if one["kind"] == "repetition")
    assert 0 < trial["failed"] < trial["requests"] / 2
    assert trial["over"] == pytest.approx(trial["failed"] / trial["requests"])
    assert trial["holds"] is False
    assert "serve.failures" in {finding["rule"] for finding in found["findings"]}


def test_storage_that_fails_always_is_one_line(
    asked: tuple[object, ...], data: Path, tmp_path: Path
) -> None:
    code, out, err = in_process(*asked, "--data", f"faulty+{data}?short_every=1", "--rate", 60)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    (kept,) = (tmp_path / "results").iterdir()
    assert load_run(kept).status == "failed"


def test_an_interrupt_keeps_what_was_measured(
    scenario: Path, data: Path, tmp_path: Path, nothing_left: set[int]
) -> None:
    command = f"serve {scenario} --data {data} --rate 20 --duration 20s"
    results = tmp_path / "results"
    with running(f"{command} --quiet", "--results", results, folder=tmp_path) as process:
        readers = psutil.Process(process.pid).num_threads
        wait_until(lambda: results.exists() and readers() > 4, "no window has begun")
        process.signal(signal.SIGINT)
        ended = process.wait()
    assert ended.code == 130
    (kept,) = results.iterdir()
    assert load_run(kept).status == "interrupted"


COMMITS = ("record", "group", "rotation")


@pytest.mark.parametrize("commit", COMMITS)
def test_requests_leave_a_log(
    asked: tuple[object, ...], data: Path, tmp_path: Path, commit: str
) -> None:
    log = tmp_path / "logs"
    words = ("--data", data, "--rate", 60, "--log", log, "--set", f"log.commit={commit}")
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


def test_a_log_has_inputs_and_lies_on_s3(
    asked: tuple[object, ...], data: Path, rclone_s3: S3Server, s3_environment: None
) -> None:
    log = rclone_s3.url()
    words = ("--data", data, "--rate", 60, "--log", log, "--set", "log.inputs=true")
    found = document(*asked, *words, "--set", "log.commit=group", "--set", "log.writers=2")
    trial = found["job"]["trials"][0]
    assert trial["log_bytes"] > 5 * 1000 * trial["log_records"]  # of samples of 20 kB
    assert trial["log_objects"] == trial["log_commits"] > 0
    assert (trial["log_at_risk"], trial["log_left"]) == (None, 0)
    assert "serve.log-unproven" in {finding["rule"] for finding in found["findings"]}
    listed = rclone_s3.client().list_objects_v2(Bucket="iobench-tests").get("Contents", [])
    assert not [each["Key"] for each in listed if each["Key"].endswith(".log")]


def test_a_log_that_can_not_be_written_is_one_line(
    asked: tuple[object, ...], data: Path, tmp_path: Path
) -> None:
    log = tmp_path / "logs"
    words = ("--data", data, "--rate", 60, "--log", f"faulty+{log}?fail_write_at=5")
    code, out, err = in_process(*asked, *words)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "cannot write window-00000-0000-00000000.log" in err
    assert not list(log.iterdir())
    (kept,) = (tmp_path / "results").iterdir()
    assert load_run(kept).status == "failed"


def test_what_a_killed_run_left_of_its_log_is_removed_by_clean(tmp_path: Path) -> None:
    log = tmp_path / "logs"
    LOGS.claim(LocalStorage(log))
    for name in ("window-00003-0000-00000001.log", "window-00003-0001-00000000.log.part", "mine"):
        (log / name).write_bytes(b"x")
    assert in_process("clean", log)[0] == 0
    assert [path.name for path in log.iterdir()] == ["mine"]


MISTAKES = {
    "no rate": ((), "Give --rate, or --find-max"),
    "a rate of zero": (("--rate", 0), "0"),
    "a rate that one process can't issue": (("--rate", "1e6"), "at most 50,000 requests/s"),
    "both": (("--rate", 5, "--find-max"), "can't be used with"),
    "more requests than a record holds": (
        ("--rate", 40_000, "--duration", "10min"),
        "2,000,000 requests",
    ),
    "less than one request": (("--rate", 0.1, "--duration", "1s"), "less than one request"),
    "a limit below one step": (("--rate", 5, "--limit", "1ms"), "not longer than one step"),
    "no trace": (("--trace", "nowhere.csv"), "cannot read the trace"),
    "a format without a trace": (("--rate", 5, "--trace-format", "azure"), "--trace"),
    "gamma's key for another kind": (("--rate", 5, "--set", "arrivals.cv=2"), "of kind 'gamma'"),
    "a key of a training": (("--rate", 5, "--set", "loader.workers=2"), "unknown key"),
    "a log among the data": (("--rate", 5, "--log", "."), "is not empty"),
    "no room for the log": (
        ("--rate", 3000, "--log", "logs", "--duration", "10min", "--set", "log.record=64MiB"),
        "the log of a window takes",
    ),
    "an answer that waits for a rotation": (
        ("--rate", 5, "--set", "log.commit=rotation", "--set", "log.wait=true"),
        "no answer can wait for the rotation",
    ),
    "an unknown metric": (("--rate", 5, "--fail-on", "latency>1"), "unknown metric"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(
    asked: tuple[object, ...],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    words, said = MISTAKES[name]
    code, out, err = in_process(*asked, "--data", data, *words)
    assert (code, out) == (2, ""), err
    assert err.count("\n") == 1, err
    assert said in err
    assert not (tmp_path / "results").exists()


def test_a_training_is_no_scenario_and_the_other_way_round(data: Path) -> None:
    assert "unknown scenario 'train'" in refused(f"serve train --data {data} --rate 5")
    assert "resnet50-server" in refused(f"serve resnet50-serve --data {data} --rate 5")


def test_a_condition_that_holds_ends_with_status_4(asked: tuple[object, ...], data: Path) -> None:
    code, _, err = in_process(
        *asked, "--data", data, "--rate", 60, "--fail-on", "latency_p50_s>0.000001"
    )
    assert code in (3, 4)
    assert "latency_p50_s" in err

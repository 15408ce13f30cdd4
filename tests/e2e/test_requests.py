"""What ``iobench serve`` and ``iobench kv`` have in common, as their users call them: storages,
searches, reports, failures and mistakes.

The limits are long, so that a busy machine breaks none of them.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from iobench.record.run import KINDS, RUN_FILE, load_run
from iobench.serve.kv.store import KV_CHUNKS
from iobench.serve.logs import LOGS
from iobench.storage.local.storage import LocalStorage
from tests.conftest import MakeDataset
from tests.processes import in_process, running, wait_until
from tests.servers.faultproxy import FaultProxy
from tests.servers.nfs import nfs_server
from tests.servers.s3 import S3Server, rclone_s3, s3_environment

__all__ = ["nfs_server", "rclone_s3", "s3_environment"]

QUICK = ("--duration", "500ms", "--repeat", 1, "--quiet")

SERVE = """
name: mine
dataset: demo
limit: 20s
step_time: 1ms
reader: {concurrency: 4}
"""
KV = """
kind: kv-cache
name: mine
model: {layers: 4, heads: 4, kv_heads: 2, head_dim: 16, parameters: 1e6}
chunk_tokens: 16
prefill: {tokens_per_s: 100000}
arrivals:
  {kind: sessions, rate: 60, turns: 4, tool_share: 0.5, tool_pause: 100ms, person_pause: 1s}
prompts:
  {shared_tokens: 32, new_tokens: 60, new_tokens_p90: 200, output_tokens: 10, max_tokens: 1000}
reader: {concurrency: 4}
dram: 500kB
capacity: 2MB
limit: 20s
"""
SCENARIOS = {"serve": SERVE, "kv": KV}


@pytest.fixture(params=list(SCENARIOS))
def verb(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scenario(verb: str, tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(SCENARIOS[verb])
    return path


@pytest.fixture
def asked(verb: str, scenario: Path, tmp_path: Path) -> tuple[object, ...]:
    """Of each command of a test: what is measured, for a short time."""
    return (verb, scenario, "--results", tmp_path / "results", *QUICK)


@pytest.fixture
def data(make_dataset: MakeDataset) -> Path:
    return make_dataset(format="tar")[1]


@pytest.fixture
def place(verb: str, data: Path, tmp_path: Path) -> Path:
    """What is read, or where the cache is made."""
    return data if verb == "serve" else tmp_path / "kv"


def at(verb: str, url: object, rate: float = 60) -> tuple[object, ...]:
    """The words for a place; a cache has its rate from the scenario."""
    return ("--data", url, "--rate", rate) if verb == "serve" else ("--to", url)


def document(*words: object) -> dict[str, Any]:
    """The record, which a busy machine may have made INVALID: its client is late."""
    code, out, err = in_process(*words, "--json")
    assert (code in (0, 3), err) == (True, ""), (code, out, err)
    found = json.loads(out)
    KINDS[found["job"]["kind"]].model_validate(found)
    assert isinstance(found, dict)
    return found


@pytest.mark.usefixtures("s3_environment")
@pytest.mark.parametrize("verb", ["kv"])
@pytest.mark.parametrize(
    ("server", "engine"),
    [
        ("rclone_s3", "event_loop"),
        pytest.param("nfs_server", "threads", marks=pytest.mark.nightly),
    ],
)
def test_a_cache_on_a_server(
    verb: str, server: str, engine: str, asked: tuple[object, ...], request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(server).url("kv")
    few = ("--set", "capacity=600kB", "--set", "dram=150kB", "--set", "prompts.max_tokens=500")
    found = document(*asked, *at(verb, url), *few)
    first = found["job"]["trials"][0]
    assert (found["job"]["engine"], first["failed"], first["unserved"]) == (engine, 0, 0)
    assert first["bytes"] > 0
    assert in_process("clean", url)[0] == 2  # nothing is left


@pytest.mark.usefixtures("s3_environment")
@pytest.mark.parametrize("verb", ["serve"])
def test_a_server_that_asks_to_slow_down_is_told(
    verb: str, asked: tuple[object, ...], rclone_s3: S3Server
) -> None:
    """Each such answer makes a request wait, which would be taken for the storage's latency."""
    url = rclone_s3.url(retries=50)
    assert in_process("generate", "demo", "--to", url, "--samples", 24, "--quiet")[0] == 0
    with FaultProxy(rclone_s3.port, slow_down_every=8) as proxy:
        found = document(*asked, *at(verb, url.replace(str(rclone_s3.port), str(proxy.port))))
    (trial,) = (trial for trial in found["job"]["trials"] if trial["kind"] == "repetition")
    assert trial["retries"] == trial["throttled"] > 0
    rules = [finding["rule"] for finding in found["findings"]]
    assert "storage.throttled" in rules
    assert "storage.retries" not in rules
    code, text, _ = in_process("report", asked[3] / Path(found["run_id"]))
    assert (code in (0, 3), "asked for a lower" in text) == (True, True), text


SEARCHED = {
    # One read of 25 ms at a time.
    "serve": ("--set", "reader.concurrency=1"),
    # An engine computes 300 tokens in 30 ms or more.
    "kv": ("--set", "prefill.tokens_per_s=2000", "--set", "quantile=0.5"),
}
"""So that some tens of requests/s are the most."""


@pytest.mark.nightly
def test_the_largest_rate_is_searched(verb: str, asked: tuple[object, ...], place: Path) -> None:
    url = f"throttled+{place}?latency=25ms" if verb == "serve" else place
    where = at(verb, url)[:2]
    more = ("--find-max", "--limit", "500ms", "--duration", "1s", *SEARCHED[verb])
    job = document(*asked, *where, *more)["job"]
    tried = [trial for trial in job["trials"] if trial["kind"] == "find-max"]
    assert len(tried) >= 2
    assert {trial["rate"] for trial in tried} >= {job["found"]["low"], job["found"]["high"]}
    assert job["rate"] == job["found"]["low"]


def test_a_report_computes_the_figures_again(
    verb: str, asked: tuple[object, ...], place: Path, tmp_path: Path
) -> None:
    found = document(*asked, *at(verb, place))
    run = tmp_path / "results" / found["run_id"]
    again = json.loads(in_process("report", run, "--json")[1])
    assert again["job"] == found["job"]
    assert in_process("report", run, "--details")[0] in (0, 3)
    assert in_process("report", run, "--format", "trace")[0] == 2
    # Whoever changes a figure in the record alone is found.
    record = json.loads((run / RUN_FILE).read_text())
    record["job"]["trials"][0]["latency_p99_s" if verb == "serve" else "loading_s"] /= 2
    (run / RUN_FILE).write_text(json.dumps(record))
    changed = json.loads(in_process("report", run, "--json")[1])
    assert "record.changed" in {finding["rule"] for finding in changed["findings"]}
    assert changed["job"]["trials"] == found["job"]["trials"]


@pytest.mark.parametrize("verb", ["serve"])
def test_failed_reads_are_failed_requests(
    verb: str, asked: tuple[object, ...], place: Path
) -> None:
    found = document(*asked, *at(verb, f"faulty+{place}?fail_every=5", rate=100))
    trial = next(one for one in found["job"]["trials"] if one["kind"] == "repetition")
    assert 0 < trial["failed"] < trial["requests"]
    assert trial["over"] >= trial["failed"] / trial["requests"]
    assert trial["holds"] is False
    assert "serve.failures" in {finding["rule"] for finding in found["findings"]}


def test_an_interrupt_keeps_what_was_measured(
    verb: str, scenario: Path, place: Path, tmp_path: Path, nothing_left: set[int]
) -> None:
    words = " ".join(map(str, (verb, scenario, *at(verb, place, rate=20))))
    results = tmp_path / "results"
    with running(
        f"{words} --duration 20s --quiet", "--results", results, folder=tmp_path
    ) as process:
        readers = psutil.Process(process.pid).num_threads
        begun: Callable[[], bool] = (
            (lambda: results.exists() and readers() > 4)
            if verb == "serve"
            else (lambda: any(place.glob("*.kv")))
        )
        wait_until(begun, "no window has begun")
        process.signal(signal.SIGINT)
        ended = process.wait()
    assert ended.code == 130
    (kept,) = results.iterdir()
    assert load_run(kept).status == "interrupted"
    assert place.exists() == (verb == "serve")  # no chunk is left


def test_what_a_killed_run_left_is_removed_by_clean(tmp_path: Path) -> None:
    for kind, names in (
        (LOGS, ("window-00003-0000-00000001.log", "window-00003-0001-00000000.log.part")),
        (KV_CHUNKS, ("window-00003-000000001-0000.kv", "window-00003-000000002-0001.kv.part")),
    ):
        place = tmp_path / names[0]
        kind.claim(LocalStorage(place))
        for name in (*names, "mine"):
            (place / name).write_bytes(b"x")
        assert in_process("clean", place)[0] == 0
        assert [path.name for path in place.iterdir()] == ["mine"]

"""``iobench kv`` as its users call it: every flag, what is its own, and mistakes.

The limit is long, so that a busy machine does not break it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import StorageError
from iobench.base.safety import Removal
from iobench.host.tables import read_requests
from iobench.record.run import load_run
from iobench.record.serving import KV_COLUMNS
from iobench.runner.kv_cache import make_kv_plan, run_kv
from iobench.runner.options import VerbOptions
from iobench.serve.client import issue
from iobench.serve.kv.store import ChunkStore
from iobench.settings.kv_cache import load_kv_scenario
from iobench.storage.local.storage import LocalStorage
from iobench.storage.local.uring import refused as no_ring
from iobench.storage.markers import Marked
from tests.e2e.test_requests import QUICK, asked, document, scenario
from tests.processes import refused

__all__ = ["asked", "scenario"]

WINDOWS = ["repetition", "without-reads", "without-writes", "without-lookups"]


@pytest.fixture
def verb() -> str:
    return "kv"


def check_windows(found: dict[str, Any], results: Path) -> None:
    """Each request is a row, its parts add up, and what is counted is what was planned."""
    trials = found["job"]["trials"]
    rows = read_requests(results / found["run_id"] / "events.parquet", KV_COLUMNS)
    assert list(rows) == list(KV_COLUMNS)
    chunk = 16 * 2 * 2 * 16 * 2 * 4
    for place, trial in enumerate(trials):
        of_trial, arrives = rows["trial"] == place, rows["intended_ns"] >= 0
        assert of_trial.sum() == trial["traffic"]["requests"]
        mine = {name: each[of_trial & arrives] for name, each in rows.items()}
        assert len(mine["failed"]) == trial["requests"] > 0
        assert (trial["failed"], trial["unserved"], trial["writes_failed"]) == (0, 0, 0)
        assert sum(trial["parts"].values()) == pytest.approx(trial["latency_mean_s"], rel=1e-3)
        order = ("intended_ns", "issued_ns", "waited_ns", "looked_ns", "copied_ns", "ready_ns")
        times = np.array([mine[name] for name in order])
        assert (np.diff(times, axis=0) >= 0).all()
        assert trial["chunks_loaded"] == mine["chunks"].sum() > 0
        reads = 0 if trial["kind"] == "without-reads" else trial["chunks_loaded"] * chunk
        assert trial["bytes"] == reads
        assert (trial["chunks_written"] > 0) is (trial["kind"] != "without-writes")
        assert trial["written_bytes"] == trial["chunks_written"] * chunk


@pytest.mark.parametrize("layout", ["files", "extents"])
def test_a_cache_on_disk(asked: tuple[object, ...], tmp_path: Path, layout: str) -> None:
    found = document(*asked, "--to", tmp_path / "kv", "--set", f"layout={layout}")
    kinds = WINDOWS if layout == "files" else WINDOWS[:-1]  # extents have an index in memory
    assert [trial["kind"] for trial in found["job"]["trials"]] == kinds
    assert (found["job"]["engine"] == "threads") is (layout == "files" or no_ring() is not None)
    assert found["job"]["trials"][0]["plain_bytes_per_s"] > 0
    assert found["job"]["verdict"]["of_plain"]["value"] > 0
    check_windows(found, tmp_path / "results")
    hits = [(trial["memory_tokens"], trial["loaded_tokens"]) for trial in found["job"]["trials"]]
    assert len({*hits}) == 1
    assert found["job"]["trials"][0]["chunks_deleted"] > 0
    assert found["metrics"]["hit_rate"]["n"] == 1
    assert not (tmp_path / "kv").exists()


def test_every_flag(scenario: Path, tmp_path: Path) -> None:
    found = document(
        *("kv", scenario, "--to", tmp_path / "kv", "--rate", 40, "--limit", "30s"),
        *("--duration", "400ms", "--repeat", 2, "--seed", 5, "--budget", "2min"),
        *("--accelerator-price-per-hour", 2.5, "--set", "layers=2", "--set", "dtype=fp8"),
        *("--set", "tensor_parallel=2", "--set", "admission=seen-twice", "--set", "durable=true"),
        *("--set", "lookups=memory", "--set", "reader.direct=false", "--set", "writers=2"),
        *("--set", "reader.engine=io_uring", "--set", "memory=real"),
        *("--set", "arrivals={kind: gamma, cv: 2}"),
        *("--results", tmp_path / "results", "--rules", "mlperf", "--tag", "box=a", "--quiet"),
    )
    job = found["job"]
    assert (job["scenario"]["layers"], job["rate"], job["price_per_hour"]) == (2, 40, 2.5)
    assert [trial["kind"] for trial in job["trials"]].count("repetition") == 2
    assert job["trials"][0]["seed"] == 5
    assert len(job["trials"]) == 6  # look-ups in memory can't be left out
    assert {trial["flush_s"] for trial in job["trials"]} == {None}
    assert (found["rules"], found["tags"], job["direct"]) == ("mlperf", {"box": "a"}, False)
    assert job["engine"] == ("threads" if no_ring() else "io_uring")
    assert min(trial["held_bytes"] for trial in job["trials"]) > 0


def test_a_trace(asked: tuple[object, ...], tmp_path: Path) -> None:
    trace = tmp_path / "a: trace #1.jsonl"
    rows = [
        {"timestamp": number / 100, "input_length": 30 + number % 9, "hash_ids": [0, 1, number % 7]}
        for number in range(300)
    ]
    trace.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    asked = (*asked, "--to", tmp_path / "kv", "--trace", trace, "--trace-format", "bailian")
    found = document(*asked)
    assert found["job"]["scenario"]["arrivals"]["format"] == "bailian"
    assert found["job"]["rate"] == pytest.approx(100)
    first = found["job"]["trials"][0]
    assert first["memory_tokens"] + first["loaded_tokens"] > 0


def test_a_write_that_fails_is_told_and_so_are_requests_for_it(
    asked: tuple[object, ...], scenario: Path, tmp_path: Path
) -> None:
    plan = make_kv_plan(load_kv_scenario(str(scenario), ["duration=500ms"]), str(tmp_path / "kv"))
    assert plan.rate is not None
    first = len(plan.window(plan.rate, 42).before) + 2  # after the marker
    found = document(*asked, "--to", f"faulty+{tmp_path / 'kv'}?fail_write_at={first}")
    trial = found["job"]["trials"][0]
    assert trial["writes_failed"] == 1
    assert "simulated" in trial["write_error"]
    assert "kv.write-failures" in {finding["rule"] for finding in found["findings"]}


@pytest.mark.parametrize("engine", ["io_uring", "threads"])
def test_what_is_loaded_lies_in_memory_where_it_is_found_later(
    scenario: Path, tmp_path: Path, engine: str
) -> None:
    spec = load_kv_scenario(
        str(scenario),
        ["memory=real", f"reader.engine={engine}", "reader.concurrency=1", "duration=1s"],
    )
    plan = make_kv_plan(spec, str(tmp_path)).window(60.0, 1)
    store = ChunkStore(spec, LocalStorage(tmp_path), plan, window=0, held=lambda: None)
    store.prepare()
    last = {
        slot: chunk
        for each in plan.requests
        for chunk, slot in zip(each.loads, each.into, strict=True)
        if slot >= 0
    }
    stored = {}
    kept = store.layout.delete
    store.layout.delete = lambda chunk: None  # type: ignore[method-assign]
    issue(plan.instants, range(len(plan.instants)), store.readers(), drain_s=5.0, sequel=store)
    store.end(5.0)
    for slot, chunk in last.items():
        (path,) = tmp_path.glob(f"window-00000-{chunk:09d}-*.kv")
        stored[slot] = path.read_bytes()
    assert len(stored) > 3
    memory = store._slots
    assert memory is not None
    wrong = [slot for slot, data in stored.items() if memory[slot, : len(data)].tobytes() != data]
    assert not wrong
    store.layout.delete = kept  # type: ignore[method-assign]
    store.remove()


@pytest.mark.parametrize(("damage", "engine"), [("gone", "io_uring"), ("shorter", "threads")])
def test_a_chunk_that_vanished_fails_the_request_that_loads_it(
    scenario: Path, tmp_path: Path, damage: str, engine: str
) -> None:
    place = tmp_path / "kv"
    place.mkdir()
    spec = load_kv_scenario(str(scenario), ["dram=0", f"reader.engine={engine}", "duration=500ms"])
    plan = make_kv_plan(spec, str(place)).window(60.0, 1)
    store = ChunkStore(spec, LocalStorage(place), plan, window=0, held=lambda: None)
    store.prepare()
    lost = next(
        each.loads[0] for each in plan.requests if each.loads and each.loads[0] in plan.before
    )
    (path,) = place.glob(f"window-00000-{lost:09d}-*.kv")
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"x")
    issued = issue(
        plan.instants, range(len(plan.instants)), store.readers(), drain_s=5.0, sequel=store
    )
    store.end(5.0)
    store.remove()
    hit = [lost in each.loads for each in plan.requests]
    assert (issued.failed > 0).tolist() == hit
    assert path.name in str(issued.failure)
    assert not list(place.iterdir())


def test_an_unexpected_error_of_a_write_ends_the_window(scenario: Path, tmp_path: Path) -> None:
    spec = load_kv_scenario(str(scenario), ["dram=0", "duration=500ms"])
    plan = make_kv_plan(spec, str(tmp_path)).window(60.0, 1)
    store = ChunkStore(spec, LocalStorage(tmp_path), plan, window=0, held=lambda: None)
    store.prepare()

    def put(chunk: int) -> None:
        raise RuntimeError("unexpected")

    store.layout.put = put  # type: ignore[method-assign]
    issue(plan.instants, range(len(plan.instants)), store.readers(), drain_s=5.0, sequel=store)
    with pytest.raises(RuntimeError, match="unexpected"):
        store.end(5.0)
    store.remove()


@pytest.mark.parametrize(
    ("place", "words"),
    [("faulty+kv", ("--set", "layout=extents")), ("kv", ("--set", "reader.direct=true"))],
)
def test_what_a_place_does_not_have_is_one_line(
    place: str,
    words: tuple[str, ...],
    scenario: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other mistakes are in tests/snapshots/errors.txt."""
    monkeypatch.setattr(LocalStorage, "supports_direct", lambda self, key: False)
    monkeypatch.chdir(tmp_path)
    refused("kv", scenario, "--to", place, *QUICK, *words)
    assert not (tmp_path / "kv").exists()


def test_nothing_stays_where_no_run_began(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    refused("kv", scenario, "--to", "kv", *QUICK, "--results", "taken/r", code=1)
    assert not (tmp_path / "kv").exists()


def test_windows_are_kept_where_the_chunks_can_not_be_removed(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*asked: object, **how: object) -> Removal:
        raise StorageError("the server is gone")

    monkeypatch.setattr(Marked, "clean", fails)
    plan = make_kv_plan(load_kv_scenario(str(scenario), ["duration=200ms"]), str(tmp_path / "kv"))
    with pytest.raises(StorageError, match=r"the server is gone\. What was measured"):
        run_kv(replace(plan, repetitions=1), VerbOptions(results=tmp_path / "r"))
    (directory,) = (tmp_path / "r").iterdir()
    assert len(load_run(directory).job.trials) == len(WINDOWS)  # type: ignore[union-attr]

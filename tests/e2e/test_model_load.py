"""``iobench load`` as its users call it: every flag, what it refuses, and nothing left behind."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from iobench.runner.model_load import LoadsBegun
from iobench.serve.weights import SUFFIX, RankShare, Sharing, read_weights
from iobench.storage import open_storage
from iobench.storage.local.storage import LocalStorage
from tests.processes import (
    check_ended,
    completed,
    document,
    family,
    printed,
    refused,
    running,
    wait_until,
)
from tests.servers.faultproxy import FaultProxy
from tests.servers.s3 import S3Server, rclone_s3, s3_environment
from tests.small_models import bytes_to_read, small_weights

__all__ = ["rclone_s3", "s3_environment"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("weights") / "qwen"
    small_weights(place)
    return place


@pytest.fixture
def load(model: Path, tmp_path: Path) -> str:
    """The command, with one round and its place for results."""
    return f"load {model} --results {tmp_path}/results --repeat 1"


def whole(doc: dict[str, Any]) -> list[dict[str, Any]]:
    """The trials of whole loads."""
    return [each for each in doc["job"]["trials"] if each["left_out"] is None]


def test_a_load_holds_together(load: str, tmp_path: Path) -> None:
    doc = document(f"{load} --loader direct,mmap --replicas 1,2 --engine-start 45s --tag box=a")
    job = doc["job"]
    assert (doc["status"], doc["validity"], job["kind"]) == ("ok", "valid", "model-load")
    assert (job["tensors"], job["shards"] > 1, doc["tags"]) == (14, True, {"box": "a"})
    assert sum(each["bytes"] for each in job["classes"]) == job["bytes"]
    assert job["retained"] == "local and cold"
    variants = {(each["loader"], each["replicas"], each["one_read"]) for each in whole(doc)}
    assert variants == {
        *(("direct", count, False) for count in (1, 2)),
        *(("mmap", count, False) for count in (1, 2)),
        ("direct", 2, True),
    }
    left_out = {(each["loader"], each["left_out"]) for each in job["trials"] if each["left_out"]}
    assert left_out == {("direct", "storage"), ("mmap", "storage"), ("", "assembly")}
    for each in whole(doc):
        assert 0 < each["first_ready_s"] <= each["ready_s"]
        assert each["residency_before"] == 0
        if each["loader"] == "direct":
            copies = 1 if each["one_read"] else each["replicas"]
            assert copies * job["bytes"] <= each["read_bytes"] < 1.01 * copies * job["bytes"]
    assert {each["replicas"] for each in job["plain"]} == {1, 2}
    assert doc["metrics"]["ready_s"]["n"] == 1
    (run,) = (tmp_path / "results").iterdir()
    assert document(f"report {run}") == doc
    assert printed(f"report {run} --format csv").count("\n") == 1 + len(job["trials"])
    assert "iobench_load" in printed(f"report {run} --format openmetrics")
    assert "45.0 s engine start" in printed(f"report {run}").replace("\n", " ")
    assert refused(f"report {run} --format mlperf", code=2)


def test_a_warm_load_reads_nothing_from_the_storage(load: str) -> None:
    doc = document(f"{load} --loader direct --state warm")
    (trial,) = whole(doc)
    assert trial["residency_before"] == 1
    # The kernel may read pages of the program meanwhile: 13 MB where none of them is cached.
    assert (trial["fetched_bytes"] or 0) < doc["job"]["bytes"]
    assert (doc["validity"], doc["job"]["retained"]) == ("valid", "page cache warm")


def test_a_load_that_was_to_be_cold_and_is_warm_is_invalid(
    load: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files stay in the page cache, as they do while another process has mapped them."""
    monkeypatch.setattr(LocalStorage, "evict", lambda storage, keys: None)
    printed(f"{load} --loader mmap --state warm")
    doc = document(f"{load} --loader mmap", code=3)
    assert (doc["validity"], doc["job"]["retained"]) == ("invalid", None)
    assert "load.cold-residency" in {each["rule"] for each in doc["findings"]}


@pytest.mark.parametrize("share", ["sliced", "exchange"])
def test_ranks_of_a_replica_read_what_their_share_says(
    load: str, share: Sharing, model: Path
) -> None:
    doc = document(f"{load} --loader direct --tensor-parallel 2 --share {share}")
    (trial,) = whole(doc)
    weights, page = read_weights(open_storage(str(model))), 4096
    ranks = [RankShare(share, rank, 2) for rank in (0, 1)]
    assert trial["read_bytes"] == sum(
        bytes_to_read(weights, each, alignment=page) for each in ranks
    )
    assert doc["metrics"]["ready_skew_s"]["median"] >= 0


def test_blocks_and_reads_in_flight_are_heeded(load: str) -> None:
    asked = f"{load} --loader direct --block-size 128KiB --concurrency 2 --fail-on ready_s>0"
    found = completed(*asked.split(), "--quiet", "--json")
    assert (found.returncode, found.stderr.count("\n")) == (4, 1)
    doc = json.loads(found.stdout)
    in_flight = {each["more"]: each["in_flight"] for each in doc["job"]["plain"]}
    assert in_flight == {False: 2, True: 8}
    assert "128 KiB" in doc["job"]["plain_how"]


def test_a_copy_is_made_in_each_round_and_removed(load: str, model: Path, tmp_path: Path) -> None:
    slow = load.replace(str(model), f"'throttled+{model}?bandwidth=50MB'")
    doc = document(f"{slow} --loader direct --copy-to {tmp_path}/copy")
    copied = doc["job"]["copied"]
    (near,) = [each for each in whole(doc) if each["copy_s"] is not None]
    assert near["ready_s"] == copied["ready_s"] < doc["metrics"]["ready_s"]["median"]
    assert copied["starts"]["value"] == pytest.approx(
        near["copy_s"] / (doc["metrics"]["ready_s"]["median"] - near["ready_s"])
    )
    assert not (tmp_path / "copy").exists()


def test_ctrl_c_keeps_what_was_measured_and_leaves_no_process(
    load: str, tmp_path: Path, model: Path
) -> None:
    slow = load.replace(str(model), f"'throttled+{model}?bandwidth=5MB'")
    command = f"{slow} --loader direct --copy-to {tmp_path}/copy"
    with running(command, folder=tmp_path) as process:
        wait_until(lambda: bool(process.children()), "a replica starts")
        ranks = family(process.pid)
        process.signal(signal.SIGINT)
        assert process.wait().code == 130
    check_ended(ranks)
    (run,) = (tmp_path / "results").glob("*/run.json")
    assert json.loads(run.read_text())["status"] == "interrupted"
    assert not (tmp_path / "copy").exists()


def test_files_that_are_replaced_meanwhile_make_a_load_invalid(
    load: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same bytes, so that all tensors are right."""
    victim, real = min(model.glob(f"*{SUFFIX}")), LoadsBegun._read_plainly

    def replaced(begun: LoadsBegun, *asked: Any, **more: Any) -> None:
        shutil.copy(victim, fresh := victim.with_name("fresh"))
        fresh.replace(victim)
        real(begun, *asked, **more)

    monkeypatch.setattr(LoadsBegun, "_read_plainly", replaced)
    doc = document(f"{load} --loader direct", code=3)
    assert doc["job"]["changed"] == [victim.name]
    assert [each["rule"] for each in doc["findings"] if each["level"] == "invalid"] == [
        "data.changed"
    ]


def test_wrong_tensors_fail_the_run(model: Path, tmp_path: Path) -> None:
    """The bytes of a generated file are known, so that a change of one is found."""
    place = tmp_path / "damaged"
    small_weights(place)
    shard = min(place.glob(f"*{SUFFIX}"))
    with open(shard, "r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    said = refused(f"load {place} --results {tmp_path}/results --repeat 1", code=1)
    assert len(said.strip().splitlines()) == 1
    (run,) = (tmp_path / "results").glob("*/run.json")
    assert json.loads(run.read_text())["status"] == "failed"


@pytest.mark.parametrize(
    "more",
    [
        "--loader mmap --concurrency 4",
        "--share sliced --loader eager",
        "--copy-to /",
        "--copy-to copy --state warm",
        "--copy-to .",
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_written(
    load: str, more: str, tmp_path: Path
) -> None:
    """Other mistakes are in tests/snapshots/errors.txt."""
    (tmp_path / "thesis.txt").write_text("mine")
    refused(f"{load} {more}", cwd=tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.txt"]


def test_links_of_a_hubs_cache_are_refused_with_what_to_do(tmp_path: Path, model: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for shard in model.glob(f"*{SUFFIX}"):
        (snapshot / shard.name).symlink_to(shard)
    assert f"cp -rL {snapshot}" in refused(f"load {snapshot}", code=2)


def test_weights_of_a_server_that_asks_to_slow_down(
    rclone_s3: S3Server, tmp_path: Path, s3_environment: Any
) -> None:
    """What was asked for again is told; and nothing of a bucket is warm."""
    url = rclone_s3.url("weights", retries=50)
    printed(f"generate qwen3-0.6b-weights --to {url} --layers 1 --vocabulary 64")
    with FaultProxy(rclone_s3.port, slow_down_every=4) as proxy:
        slow = url.replace(str(rclone_s3.port), str(proxy.port))
        doc = document(f"load {slow} --repeat 1 --results {tmp_path}/results")
    again = [trial["retries"] for trial in doc["job"]["trials"]]
    assert again == [trial["throttled"] for trial in doc["job"]["trials"]]
    assert sum(again) > 0
    assert "storage.throttled" in [finding["rule"] for finding in doc["findings"]]
    assert "page cache" in refused(f"load {url} --state warm", code=2)


def test_clean_removes_the_weights_that_were_made_and_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / "w"
    printed(f"generate qwen3-0.6b-weights --to {place} --layers 1 --vocabulary 64")
    (place / "tokenizer.json").write_text("{}")
    small_weights(place / "others")
    shutil.copy(place / "model.safetensors", place / "mine.safetensors")
    assert document(f"clean {place} --dry-run")["files"] == 2
    assert (place / "model.safetensors").exists()
    found = document(f"clean {place}")
    assert found["files"] == 2
    assert {"mine.safetensors", "tokenizer.json"} <= set(found["foreign"])
    assert sorted(each.name for each in place.iterdir()) == [
        "mine.safetensors",
        "others",
        "tokenizer.json",
    ]

"""Cold to the end of an epoch: what a cache serves makes a run INVALID, whoever filled it."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from iobench.base import pagecache
from iobench.host.fetched import probe
from iobench.runner import cache
from tests.datasets import generated
from tests.processes import document, in_process, printed, read_by_workers, running, wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")

SPEC = {
    "name": "shared",
    "samples": 480,
    "sample_size": {"mean": 20_000},
    "format": "tar",
    "samples_per_shard": 30,
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a dataset of 10 MB in the page cache, and a job of one epoch of over 3 s."""
    monkeypatch.chdir(tmp_path)
    generated(tmp_path / "data", **SPEC)
    if why := probe(shards(tmp_path)):
        pytest.skip(f"reads of {tmp_path} are not counted: {why}")
    warm(tmp_path)
    (tmp_path / "shared.yaml").write_text(json.dumps(SPEC))
    job = {
        "name": "job",
        "dataset": "./shared.yaml",
        "batch_size": 8,
        "accelerator": {"kind": "emulated", "step_time": 0.05},
        "loader": {"workers": 1},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    return tmp_path


def shards(home: Path) -> list[Path]:
    return sorted((home / "data" / "data").iterdir())


def warm(home: Path) -> None:
    for shard in shards(home):
        shard.read_bytes()


def arguments(*settings: str) -> list[str]:
    fixed = ["run", "./job.yaml", "--data", "data", "--calibration", "0", "--repeat", "1"]
    return [*fixed, *(part for each in settings for part in ("--set", each))]


def run(*settings: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = in_process(*arguments(*settings), "--json")
    return code, json.loads(out)


def rules(doc: dict[str, Any]) -> list[str]:
    return [finding["rule"] for finding in doc["findings"] if finding["level"] == "invalid"]


def from_storage(doc: dict[str, Any]) -> list[float]:
    """The share of the delivered bytes that storage delivered, in each epoch that was counted."""
    return [
        epoch["bytes_fetched"] / epoch["sample_bytes"]
        for repetition in doc["job"]["repetitions"]
        for epoch in repetition["epochs"]
        if epoch["bytes_fetched"] is not None
    ]


@contextmanager
def second_reader(home: Path) -> Iterator[None]:
    """A process that reads all shards whenever workers have read some more of an epoch.

    It waits until they are evicted and workers read: by then the cache was found empty.
    """

    def read(runner: int) -> None:
        wait_until(lambda: not pagecache.residency(shards(home)).resident_bytes, "no eviction")
        while True:
            before = read_by_workers(runner)
            wait_until(lambda: read_by_workers(runner) > before, "no worker reads")  # noqa: B023
            warm(home)

    reader = multiprocessing.get_context("fork").Process(target=read, args=(os.getpid(),))
    reader.start()
    try:
        yield
    finally:
        reader.kill()
        reader.join()


@pytest.mark.parametrize(
    "setting",
    ["reader.direct=false", pytest.param("loader.kind=torch-map", marks=pytest.mark.nightly)],
)
def test_a_second_reader_during_the_epoch_makes_it_invalid(home: Path, setting: str) -> None:
    with second_reader(home):
        code, doc = run(setting)
    assert code == 3
    assert doc["validity"] == "invalid"
    assert rules(doc) == ["cache.cold-fetch"]
    assert (
        doc["job"]["repetitions"][0]["epochs"][0]["residency_before"] == 0
    )  # as it began, it was cold
    assert from_storage(doc)[0] < 0.99
    (result,) = (home / "results").iterdir()
    assert "cold reads" in printed("report", result, code=3)


Refill = Callable[[int], list[int]]


@pytest.fixture
def refill(home: Path, monkeypatch: pytest.MonkeyPatch) -> Refill:
    """``refill(times)``: so many times somebody fills the cache as soon as it was found empty.

    The epochs before which it was emptied are added to the list that is returned.
    """

    def begin(times: int) -> list[int]:
        prepare, emptied = cache.prepare_cache, []

        def and_warm(plan: Any, agent: Any, epoch: int) -> Any:
            context = prepare(plan, agent, epoch)
            emptied.append(epoch)
            if len(emptied) <= times:
                warm(home)
            return context

        monkeypatch.setattr(cache, "prepare_cache", and_warm)
        return emptied

    return begin


def test_a_second_reader_does_not_matter_to_direct_reads(home: Path, refill: Refill) -> None:
    emptied = refill(10)
    code, doc = run("reader.direct=true", "accelerator.step_time=1ms")
    assert (code, doc["validity"]) == (0, "valid")
    assert from_storage(doc)[0] >= 1
    assert 0 < len(emptied) <= 10
    assert pagecache.residency(shards(home)).ratio > 0.5  # it was there


@pytest.mark.parametrize(
    "settings",
    [
        ["reader.direct=false", "loader.persistent_workers=false", "reader.access=random"],
        ["reader.mmap=true"],
        pytest.param(["loader.kind=torch-map"], marks=pytest.mark.nightly),
    ],
)
def test_nobody_else_reads(home: Path, settings: list[str]) -> None:
    code, doc = run(*settings, "epochs=2", "accelerator.step_time=1ms")
    assert (code, doc["validity"]) == (0, "valid")
    shares = from_storage(doc)
    assert len(shares) == 2
    assert min(shares) >= 1


def test_a_ceiling_that_a_cache_served_is_told(refill: Refill) -> None:
    """Its reads come first, and only they find the cache full."""
    emptied = refill(1)
    settings = arguments("reader.direct=false", "accelerator.step_time=1ms")
    code, out, _ = in_process(*settings, "--json", "--calibration", "0.1s", "--no-ablations")
    doc = json.loads(out)
    assert len(emptied) == 2
    assert code == 3
    fetch = doc["job"]["ceilings"]["fetch"]
    assert fetch["cold"]["bytes_fetched"] < 0.5 * fetch["cold"]["sample_bytes"]
    assert "not cold" in fetch["how"]
    assert min(from_storage(doc)) >= 1
    assert rules(doc) == ["cache.cold-fetch"]


@pytest.mark.nightly
def test_two_runs_over_one_dataset_feed_each_other(home: Path) -> None:
    """The other run lasts until this one is over, and each page is fetched by one of the two."""
    words = arguments("reader.direct=false", "epochs=1000")
    with running("", *words, "--results", "other", folder=home) as other:
        wait_until(lambda: read_by_workers(other.pid) > 0, "the other run does not read")
        _, mine = run("reader.direct=false", "epochs=2")
        assert not other.ended()  # it was there all the time
        other.signal(signal.SIGINT)
        assert other.wait().code == 130
    (result,) = (home / "other").iterdir()
    others = json.loads((result / "run.json").read_text())
    assert "invalid" in (mine["validity"], others["validity"])
    for doc in (mine, others):
        assert from_storage(doc)
        if min(from_storage(doc)) < 0.99:
            assert "cache.cold-fetch" in rules(doc)


# A dataset in an image whose pages this host's cache holds


WORKLOAD = """
name: small
dataset: demo
batch_size: 4
accelerator: {kind: emulated, step_time: 2ms}
loader: {workers: 1}
"""


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """The root of an ext4 file system in a file, and its loop device."""
    image, mount = tmp_path / "x.img", tmp_path / "mnt"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(48 << 20)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is missing")
    for words in (
        ("mkfs.ext4", "-q", "-F", "-m", "0", image),
        ("mount", "-o", "loop", image, mount),
    ):
        made = subprocess.run(words, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"no loop device: {made.stderr.strip()}")
    named = ("findmnt", "-n", "-o", "SOURCE", mount)
    device = subprocess.run(named, capture_output=True, text=True, check=True).stdout.strip()
    try:
        yield mount, device
    finally:
        gc.collect()  # a run in this process may leave cycles of objects with open files
        wait_until(
            lambda: not subprocess.run(("umount", mount), capture_output=True, check=False)
            .returncode,
            "the file system is in use",
        )  # fmt: skip


def test_an_image_in_the_page_cache_is_not_cold(mounted: tuple[Path, str], tmp_path: Path) -> None:
    mount, device = mounted
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    size = ("--set", "samples=64", "--set", "sample_size.mean=20kB")
    assert in_process("generate", "demo", "--to", mount / "data", *size, "--quiet")[0] == 0
    run = ("run", tmp_path / "small.yaml", "--data", mount / "data", "--repeat", 1)
    run += ("--calibration", "0s", "--no-ablations", "--results", tmp_path / "results", "--json")
    for direct in ("true", "false"):
        code, out, err = in_process(*run, "--set", f"reader.direct={direct}", "--quiet")
        assert (code, err) == (0, ""), err
        found = json.loads(out)
        assert found["validity"] == "unknown"
        assert "cache.loop" in {each["rule"] for each in found["findings"]}
    code, out, _ = in_process("doctor", mount, "--json")
    assert code == 0
    assert "storage.loop" in {each["rule"] for each in json.loads(out)["findings"]}
    changed = subprocess.run(
        ("losetup", "--direct-io=on", device), capture_output=True, check=False
    )
    if changed.returncode:
        return  # the file system of the image has no direct IO
    code, out, err = in_process(*run, "--quiet")
    assert (code, err) == (0, ""), err
    found = json.loads(out)
    assert "cache.loop" not in {each["rule"] for each in found["findings"]}


# Rows of tables, and tokens of a map


def test_columns_of_rows_are_fetched_alone(tmp_path: Path) -> None:
    """160 bytes of a row of 761, so raw storage is good for as many more rows."""
    root = tmp_path / "data"
    printed(f"generate dlrm --samples 24576 --set samples_per_shard=12288 --to {root}")
    doc = document(
        f"run dlrm-b200 --data {root} --repeat 1 --calibration 0.2s --no-ablations "
        f"--set loader.workers=1 --results {tmp_path}/results"
    )
    (repetition,) = doc["job"]["repetitions"]
    assert repetition["samples"] == 24576
    assert repetition["sample_bytes"] == pytest.approx(160 * 24576, rel=0.02)
    assert repetition["read_amplification"] >= 1
    raw = doc["job"]["ceilings"]["storage_raw"]
    assert raw["bytes_per_s"] is None or raw["samples_per_s"] > 3 * raw["bytes_per_s"] / 761


@pytest.mark.parametrize("workers", [2, pytest.param(0, marks=pytest.mark.nightly)])
def test_each_epoch_through_a_map_begins_cold(tmp_path: Path, workers: int) -> None:
    root = tmp_path / "data"
    printed(f"generate llm-tokens --samples 800 --to {root}")
    doc = document(
        f"run llm-pretrain --data {root} --repeat 1 --calibration 0 --no-ablations --set epochs=2 "
        f"--set max_steps=null --set accelerator.step_time=1ms --set loader.workers={workers} "
        "--set required_accelerator_utilization=0.01 --accelerators 2 "
        f"--results {tmp_path}/results"
    )
    (repetition,) = doc["job"]["repetitions"]
    assert doc["validity"] == "valid"
    assert [epoch["residency_before"] for epoch in repetition["epochs"]] == [0, 0]
    assert repetition["samples"] == 2 * 800
    assert (doc["job"]["loader"]["access"], doc["job"]["loader"]["direct"]) == ("random", False)
    assert repetition["read_amplification"] == 1  # pages are the kernel's

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
from tests.processes import (
    document,
    in_process,
    mounted,
    printed,
    read_by_workers,
    running,
    wait_until,
)

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
    words = "run ./job.yaml --data data --calibration 0 --repeat 1 --no-ablations"
    return [*words.split(), *(part for each in settings for part in ("--set", each))]


def run(*settings: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = in_process(*arguments(*settings), "--json")
    return code, json.loads(out)


def rules(doc: dict[str, Any]) -> list[str]:
    return [finding["rule"] for finding in doc["findings"] if finding["level"] == "invalid"]


def rules_of(doc: dict[str, Any]) -> set[str]:
    """Of whatever level."""
    return {finding["rule"] for finding in doc["findings"]}


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
    (epoch,) = doc["job"]["repetitions"][0]["epochs"]
    assert epoch["residency_before"] == 0  # as it began, it was cold
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
    code, out, _ = in_process(*settings, "--json", "--calibration", "0.1s")
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
def image(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """The root of an ext4 file system in a file, and its loop device."""
    file = tmp_path / "x.img"
    file.touch()
    os.truncate(file, 48 << 20)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is missing")
    subprocess.run(("mkfs.ext4", "-q", "-F", "-m", "0", file), check=True)
    with mounted("-o", "loop", str(file), on=tmp_path / "mnt") as root:
        named = ("findmnt", "-n", "-o", "SOURCE", root)
        yield root, subprocess.run(named, capture_output=True, text=True, check=True).stdout.strip()
        gc.collect()  # a run in this process may leave cycles of objects with open files


def test_an_image_in_the_page_cache_is_not_cold(image: tuple[Path, str], tmp_path: Path) -> None:
    mount, device = image
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    printed(f"generate demo --to {mount}/data --set samples=64 --set sample_size.mean=20kB")
    run = f"run {tmp_path}/small.yaml --data {mount}/data --repeat 1 --calibration 0s"
    run += f" --no-ablations --results {tmp_path}/results"
    for direct in ("true", "false"):
        found = document(f"{run} --set reader.direct={direct}")
        assert found["validity"] == "unknown"
        assert "cache.loop" in rules_of(found)
    assert "storage.loop" in rules_of(document(f"doctor {mount}"))
    changed = subprocess.run(
        ("losetup", "--direct-io=on", device), capture_output=True, check=False
    )
    if not changed.returncode:  # else the file system of the image has no direct IO
        assert "cache.loop" not in rules_of(document(run))

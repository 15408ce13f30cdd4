"""``iobench check`` as a user calls it: data made and removed, data that is there, bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from iobench.runner.checking import data as checking
from iobench.schema.record import TrainingRecord
from tests.conftest import Call, MakeDataset
from tests.processes import PATIENCE_S, wait_until
from tests.servers.s3 import S3Server, rclone_s3, s3_environment

__all__ = ["rclone_s3", "s3_environment"]

SAMPLES, SAMPLE_BYTES = 64, 20_000
DATASET = f"""name: tiny
samples: {SAMPLES}
sample_size: {{mean: {SAMPLE_BYTES}}}
format: tar
samples_per_shard: 16
"""
WORKLOAD = """name: tinyrun
dataset: ./tiny.yaml
accelerator: {name: tiny, step_time: 2ms}
batch_size: 4
loader: {workers: 1}
"""
BUDGET = ("--budget", "10s")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: set[int]) -> Path:
    """A working directory with a small workload, and an empty storage to check."""
    (tmp_path / "tiny.yaml").write_text(DATASET)
    (tmp_path / "tinyrun.yaml").write_text(WORKLOAD)
    (tmp_path / "storage").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def document(call: Call, *words: object, workload: str = "./tinyrun.yaml") -> dict[str, Any]:
    code, out, err = call("check", *words, "--workload", workload, *BUDGET, "--quiet", "--json")
    assert (code, err) == (0, ""), (out, err)
    found = json.loads(out)
    record = TrainingRecord.model_validate(found)
    assert record.status == "ok"
    assert 3 <= len(record.job.repetitions) <= 6
    assert all(0 < repetition.samples <= SAMPLES for repetition in record.job.repetitions)
    assert record.job.ceilings["fetch"].samples_per_s
    (directory,) = Path("results").iterdir()
    assert json.loads((directory / "run.json").read_text()) == found
    assert isinstance(found, dict)
    return found


def test_data_is_made_measured_and_removed(call: Call, here: Path) -> None:
    (here / "storage" / "mine.txt").write_text("mine")
    found = document(call, here / "storage")
    assert 8 <= found["job"]["dataset"]["samples"] <= SAMPLES  # two batches at least
    assert Path(found["storage"]["url"]).parent == here / "storage"
    assert [path.name for path in (here / "storage").iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_data_on_s3_is_removed_too(
    call: Call, here: Path, rclone_s3: S3Server, s3_environment: Mapping[str, str]
) -> None:
    document(call, rclone_s3.url("checked"))
    listed = rclone_s3.client().list_objects_v2(Bucket="iobench-tests", Prefix="checked/")
    assert listed.get("KeyCount", 0) == 0


@pytest.mark.slow
def test_behind_a_wrapper(call: Call, here: Path) -> None:
    found = document(call, f"throttled+{here / 'storage'}?latency=1ms")
    assert found["storage"]["latency_s"] == 0.001
    assert list((here / "storage").iterdir()) == []


@pytest.mark.slow
def test_a_dataset_that_is_there_is_read_and_stays(
    call: Call, make_dataset: MakeDataset, here: Path
) -> None:
    """Its workload is found by its name."""
    _, folder = make_dataset(samples=SAMPLES, format="tar")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    small = ("--set", "batch_size=4", "--set", "reader.crop=null", "--set", "epochs=1")
    code, out, err = call("check", folder, *small, *BUDGET, "--quiet", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["job"]["workload"]["name"], found["storage"]["url"]) == ("demo", str(folder))
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.slow
def test_kept_data_is_named_and_whole(call: Call, here: Path) -> None:
    words = ("--workload", "./tinyrun.yaml", *BUDGET, "--keep-data")
    code, out, _ = call("check", here / "storage", *words)
    assert code == 0
    (data,) = (here / "storage").iterdir()
    assert str(data) in out
    assert call("verify", data)[0] == 0
    assert call("clean", data)[0] == 0
    assert list((here / "storage").iterdir()) == []


@pytest.mark.slow
def test_it_says_before_how_the_time_is_spent(call: Call, here: Path) -> None:
    words = ("--workload", "./tinyrun.yaml", *BUDGET)
    code, _, err = call("check", here / "storage", *words)
    assert code == 0
    first, *others = err.splitlines()
    assert "10.0 s" in first
    assert any("MiB" in line for line in others)


# Ctrl-C

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(here: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(place: object, *words: str) -> subprocess.Popen[str]:
        command = ["check", str(place), "--workload", "./tinyrun.yaml", "--budget", "20min"]
        process = subprocess.Popen(
            [sys.executable, "-m", "iobench", *command, "--quiet", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def interrupted(process: subprocess.Popen[str], number: int = signal.SIGINT) -> str:
    """The one line of a check that is interrupted, as a terminal does it."""
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err.count("\n")) == (130, "", 1), err
    assert not psutil.wait_procs(family, timeout=PATIENCE_S)[1]
    return err


def test_ctrl_c_while_data_is_made_removes_it(start: Start, here: Path) -> None:
    process = start(f"throttled+{here / 'storage'}?write_bandwidth=20kB")
    wait_until(lambda: any((here / "storage").glob("*/data/*")), "a shard")
    interrupted(process)
    assert list((here / "storage").iterdir()) == []
    assert not (here / "results").exists()


@pytest.mark.slow
@pytest.mark.parametrize("keep", [False, True])
def test_ctrl_c_while_it_measures_keeps_what_was_measured(
    start: Start, here: Path, keep: bool
) -> None:
    words = ("--budget", "30s", "--set", "accelerator.step_time=500ms")
    words += ("--keep-data",) if keep else ()
    log = here / "log"
    process = start(here / "storage", *words, "--log-level", "info", "--log-file", str(log))
    wait_until(lambda: log.exists() and ": repetition 1" in log.read_text(), "a repetition")
    interrupted(process)
    assert bool(list((here / "storage").iterdir())) is keep
    (directory,) = (here / "results").iterdir()
    assert json.loads((directory / "run.json").read_text())["status"] == "interrupted"


# Bad input: one line, and nothing is left


def refused(call: Call, code: int, *words: object) -> str:
    ended, out, err = call("check", *words, "--quiet")
    assert (ended, out, err.count("\n")) == (code, "", 1), err
    assert not Path("results").exists()
    return err


@pytest.fixture
def small_disk(here: Path) -> Iterator[Path]:
    """4 MiB. Needs the right to mount."""
    mount = here / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={4 << 20}", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_disk_without_room(call: Call, small_disk: Path) -> None:
    words = (small_disk, "--workload", "./tinyrun.yaml", "--set", "batch_size=32", *BUDGET)
    assert "4.00 MiB" in refused(call, 1, *words)
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_others_fill(
    call: Call, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "SPACE_SHARE", 10.0)
    Path("tiny.yaml").write_text(DATASET.replace("samples: 64", "samples: 1000"))
    words = ("--workload", "./tinyrun.yaml", "--set", "batch_size=400", "--budget", "20min")
    assert "--size" not in refused(call, 1, small_disk, *words)
    assert list(small_disk.iterdir()) == []


def test_a_bucket_without_permission(
    call: Call,
    here: Path,
    rclone_s3: S3Server,
    s3_environment: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    refused(call, 1, rclone_s3.url(), "--workload", "./tinyrun.yaml", *BUDGET)


def test_a_storage_too_slow_for_the_budget(call: Call, here: Path) -> None:
    slow = f"throttled+{here / 'storage'}?write_bandwidth=100kB"
    words = ("--workload", "./tinyrun.yaml", "--set", "batch_size=32", *BUDGET)
    assert "--budget" in refused(call, 2, slow, *words)
    assert list((here / "storage").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere",), "nowhere"),
        (("tiny.yaml",), "not a directory"),
        (("storage", "--budget", "9s"), "--budget"),
        (("storage", "--budget", "soon"), "soon"),
        (("storage", "--workload", "resnet51"), "resnet50"),
        (("storage", "--accelerators", "0"), "accelerators"),
        (("storage", "--set", "no_such_key=1"), "no_such_key"),
        (("nosuch+storage",), "nosuch"),
    ],
)
def test_bad_input_is_one_line(call: Call, here: Path, words: tuple[str, ...], says: str) -> None:
    assert says in refused(call, 2, *words)
    assert list((here / "storage").iterdir()) == []


def test_half_a_dataset_is_refused(call: Call, make_dataset: MakeDataset, here: Path) -> None:
    _, folder = make_dataset(format="tar")
    half = here / "half"
    shutil.copytree(folder, half)
    (half / "manifest.json").unlink()
    before = sorted(half.rglob("*"))
    assert "half generated" in refused(call, 1, half)
    assert sorted(half.rglob("*")) == before


def test_a_dataset_of_no_known_workload(call: Call, make_dataset: MakeDataset, here: Path) -> None:
    _, folder = make_dataset(name="mine", format="tar")
    assert "--workload" in refused(call, 2, folder)

"""``iobench check`` as a user calls it: data made and removed, data that is there, bad input."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from iobench.record.run import TrainingRecord
from iobench.runner import checking
from iobench.storage import open_storage
from iobench.storage.local.storage import LocalStorage
from iobench.storage.locks.lock import reading
from tests.conftest import MakeDataset
from tests.datasets import generated
from tests.processes import PATIENCE_S, Command, Ended, in_process, running, tmpfs, wait_until
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
"""A check takes as long as it needs. It is refused where making its data would take too long."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: set[int]) -> Path:
    """A working directory with a small workload, and an empty storage to check."""
    (tmp_path / "tiny.yaml").write_text(DATASET)
    (tmp_path / "tinyrun.yaml").write_text(WORKLOAD)
    (tmp_path / "storage").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def document(*words: object) -> dict[str, Any]:
    asked = ("--workload", "./tinyrun.yaml", *BUDGET, "--quiet", "--json")
    code, out, err = in_process("check", *words, *asked)
    assert (code, err) == (0, ""), (out, err)
    found = json.loads(out)
    record = TrainingRecord.model_validate(found)
    assert record.status == "ok"
    assert 1 <= len(record.job.repetitions) <= 12
    assert all(0 < repetition.samples <= SAMPLES for repetition in record.job.repetitions)
    fetch = record.job.ceilings["fetch"]  # on a machine that is busy, there may be no time for it
    assert bool(fetch.samples_per_s) != ("budget" in fetch.not_measured)
    (directory,) = Path("results").iterdir()
    assert json.loads((directory / "run.json").read_text()) == found
    assert isinstance(found, dict)
    return found


def test_data_is_made_measured_and_removed(here: Path) -> None:
    (here / "storage" / "mine.txt").write_text("mine")
    found = document(f"throttled+{here / 'storage'}?latency=1ms")
    assert 8 <= found["job"]["dataset"]["samples"] <= SAMPLES  # two batches at least
    assert found["storage"]["latency_s"] == 0.001
    assert [path.name for path in (here / "storage").iterdir()] == ["mine.txt"]


def test_a_dataset_that_is_there_is_read_and_stays(make_dataset: MakeDataset, here: Path) -> None:
    """Its workload is found by its name."""
    _, folder = make_dataset(samples=SAMPLES, format="tar")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    small = ("--set", "batch_size=4", "--set", "reader.crop=null", "--set", "epochs=1")
    code, out, err = in_process("check", folder, *small, *BUDGET, "--quiet", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["job"]["workload"]["name"], found["storage"]["url"]) == ("demo", str(folder))
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.nightly
def test_kept_data_is_named_and_whole(here: Path) -> None:
    words = ("--workload", "./tinyrun.yaml", *BUDGET, "--keep-data")
    code, out, _ = in_process("check", here / "storage", *words)
    assert code == 0
    (data,) = (here / "storage").iterdir()
    assert str(data) in out
    assert in_process("verify", data)[0] == 0
    assert in_process("clean", data)[0] == 0
    assert list((here / "storage").iterdir()) == []


# Ctrl-C


@contextmanager
def started(place: object, *words: object, folder: Path) -> Iterator[Command]:
    """A check in a session of its own, as a terminal starts it."""
    command = f"check {place} --workload ./tinyrun.yaml --budget 20min --quiet"
    with running(command, *words, folder=folder, before=os.setsid) as process:
        yield process


def ended(process: Command, number: int) -> Ended:
    """A signal to all its processes, as a terminal does it. None of them is left."""
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, number)
    found = process.wait()
    assert not psutil.wait_procs(family, timeout=PATIENCE_S)[1]
    return found


def begun(here: Path) -> bool:
    return any((here / "storage").glob("*/data/*"))


def test_ctrl_c_while_data_is_made_removes_it(here: Path) -> None:
    slow = f"throttled+{here / 'storage'}?write_bandwidth=20kB"
    with started(slow, folder=here) as process:
        wait_until(lambda: begun(here), "a shard")
        found = ended(process, signal.SIGINT)
    assert (found.code, found.out, found.err.count("\n")) == (130, "", 1), found
    assert list((here / "storage").iterdir()) == []
    assert not (here / "results").exists()


@pytest.mark.nightly
def test_ctrl_c_while_it_measures_keeps_what_was_measured(here: Path) -> None:
    log = here / "log"
    words = ("--budget", "90s", "--set", "accelerator.step_time=500ms")
    words += ("--log-level", "info", "--log-file", str(log))
    with started(here / "storage", *words, folder=here) as process:
        wait_until(lambda: log.exists() and ": repetition 1" in log.read_text(), "a repetition")
        found = ended(process, signal.SIGINT)
    assert (found.code, found.out, found.err.count("\n")) == (130, "", 1), found
    assert list((here / "storage").iterdir()) == []
    (directory,) = (here / "results").iterdir()
    assert json.loads((directory / "run.json").read_text())["status"] == "interrupted"


class Heard:
    """What a removal tells."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)

    def phase(self, title: str) -> None:
        raise AssertionError

    detail = phase


@pytest.mark.parametrize("ends", [True, False])
def test_data_that_own_workers_still_hold_is_removed_when_they_have_ended(
    ends: bool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after Ctrl-C in the moment in which workers begin: they have the lock of their parent."""
    data = here / "storage" / "iobench-check-x"
    storage = LocalStorage(data)
    manifest = generated(storage)
    told, let_go = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        os.close(let_go[1])  # a test that has failed ends this process, too
        with reading(storage, manifest, verb="run", break_dead=False):
            os.write(told[1], b"x")
            os.read(let_go[0], 1)
            os._exit(0)
    os.read(told[0], 1)
    monkeypatch.setattr(checking, "HELD_S", PATIENCE_S if ends else 0.2)
    if ends:
        threading.Timer(0.5, os.write, (let_go[1], b"x")).start()
    heard = Heard()
    checking.remove(str(data), heard)
    assert data.exists() is not ends
    assert len(heard.notes) == (1 if ends else 2)
    if not ends:
        os.write(let_go[1], b"x")
    os.waitpid(pid, 0)
    for end in (*told, *let_go):
        os.close(end)


def test_what_a_killed_check_has_left_is_named_by_the_next(here: Path) -> None:
    # The next checks ask for samples that have no room, so that nothing is measured.
    (here / "huge.yaml").write_text("{name: huge, samples: 9, sample_size: {mean: 900TiB}}")
    words = ("check", here / "storage", "--workload", "./tinyrun.yaml", *BUDGET)
    words += ("--set", "dataset=./huge.yaml")
    slow = f"throttled+{here / 'storage'}?write_bandwidth=20kB"
    with started(slow, folder=here) as process:
        wait_until(lambda: begun(here), "a shard")
        [left] = (here / "storage").iterdir()
        assert str(left) not in in_process(*words)[2]  # it is in use
        ended(process, signal.SIGKILL)
    told = in_process(*words)[2]
    assert f"iobench clean {left}" in told
    assert in_process("clean", left)[0] == 0
    assert not left.exists()
    assert str(left) not in in_process(*words)[2]


# What can't be checked: one line, and nothing is left


def refused(code: int, *words: object) -> str:
    ended, out, err = in_process("check", *words, "--quiet")
    assert (ended, out, err.count("\n")) == (code, "", 1), err
    assert not Path("results").exists()
    return err


@pytest.fixture
def small_disk(here: Path) -> Iterator[Path]:
    with tmpfs("size=4m", here / "disk") as mount:
        yield mount


def test_a_disk_without_room(small_disk: Path) -> None:
    words = (small_disk, "--workload", "./tinyrun.yaml", "--set", "batch_size=32", *BUDGET)
    assert "4.00 MiB" in refused(2, *words)
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_others_fill(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "SPACE_SHARE", 10.0)
    Path("tiny.yaml").write_text(DATASET.replace("samples: 64", "samples: 1000"))
    words = ("--workload", "./tinyrun.yaml", "--set", "batch_size=400", "--budget", "20min")
    assert "--size" not in refused(2, small_disk, *words)
    assert list(small_disk.iterdir()) == []


def test_a_storage_too_slow_for_the_budget(here: Path) -> None:
    slow = f"throttled+{here / 'storage'}?write_bandwidth=100kB"
    words = ("--workload", "./tinyrun.yaml", "--set", "batch_size=32", *BUDGET)
    assert "--budget" in refused(2, slow, *words)
    assert list((here / "storage").iterdir()) == []


def test_a_failure_names_the_record_that_is_kept(here: Path) -> None:
    """The data is removed; the run so far is not."""
    bad = f"faulty+{here / 'storage'}?fail_every=6"
    code, out, told = in_process("check", bad, "--workload", "./tinyrun.yaml", *BUDGET, "--quiet")
    assert (code, out, told.count("\n")) == (1, "", 1)
    (directory,) = (here / "results").iterdir()
    assert json.loads((directory / "run.json").read_text())["status"] == "failed"
    assert f"results/{directory.name}" in told
    assert list((here / "storage").iterdir()) == []


def test_a_dataset_of_no_known_workload(make_dataset: MakeDataset, here: Path) -> None:
    _, folder = make_dataset(name="mine", format="tar")
    assert "--workload" in refused(2, folder)


def test_a_place_on_s3_is_empty_again(
    here: Path, rclone_s3: S3Server, s3_environment: None
) -> None:
    given = {"part_size": "8MiB", "timeout": "9s", "deadline": "31s", "retries": 3}
    url = rclone_s3.url(**given, region="eu-x")
    code, out, err = in_process(
        "check", url, "--workload", "./tinyrun.yaml", *BUDGET, "-q", "--json"
    )
    assert code == 0, err
    storage = json.loads(out)["storage"]
    assert storage["part_size_bytes"] == 8 << 20
    assert (storage["timeout_s"], storage["deadline_s"], storage["retries"]) == (9, 31, 3)
    assert (storage["client"], storage["region"]) == ("obstore", "eu-x")
    opened = open_storage(url)
    assert list(opened.list()) == []
    opened.close()

"""Over several hosts: runs with loaders that others wrote, and checkpoints."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iobench.checkpoint.catalog import CheckpointRoot
from iobench.record.run import CheckpointRecord, TrainingRecord
from tests.hosts import ended, job, record_of
from tests.processes import Command, in_process, loader_workers, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

QUICK = (
    *("--repeat", 1, "--calibration", "0.2s", "--quiet", "--set", "loader.workers=1"),
    *("--set", "batch_size=4", "--set", "accelerator.step_time=2ms"),
)
UNEQUAL: dict[int, list[object]] = {
    0: ["--accelerators-per-host", 1],
    1: ["--accelerators-per-host", 2],
}


@pytest.fixture
def data(make_dataset: Any) -> Path:
    path: Path = make_dataset(samples=240, format="tar", samples_per_shard=20)[1]
    return path


@pytest.fixture
def files(make_dataset: Any) -> Path:
    path: Path = make_dataset(samples=96, format="files", content="jpeg")[1]
    return path


def start(tmp_path: Path, data: Path, *words: object, **others: Any) -> list[Command]:
    usual = ("run", "demo", "--data", data, *QUICK, "--results", tmp_path / "r")
    return job(tmp_path, *usual, *words, **others)


def test_checkpoints_between_the_steps_of_two_hosts(data: Path, tmp_path: Path) -> None:
    """The ranks of dcp, which meet over all hosts, are in a study below."""
    to = tmp_path / "ckpt"
    saves = ("--checkpoint", "llama3-8b", "--checkpoint-scale", "1/8192", "--checkpoint-to", to)
    every = ("--checkpoint-every", 5, "--no-ablations")
    found = ended(start(tmp_path, data, *saves, *every, of=UNEQUAL))
    assert [each.code for each in found] == [0, 0], [each.err for each in found]
    doc = record_of(tmp_path, TrainingRecord)
    study = doc.job.saves
    assert study.ranks == 3
    assert study.hosts == doc.job.hosts
    assert "2 hosts got together" in study.meaning.condition
    assert [len(save.ranks) for save in study.saves] == [3] * 8  # 40 steps, a save after each 5
    assert [len(save.ranks) for save in study.alone] == [3] * 3
    (repetition,) = doc.job.repetitions
    assert repetition.samples == 2 * 240
    assert repetition.complete
    assert CheckpointRoot.open(str(to)).latest() is None  # a run leaves no checkpoint behind


def test_a_loader_of_the_users_own_on_two_hosts(files: Path, tmp_path: Path) -> None:
    loader = ("--loader", "tests.planted_loaders:of_files", "--loader-args", "divide=true")
    found = ended(start(tmp_path, files, *loader, "--set", "batch_size=8", of=UNEQUAL))
    assert [each.code for each in found] == [0, 0], [each.err for each in found]
    doc = record_of(tmp_path, TrainingRecord)
    (repetition,) = doc.job.repetitions
    assert repetition.samples == 2 * 96  # two epochs
    assert [each.rank for each in repetition.ranks] == [0, 1, 2]
    user = doc.job.loader.user
    assert user.shared_samples == 0
    assert (user.compared_samples or 0) >= 3 * 8  # the first batches of the ranks of both hosts


def trainers(data: Path, tmp_path: Path, *words: object) -> list[Command]:
    """Three ranks of two hosts that train one model."""
    settings = ("gradient_sync=ddp", "threads=1", "device=cpu")
    sets = (*(f"accelerator.{each}" for each in settings), "cache=any", "loader.workers=1", *words)
    asked = ("train", "tests.networks:Tiny", "--data", data, "--batch-size", 10, "-n", 1, "-q")
    more = (word for each in sets for word in ("--set", each))
    usual = (*asked, "--no-ablations", "--results", tmp_path / "r", *more)
    return job(tmp_path, *usual, of=UNEQUAL)


def test_ranks_of_two_hosts_train_one_model(make_dataset: Any, tmp_path: Path) -> None:
    """The shares of the ranks have 9, 8 and 8 batches, and all of them make 9 steps."""
    data = make_dataset(samples=241, format="tar", samples_per_shard=20)[1]
    found = ended(trainers(data, tmp_path, "max_steps=1000", "epochs=2"))
    assert {each.code for each in found} in ({0}, {3}), [each.err for each in found]
    doc = record_of(tmp_path, TrainingRecord)
    trained, repetition = doc.job.trained, doc.job.repetitions[0]
    assert trained.gradient_bytes == 4 * 98_600
    assert trained.exchange_s
    assert repetition.complete
    assert repetition.samples == 2 * 241
    assert len(repetition.ranks) == 3
    assert repetition.steps == 2 * 25
    assert doc.job.ceilings["accelerator"].samples_per_s


@pytest.mark.parametrize(("number", "codes"), [("SIGKILL", [1, -9]), ("SIGINT", [130, 130])])
def test_one_model_on_two_hosts_ends_with_a_host(
    data: Path, tmp_path: Path, number: str, codes: list[int]
) -> None:
    commands = trainers(data, tmp_path, "max_steps=null", "epochs=1000000")
    wait_until(
        lambda: (
            all(loader_workers(each.pid) for each in commands)
            or any(each.ended() for each in commands)
        ),
        "the ranks did not begin",
    )
    commands[1].signal(signal.Signals[number])
    found = ended(commands)
    assert [each.code for each in found] == codes, [each.err for each in found]
    assert record_of(tmp_path, TrainingRecord).status == (
        "failed" if number == "SIGKILL" else "interrupted"
    )
    assert list(tmp_path.glob("r/*-host-1-*")) or number == "SIGKILL"
    if number == "SIGKILL":
        assert "host 1 (" in found[0].err


def test_what_a_loader_could_bring_on_two_hosts(files: Path, tmp_path: Path) -> None:
    loader = ("--loader", "tests.planted_loaders:of_files", "--loader-args", "divide=true")
    first, second = ended(start(tmp_path, files, *loader, "--headspace", "--json"))
    assert (first.code, second.code) == (0, 0), (first.err, second.err)
    assert len(json.loads(first.out)["rounds"]) == 1
    assert second.out == ""


def test_a_loader_library_on_two_hosts(data: Path, tmp_path: Path) -> None:
    found = ended(start(tmp_path, data, "--set", "loader.kind=webdataset", of=UNEQUAL))
    assert [each.code for each in found] == [0, 0], [each.err for each in found]
    doc = record_of(tmp_path, TrainingRecord)
    (repetition,) = doc.job.repetitions
    assert repetition.samples == 2 * 240  # two epochs
    assert [each.ranks for each in doc.job.hosts] == [1, 2]
    assert doc.job.ceilings["prep"].samples_per_s is not None


# Checkpoints alone


WORDS = ("checkpoint", "llama3-8b", "--scale", "1/8192", "--quiet")


def study(tmp_path: Path, to: str, *words: object, **others: object) -> list[Command]:
    usual = [*WORDS, "--results", str(tmp_path / "r"), "--to", to]
    usual += [] if "--repeat" in words else ["--repeat", "1"]
    return job(tmp_path, *usual, *words, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("writer", "changed"), [("stream", "1"), ("dcp", "1"), ("stream", "20%"), ("dcp", "20%")]
)
def test_two_hosts_with_unequal_ranks_save_and_restore_one_checkpoint(
    tmp_path: Path, writer: str, changed: str
) -> None:
    to = tmp_path / "ckpt"
    of: dict[int, list[object]] = {0: ["--ranks-per-host", 1], 1: ["--ranks-per-host", 2]}
    words = ("--writer", writer, "--changed", changed, "--keep-data", "--details")
    found = ended(study(tmp_path, str(to), *words, of=of))
    assert [each.code for each in found] == [0, 0], [each.err for each in found]
    doc = record_of(tmp_path, CheckpointRecord)
    assert [(each.first_rank, each.ranks) for each in doc.job.hosts] == [(0, 1), (1, 2)]
    assert len(doc.hosts) == 2
    (save,), (restore,) = doc.job.saves, doc.job.restores
    assert len(save.ranks) == len(restore.rank_s) == 3
    assert save.blocked_s == max(part.blocked_s for part in save.ranks)
    assert restore.verified
    assert len(restore.residencies) == 2
    latest = CheckpointRoot.open(str(to)).latest()
    whole = [] if changed == "1" else [1]
    assert [target.number for target in latest.sources()] == [*whole, save.step]
    assert {target.manifest().world for target in latest.sources()} == {3}
    assert "host 1 (" in found[0].out
    assert "Measured on 2 hosts" in found[0].out


def test_a_save_of_two_hosts_that_takes_longer_than_the_budget_is_refused(tmp_path: Path) -> None:
    """27 MB at 1 MB/s: small saves of both hosts tell it, and leave nothing."""
    to = tmp_path / "ckpt"
    slow = f"throttled+{to}?write_bandwidth=1MB"
    found = ended(study(tmp_path, slow, "--scale", "1/4096", "--budget", "12s"))
    assert [each.code for each in found] == [2, 2], [each.err for each in found]
    assert "one save of this study" in found[0].err
    assert CheckpointRoot.open(str(to)).complete() == []


@pytest.mark.parametrize("victim", [0, 1])
def test_a_host_that_is_killed_during_a_save_leaves_no_checkpoint_that_looks_whole(
    tmp_path: Path, victim: int
) -> None:
    to = tmp_path / "ckpt"
    commands = study(tmp_path, f"throttled+{to}?bandwidth=1MB", "--ranks-per-host", 2)
    wait_until(
        lambda: any(to.glob("step-*/*.tensors*")) or any(each.ended() for each in commands),
        "no save began",
    )
    commands[victim].signal(signal.SIGKILL)
    found = ended(commands)
    assert found[victim].code == -signal.SIGKILL
    assert found[1 - victim].code == 1
    assert f"host {victim} (" in found[1 - victim].err
    root = CheckpointRoot.open(str(to))
    assert root.complete() == []
    if victim == 1:
        doc = record_of(tmp_path, CheckpointRecord)
        assert (doc.status, doc.job.saves) == ("failed", [])
        assert "host 1 (" in doc.error
    cleaned = in_process("clean", to)
    assert (cleaned[0], list(to.rglob("*"))) == (0, [])


def own_mount(at: Path) -> Callable[[], None]:
    """In a process of its own: another file system at this place, which nobody else sees."""

    def act() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x20000) != 0:  # CLONE_NEWNS, linux/sched.h
            raise OSError(ctypes.get_errno(), "unshare")
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(at)], check=True)

    return act


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_place_that_one_host_does_not_share_is_refused_by_name(tmp_path: Path) -> None:
    to = tmp_path / "ckpt"
    to.mkdir()
    found = ended(study(tmp_path, str(to), before={1: own_mount(to)}))
    assert [each.code for each in found] == [2, 2], [each.err for each in found]
    assert all("host 1 (" in each.err for each in found)
    assert all("does not see what host 0 (" in each.err for each in found)
    assert not list(to.glob("step-*"))

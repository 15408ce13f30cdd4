"""Runs over several hosts with loaders that others wrote, and with checkpoints between steps."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from iobench.checkpoint.catalog import CheckpointRoot
from iobench.record.run import TrainingRecord
from tests.hosts import ended, job, record_of
from tests.processes import Command, loader_workers, wait_until

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
    """test_hosts_checkpoint.py has the ranks of dcp, which meet over all hosts."""
    to = tmp_path / "ckpt"
    saves = ("--checkpoint", "llama3-8b", "--checkpoint-scale", "1/8192", "--checkpoint-to", to)
    every = ("--checkpoint-every", 5, "--no-ablations")
    found = ended(start(tmp_path, data, *saves, *every, of=UNEQUAL))
    assert [each.code for each in found] == [0, 0], [each.err for each in found]
    doc = record_of(tmp_path, TrainingRecord)
    study = doc.job.saves
    assert study.ranks == 3
    assert [len(save.ranks) for save in study.saves] == [3] * 8  # 40 steps, a save after each 5
    assert [len(save.ranks) for save in study.alone] == [3] * 3
    (repetition,) = doc.job.repetitions
    assert repetition.samples == 2 * 240
    assert repetition.complete
    assert CheckpointRoot.open(str(to)).latest() is None  # a run leaves no checkpoint behind


def test_a_place_for_checkpoints_that_one_host_does_not_share_is_refused(
    data: Path, tmp_path: Path
) -> None:
    of: dict[int, list[object]] = {n: ["--checkpoint-to", tmp_path / f"ckpt-{n}"] for n in range(2)}
    saves = ("--checkpoint", "llama3-8b", "--checkpoint-scale", "1/8192")
    found = ended(start(tmp_path, data, *saves, of=of))
    assert [each.code for each in found] == [2, 2]
    assert "host 1 (" in found[0].err


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

"""Runs over several hosts with loaders that others wrote, and with checkpoints between steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iobench.checkpoint.catalog import CheckpointRoot
from iobench.schema.record import TrainingRecord, load_run
from tests.hosts import ended, job
from tests.processes import Command

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


def record_of(tmp_path: Path) -> TrainingRecord:
    (folder,) = (each.parent for each in tmp_path.glob("r/*/run.json"))
    doc = load_run(folder)
    assert isinstance(doc, TrainingRecord)
    return doc


def test_checkpoints_between_the_steps_of_two_hosts(data: Path, tmp_path: Path) -> None:
    """test_hosts_checkpoint.py has the ranks of dcp, which meet over all hosts."""
    to = tmp_path / "ckpt"
    saves = ("--checkpoint", "llama3-8b", "--checkpoint-scale", "1/8192", "--checkpoint-to", to)
    every = ("--checkpoint-every", 5, "--no-knockouts")
    found = ended(start(tmp_path, data, *saves, *every, of=UNEQUAL))
    assert [each.code for each in found] == [0, 0], [each.err for each in found]
    doc = record_of(tmp_path)
    study = doc.job.saves
    assert study is not None
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
    doc = record_of(tmp_path)
    (repetition,) = doc.job.repetitions
    assert repetition.samples == 2 * 96  # two epochs
    assert [each.rank for each in repetition.ranks] == [0, 1, 2]
    user = doc.job.loader.user
    assert user is not None
    assert user.shared_samples == 0
    assert (user.compared_samples or 0) >= 3 * 8  # the first batches of the ranks of both hosts


def test_headspace_is_refused_on_every_host(files: Path, tmp_path: Path) -> None:
    loader = ("--loader", "tests.planted_loaders:of_files", "--headspace")
    found = ended(start(tmp_path, files, *loader))
    assert [each.code for each in found] == [2, 2]
    assert all("--hosts here" in each.err for each in found)


def test_a_loader_library_on_two_hosts(data: Path, tmp_path: Path) -> None:
    found = ended(start(tmp_path, data, "--set", "loader.kind=webdataset", of=UNEQUAL))
    assert [each.code for each in found] == [0, 0], [each.err for each in found]
    doc = record_of(tmp_path)
    (repetition,) = doc.job.repetitions
    assert repetition.samples == 2 * 240  # two epochs
    assert [each.ranks for each in doc.job.hosts] == [1, 2]
    assert doc.job.ceilings["prep"].samples_per_s is not None

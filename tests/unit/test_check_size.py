"""How large a dataset ``iobench check`` generates: by the time, the space and the workload."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import UsageError
from iobench.runner import checking
from iobench.runner.checking import SPACE_SHARE, CheckPlace
from iobench.runner.options import Observer
from iobench.settings.dataset import DatasetSpec
from iobench.settings.workload import load_workload

BATCH, SAMPLE_BYTES, MANY = 50, 1000, 10**9


@pytest.fixture
def filling(tmp_path: Path) -> Any:
    def make(
        *,
        seconds: float = 60.0,
        accelerators: int = 1,
        samples: int = MANY,
        epochs: int = 1,
        workers: int = 1,
        size: int | None = None,
    ) -> Any:
        settings = ["accelerator.kind=null", "accelerator.step_time=null"]
        settings += [f"batch_size={BATCH}", f"epochs={epochs}", f"loader.workers={workers}"]
        workload = load_workload("demo", settings)
        place = CheckPlace(url=str(tmp_path), workload=workload, found=False)
        mean = {"mean": SAMPLE_BYTES}
        spec = DatasetSpec.model_validate({"name": "d", "samples": samples, "sample_size": mean})
        url = f"{tmp_path}/data"
        return checking._Filling(place, spec, url, accelerators, seconds, False, Observer(), size)

    return make


def grown(filling: Any, pace_s: float, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], float]:
    """The sizes of the tries on a storage of this pace, and the seconds that all of them take."""
    now = [time.monotonic()]
    began = now[0]
    monkeypatch.setattr(checking.time, "monotonic", lambda: now[0])
    filling.deadline = began + filling.seconds
    sizes = [256]
    while True:
        took = 0.05 + pace_s * sizes[-1]
        now[0] += took
        more = filling._next(sizes[-1], took)
        if more <= sizes[-1]:
            return sizes, now[0] - began
        sizes.append(more)


@pytest.mark.parametrize("pace_s", [1e-6, 1e-5, 1e-3, 0.02])
def test_the_size_grows_until_the_time_is_used(
    filling: Any, monkeypatch: pytest.MonkeyPatch, pace_s: float
) -> None:
    made = filling()
    made.most = MANY  # however little space this disk has
    sizes, took = grown(made, pace_s, monkeypatch)
    assert sizes == sorted(sizes)
    assert sizes[-1] >= 2 * BATCH
    assert 15.0 < took <= 60.0
    assert len(sizes) < 8


def test_two_batches_for_each_accelerator(filling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert filling(accelerators=8).least == 5 * 8 * BATCH  # steps that tell the bottleneck
    assert filling(epochs=4).least == 2 * BATCH
    assert filling(epochs=2, workers=8).least == 8 * BATCH
    assert filling(accelerators=8, samples=90).least == 90
    with pytest.raises(UsageError, match="--budget"):
        grown(filling(accelerators=8, seconds=20.0), 0.05, monkeypatch)


def test_no_time_is_lost_to_a_dataset_that_is_too_small(
    filling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take half of the time that the smallest one that is enough takes."""
    made = filling(accelerators=16)
    made.removal_s = 0.01
    assert grown(made, 0.01, monkeypatch)[0] == [256, 4000]


def test_a_share_of_the_space(filling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    space = os.statvfs("/")
    names = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree")
    given = {name: getattr(space, name) for name in (*names, "f_favail", "f_flag", "f_namemax")}

    def disk(*, megabytes: float, inodes: int) -> None:
        given.update(f_frsize=1000, f_bavail=int(megabytes * 1000), f_favail=inodes, f_files=inodes)
        monkeypatch.setattr(checking.os, "statvfs", lambda path: os.statvfs_result(given.values()))

    disk(megabytes=10.0, inodes=10**6)
    assert filling().most == SPACE_SHARE * 10_000
    disk(megabytes=10.0, inodes=5000)
    assert filling().most == SPACE_SHARE * 5000
    asked = filling(size=5000 * SAMPLE_BYTES)  # half of the space
    assert (asked.least, asked.most) == (5000, 5000)
    with pytest.raises(UsageError):
        filling(size=5001 * SAMPLE_BYTES)  # no more inodes than that
    with pytest.raises(UsageError, match="--size"):
        filling(size=SAMPLE_BYTES)  # less than a check needs
    disk(megabytes=2.2, inodes=10**6)
    with pytest.raises(UsageError) as refused:
        filling(accelerators=8)
    assert "--size 2MiB" in refused.value.remedy
    filling(accelerators=8, size=2 << 20)

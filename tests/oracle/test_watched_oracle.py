"""A training of somebody else's under ``iobench.watch``, with a cause planted in its loader."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import iobench
from iobench.cli.main import main
from iobench.schema.record import TrainingRecord, load_training
from tests import planted_loaders as planted
from tests.oracle.plants import Throttle, late, throttle_for
from tests.servers.s3 import BUCKET, S3Server, rclone_s3, s3_environment

pytestmark = pytest.mark.filterwarnings("ignore")

__all__ = ["rclone_s3", "s3_environment"]

SIZE = ("--set", "samples=512", "--set", "sample_size.mean=20kB", "--set", "format=files")
SLOW_DISK = 2_000_000
"""Bytes/s to which the kernel holds the disk: the 10 MB of the data take 5 s."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("watched") / "data"
    assert main(["generate", "demo", "--to", str(place), *SIZE, "--quiet"]) == 0
    for path in place.rglob("*.jpg"):
        path.read_bytes()
    return place


def first_of(batch: Any) -> torch.Tensor:
    found: torch.Tensor = batch if isinstance(batch, torch.Tensor) else batch[0]
    return found if isinstance(found, torch.Tensor) else found[0]


def trained(
    loader: Iterable[Any],
    results: Path,
    *,
    epochs: int = 1,
    loop_s: float = 0.0,
    device_s: float = 0.0,
    data: Path | None = None,
) -> TrainingRecord:
    """Train a small model. ``loop_s``: CPU time of the loop itself before each step.

    ``device_s``: each step takes this longer, as on a device for which the loop waits.
    """
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with (watch := iobench.watch(loader, results=results, data=data)) as batches:
        for _ in range(epochs):
            for batch in batches:
                end = time.thread_time() + loop_s
                while time.thread_time() < end:
                    pass
                pixels = first_of(batch).flatten()[:256].float() / 255
                optimizer.zero_grad()
                model(pixels).square().mean().backward()
                optimizer.step()
                time.sleep(device_s)
    assert watch.directory is not None
    return load_training(watch.directory)


Make = Callable[[str], Iterable[Any]]

CASES: dict[str, tuple[Make, dict[str, Any], str, str, str]] = {
    # loader, the training, what binds, a finding, a name in the first advice
    "nothing": (planted.of_files, {"device_s": 0.06}, "accelerator", "", ""),
    "the loop": (
        partial(planted.of_files, workers=0),
        {"loop_s": 0.05},
        "accelerator",
        "",
        "",
    ),
    "sleep": (partial(planted.of_files, sleep=0.004), {}, "prep", "user.workers_wait", "workers"),
    "spin": (
        partial(planted.of_files, spin=0.004),
        {},
        "prep",
        "user.workers_are_cpu_bound",
        "workers",
    ),
    "sleep without workers": (
        partial(planted.of_files, workers=0, sleep=0.004),
        {},
        "prep",
        "user.workers_wait",
        "num_workers",
    ),
    "spin without workers": (
        partial(planted.of_files, workers=0, spin=0.004),
        {},
        "prep",
        "",
        "num_workers",
    ),
    "large batches": (planted.large, {}, "harness", "", "uint8"),
    "one slow worker": (
        planted.one_slow_worker,
        {},
        "prep",
        "user.out_of_order_wait",
        "in_order",
    ),
    "generator": (planted.of_generator, {}, "prep", "user.workers_wait", "num_workers"),
    "iterable": (planted.slow_stream, {}, "prep", "user.workers_wait", "workers"),
    "spawn": (planted.spawned, {"epochs": 2}, "fill", "user.spawn_cost", "persistent_workers"),
    "collate": (
        partial(planted.slow_collate, sleep=0.04),
        {},
        "prep",
        "user.collate_share",
        "collate_fn",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_names_what_was_planted(case: str, data: Path, tmp_path: Path) -> None:
    make, training, binds, finding, named = CASES[case]
    told(trained(make(str(data)), tmp_path, data=data, **training), binds, finding, named)


def told(doc: TrainingRecord, binds: str, finding: str = "", named: str = "") -> None:
    """The record has this verdict, this finding, and advice with this name in it."""
    verdict = doc.job.verdict
    assert verdict is not None
    assert verdict.binds == binds, f"{verdict.sentence} {verdict.explanation}"
    assert verdict.starved is (binds != "accelerator"), verdict.sentence
    assert not finding or finding in {each.rule for each in doc.findings}
    assert named in verdict.advice[0].change
    assert doc.validity == "valid"


def test_a_wait_for_nobody_knows_what_is_not_blamed_on_the_loader(
    data: Path, tmp_path: Path
) -> None:
    """Nobody said where the data is, so the files may have been what was waited for."""
    loader = planted.of_files(str(data), sleep=0.004)
    doc = trained(loader, tmp_path)
    assert doc.job.verdict is not None
    assert doc.job.verdict.binds == "storage"


@pytest.mark.parametrize("make", [planted.of_files, planted.of_maps], ids=["reads", "maps"])
def test_a_disk_that_the_kernel_holds_back(make: Make, data: Path, tmp_path: Path) -> None:
    """The first epoch is cold, the second one comes from memory: it hides nothing."""
    with throttle_for(data) as throttle:
        forget(data)
        throttle.hold(bytes_per_s=SLOW_DISK)
        (tmp_path / "scratch").mkdir()
        in_group(throttle, make, data, tmp_path)
    (directory,) = (tmp_path / "results").iterdir()
    told(load_training(directory), "storage", "user.workers_wait", "reads in flight")


def forget(data: Path) -> None:
    """Put the files out of the page cache."""
    os.sync()
    for path in data.rglob("*.jpg"):
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def in_group(throttle: Throttle, make: Make, data: Path, place: Path) -> None:
    def work(_: Path) -> None:
        trained(make(str(data)), place / "results", data=data, epochs=2)

    throttle.run(work, place / "scratch")


def test_objects_of_a_store_that_is_far(
    rclone_s3: S3Server, s3_environment: object, tmp_path: Path
) -> None:
    assert main(["generate", "demo", "--to", rclone_s3.url("own"), *SIZE, "--quiet"]) == 0
    with late(rclone_s3.port, 0.02) as far:
        loader = planted.of_objects(f"http://127.0.0.1:{far.port}", BUCKET, "own", 128)
        told(trained(loader, tmp_path), "storage", "user.workers_wait", "reads in flight")

"""A cause planted in a loader of somebody else's: ``run --loader`` and ``iobench.watch`` name
it, split the time of its batches right, and cost it little.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import iobench
from iobench.record.job import UserFacts
from iobench.record.run import TrainingRecord, load_training
from iobench.settings.workload import LoaderSpec
from iobench.subject.loader import UserLoader
from tests import planted_loaders
from tests.oracle.plants import burn_until, findings, late, throttle_for, verdict_of
from tests.processes import completed, document, printed
from tests.servers.s3 import BUCKET, S3Server, rclone_s3, s3_environment

pytestmark = pytest.mark.filterwarnings("ignore")

__all__ = ["rclone_s3", "s3_environment"]

SIZE = "--set samples=512 --set sample_size.mean=20kB --set format=files"
SLOW_DISK = 2_000_000
"""Bytes/s to which the kernel holds the disk: the 10 MB of the data take 5 s."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("planted") / "data"
    printed(f"generate demo --to {place} {SIZE}")
    for path in place.rglob("*.jpg"):
        path.read_bytes()
    return place


class Planted(NamedTuple):
    """A loader of ``tests.planted_loaders``, and what is to be said of it.

    ``run`` and ``watch``: the bottleneck, by either of them; none: not tried. ``finding``: the rule
    of a finding. ``advised``: a name in the first advice that ``watch`` leads to.
    """

    loader: str
    arguments: Mapping[str, float]
    run: set[str]
    watch: str
    finding: str = ""
    advised: str = ""
    training: Mapping[str, float] = {}


CASES = {
    "nothing": Planted("of_files", {}, set(), "accelerator", training={"device_s": 0.06}),
    "the loop": Planted(
        "of_files", {"workers": 0}, set(), "accelerator", training={"loop_s": 0.05}
    ),
    "sleep": Planted(
        "of_files", {"sleep": 0.004}, {"prep"}, "prep", "user.workers_wait", "workers"
    ),
    "spin": Planted(
        *("of_files", {"spin": 0.004}, {"prep", "cpu"}, "prep"),
        *("user.workers_are_cpu_bound", "workers"),
    ),
    "sleep without workers": Planted(
        *("of_files", {"workers": 0, "sleep": 0.004}, set(), "prep"),
        *("user.workers_wait", "num_workers"),
    ),
    "spin without workers": Planted(
        "of_files", {"workers": 0, "spin": 0.004}, {"prep", "cpu"}, "prep", "", "num_workers"
    ),
    "one slow worker": Planted(
        "one_slow_worker", {}, {"prep"}, "prep", "user.out_of_order_wait", "in_order"
    ),
    "generator": Planted("of_generator", {}, {"prep"}, "prep", "user.workers_wait", "num_workers"),
    "generator that computes": Planted("of_generator", {"sleep": 0, "spin": 0.004}, {"prep"}, ""),
    "iterable": Planted("slow_stream", {}, set(), "prep", "user.workers_wait", "workers"),
    "large batches": Planted(
        "large", {}, {"loader"}, "loader", "", "uint8", training={"epochs": 4}
    ),
    "payload": Planted("payload", {}, {"loader"}, ""),
    "spawn": Planted(
        *("spawned", {}, set(), "fill", "user.spawn_cost", "persistent_workers", {"epochs": 2})
    ),
    "slow start": Planted(
        *("slow_start", {}, {"fill"}, "fill"),
        *("user.spawn_cost", "persistent_workers", {"epochs": 2}),
    ),
    "collate": Planted(
        "slow_collate", {"sleep": 0.04}, {"prep"}, "prep", "user.collate_share", "collate_fn"
    ),
}


# run --loader


Measure = Callable[..., TrainingRecord]


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """``measure(loader, place, words, argument=value, ...)``: the record of a run of the demo."""

    def call(loader: str, place: object, words: str = "", **arguments: object) -> TrainingRecord:
        given = " ".join(f"--loader-args {key}={value}" for key, value in arguments.items())
        done = completed(
            *f"run demo --data {place} --results {tmp_path} --repeat 3 --calibration 1s --json "
            f"--quiet --loader tests.planted_loaders:{loader} {given} {words}".split()
        )
        assert done.returncode in (0, 3), done.stderr
        return TrainingRecord.model_validate_json(done.stdout)

    return call


def user_of(doc: TrainingRecord) -> UserFacts:
    assert doc.job.loader.user is not None
    return doc.job.loader.user


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.run])
def test_a_run_names_what_was_planted(data: Path, measure: Measure, name: str) -> None:
    case = CASES[name]
    doc = measure(case.loader, data, **case.arguments)
    assert verdict_of(doc).bottleneck in case.run, verdict_of(doc).sentence
    assert not case.finding or case.finding in findings(doc)
    user = user_of(doc)
    assert user.wait_s is not None
    if case.run == {"loader"}:
        assert (user.hand_over_s or 0) > 0.5 * user.wait_s
    if name == "collate":
        assert "collate" in [each.id for each in verdict_of(doc).advice]
    if case.loader == "one_slow_worker":
        assert (user.out_of_order_s or 0) > 0.5 * user.wait_s
        assert "in_order=False" in verdict_of(doc).advice[0].change


BARE = "--repeat 1 --calibration 0s --no-ablations"
"""Only the loader's trial comes before the repetition."""


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("planted", ["sleep", "spin"])
def test_the_time_of_batches_is_what_the_loader_took(
    data: Path, measure: Measure, tmp_path: Path, planted: str, workers: int
) -> None:
    """The loader keeps its own accounts: a sleep of 4 ms ends late, and reading takes time."""
    truth = tmp_path / "truth.txt"
    given: dict[str, Any] = {planted: 0.004, "workers": workers, "truth": truth}
    user = user_of(measure("of_files", data, BARE, **given))
    # The trial comes first.
    samples = [line.split() for line in truth.read_text().splitlines()[-(user.samples or 0) :]]
    wall, cpu = (sum(int(each[place]) for each in samples) / 1e9 for place in (0, 1))
    assert len(samples) == user.samples == 1024
    assert user.fetch_wall_s == pytest.approx(wall, rel=0.05)
    if planted == "spin":
        assert user.fetch_cpu_s == pytest.approx(cpu, rel=0.05)
    queued = user.fetch_queued_s or 0.0
    waits = (user.fetch_wall_s or 0.0) - (user.fetch_cpu_s or 0.0) - queued
    assert waits == pytest.approx(wall - cpu - queued, abs=0.05 * wall)


NO_STAGES = "--calibration 0s --no-ablations"


@pytest.mark.parametrize(
    ("loader", "finding"), [("of_lists", "user.dataset_copied"), ("spawned", "user.spawn_cost")]
)
def test_the_cost_of_workers_is_found(
    data: Path, measure: Measure, loader: str, finding: str
) -> None:
    doc = measure(loader, data, NO_STAGES)
    assert finding in findings(doc), doc.job.loader.user


def test_bytes_of_memory_maps_are_those_of_devices(data: Path, measure: Measure) -> None:
    doc = measure("of_maps", data, NO_STAGES)
    stored = (doc.job.dataset.stored_bytes or 0) * doc.job.workload.epochs
    assert (user_of(doc).device_bytes or 0) >= 0.98 * stored
    assert (user_of(doc).process_bytes or stored) < 0.1 * stored


@pytest.mark.parametrize("workers", [0, 1])
def test_the_headspace_is_what_the_loader_takes(data: Path, tmp_path: Path, workers: int) -> None:
    """A step takes as long as its batch: without workers the run could be twice as fast.

    With one, a batch is made during a step of twice its time, and nothing is to be gained.
    """
    # For the workload's 64 samples: 80 ms for 8 of them, or 160 ms.
    step = f"--set accelerator.step_time={1280 if workers else 640}ms"
    words = f"--headspace --calibration 4s {step}"
    found = document(
        f"run demo --data {data} --results {tmp_path} --repeat 3 {words} --loader "
        f"tests.planted_loaders:of_files --loader-args sleep=0.01 --loader-args workers={workers}"
    )["headspace"]
    assert found["value"] == pytest.approx(1.0 if workers else 2.0, rel=0.05)


# iobench.watch


def trained(
    case: Planted, place: object, results: Path, *, data: Path | None = None
) -> TrainingRecord:
    """Train a small model on what the loader delivers.

    ``loop_s`` of the training: CPU time of the loop itself before each step. ``device_s``: each
    step takes this longer, as on a device for which the loop waits.
    """
    loader: Iterable[Any] = getattr(planted_loaders, case.loader)(place, **case.arguments)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with (watch := iobench.watch(loader, results=results, data=data)) as batches:
        for _ in range(int(case.training.get("epochs", 1))):
            for batch in batches:
                burn_until(time.thread_time() + case.training.get("loop_s", 0.0))
                pixels = first_of(batch).flatten()[:256].float() / 255
                optimizer.zero_grad()
                model(pixels).square().mean().backward()
                optimizer.step()
                time.sleep(case.training.get("device_s", 0.0))
    assert watch.directory is not None
    return load_training(watch.directory)


def first_of(batch: Any) -> torch.Tensor:
    while not isinstance(batch, torch.Tensor):
        batch = batch[0]
    return batch


def told(doc: TrainingRecord, case: Planted) -> None:
    """The record has the verdict, the finding, and advice with the name in it."""
    verdict = verdict_of(doc)
    assert verdict.bottleneck == case.watch, f"{verdict.sentence} {verdict.explanation}"
    assert verdict.starved is (case.watch != "accelerator"), verdict.sentence
    assert not case.finding or case.finding in findings(doc)
    assert case.advised in verdict.advice[0].change
    assert doc.validity == "valid"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.watch])
def test_a_watched_training_names_what_was_planted(name: str, data: Path, tmp_path: Path) -> None:
    told(trained(CASES[name], str(data), tmp_path, data=data), CASES[name])


def test_a_wait_for_nobody_knows_what_is_not_blamed_on_the_loader(
    data: Path, tmp_path: Path
) -> None:
    """Nobody said where the data is, so the files may have been what was waited for."""
    assert verdict_of(trained(CASES["sleep"], str(data), tmp_path)).bottleneck == "storage"


STORAGE = Planted("of_files", {}, set(), "storage", "user.workers_wait", "reads in flight")


@pytest.mark.parametrize("loader", ["of_files", "of_maps"])
def test_a_disk_that_the_kernel_holds_back(loader: str, data: Path, tmp_path: Path) -> None:
    """The first epoch is cold, the second one comes from memory: it hides nothing."""
    case = STORAGE._replace(loader=loader, training={"epochs": 2})

    def work(_: Path) -> None:
        trained(case, str(data), tmp_path / "results", data=data)

    with throttle_for(data) as throttle:
        forget(data)
        throttle.hold(bytes_per_s=SLOW_DISK)
        (tmp_path / "scratch").mkdir()
        throttle.run(work, tmp_path / "scratch")
    (directory,) = (tmp_path / "results").iterdir()
    told(load_training(directory), case)


def forget(data: Path) -> None:
    """Put the files out of the page cache."""
    os.sync()
    for path in data.rglob("*.jpg"):
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def test_objects_of_a_store_that_is_far(
    rclone_s3: S3Server, s3_environment: object, tmp_path: Path, measure: Measure
) -> None:
    """The page cache holds no objects, so a run can't leave storage out: the times tell."""
    printed(f"generate demo --to {rclone_s3.url('own')} {SIZE}")
    with late(rclone_s3.port, 0.02) as far:
        endpoint = f"http://127.0.0.1:{far.port}"
        where: dict[str, Any] = {"bucket": BUCKET, "prefix": "own", "count": 128}
        case = STORAGE._replace(loader="of_objects", arguments=where)
        told(trained(case, endpoint, tmp_path / "watched"), case)
        doc = measure("of_objects", rclone_s3.url("own"), endpoint=endpoint, **where)
    assert verdict_of(doc).bottleneck == "storage", verdict_of(doc).sentence
    assert "user.workers_wait" in findings(doc)
    (storage,) = (each for each in doc.job.ablations if each.stage == "storage")
    assert storage.gain is None
    assert storage.not_measured


# The instruments

MAX_COST_S = 0.0005
"""CPU time for a batch of 64 files that are new: docs/watch.md says 0.1 ms, and 4 us for a file."""

BATCHES = 16


def cpu_s(batches: Iterable[Any]) -> float:
    began = time.process_time()
    for _ in batches:
        pass
    return time.process_time() - began


def test_the_instruments_cost_little(data: Path) -> None:
    """Beside batches that take no time themselves: with and without us, in turns."""
    place, count = str(data), BATCHES * 64
    spec = LoaderSpec(kind="user", factory="tests.planted_loaders:of_opens", args={"count": count})
    ours = UserLoader(spec, data=place, root=place, batch_size=64, stored_bytes=1.0)
    theirs = planted_loaders.of_opens(place, count)
    cost_s = statistics.median(cpu_s(ours) - cpu_s(theirs) for _ in range(31)) / BATCHES
    assert ours.facts().files_inside == 31 * count
    ours.shutdown()
    assert 0 < cost_s < MAX_COST_S

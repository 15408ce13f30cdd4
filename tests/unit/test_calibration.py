"""Windows of the bench and the search for the maximum, over datasets of a few shards."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iobench.ask.capacity import sizing
from iobench.base.units import format_bytes
from iobench.judge.figures.in_flight import job_reads_in_flight
from iobench.load.engines.base import ReadEngine
from iobench.load.engines.threads import ThreadEngine
from iobench.load.engines.uring import UringEngine
from iobench.runner import engine_trial, trials
from iobench.runner.agent import HostAgent
from iobench.runner.budget import Budget
from iobench.runner.calibration import findmax
from iobench.runner.calibration.bench import Bench
from iobench.runner.calibration.ceilings import accelerator
from iobench.runner.calibration.curve import storage_curve
from iobench.runner.calibration.findmax import begin_search, find_max
from iobench.runner.curve.target import requests
from iobench.runner.plan import Plan, make_plan
from iobench.runner.plan_figures import probe
from iobench.settings.workload import load_workload
from iobench.storage.base import Entry, StorageTraits
from iobench.storage.local.storage import LocalStorage
from iobench.storage.local.uring import refused
from tests.conftest import MakeDataset
from tests.processes import PATIENCE_S
from tests.unit.test_curve_reads import Watched

SETTINGS = [
    *("batch_size=8", "reader.direct=false", "reader.crop=null", "loader.workers=1"),
    *("accelerator.step_time=1ms", "required_accelerator_utilization=0.01"),
]


class Uncached(LocalStorage):
    """Files whose reads never come from this host's page cache, as those of an object store."""

    @property
    def traits(self) -> StorageTraits:
        return StorageTraits(page_cache=False)


@pytest.fixture
def shards(make_dataset: MakeDataset) -> Path:
    return make_dataset(format="tar", samples_per_shard=20)[1]


@pytest.fixture
def plan(shards: Path) -> Plan:
    workload = load_workload("demo", SETTINGS)
    return make_plan(workload, str(shards), accelerators=1, repetitions=1, seed=1)


def bench_of(plan: Plan, tmp_path: Path, seconds: float = 2.0) -> Bench:
    return Bench(plan=plan, agent=HostAgent(plan.storage), directory=tmp_path, seconds=seconds)


@pytest.mark.parametrize(("uncached", "samples"), [(False, 60), (True, 128)])
def test_the_search_reads_on_only_where_no_cache_can_serve_it(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncached: bool, samples: int
) -> None:
    """An epoch has 60 samples, and 16 steps of 8 samples are asked for, 15 of them steady."""
    monkeypatch.setattr(findmax, "MAX_ACCELERATORS", 1)
    monkeypatch.setattr(trials, "TRIALS", 1)
    monkeypatch.setattr(findmax, "MIN_STEPS", 15)
    monkeypatch.setattr(findmax, "IN_FLIGHT", 1)
    monkeypatch.setattr(findmax, "MAX_POINT_S", PATIENCE_S)
    if uncached:
        plan = replace(plan, storage=Uncached(plan.data))
    bench = bench_of(plan, tmp_path, seconds=0.2)
    found = begin_search(bench)
    find_max(bench, found, Budget())
    assert [point.accelerators for point in found.points] == [1]
    assert sum(int(columns["samples"].sum()) for *_, columns in bench.parts) == samples


# The trial of engines


needs_io_uring = pytest.mark.skipif(bool(refused()), reason=refused() or "")

Planned = Callable[..., Plan]


@pytest.fixture
def planned(make_dataset: Any, monkeypatch: pytest.MonkeyPatch) -> Planned:
    monkeypatch.setattr(engine_trial, "TRIAL_S", 0.02)
    data: Path = make_dataset(samples=400, format="files")[1]

    def call(*settings: str, data: str = str(data)) -> Plan:
        usual = ["reader.engine=auto", "batch_size=4", "cache=warm"]
        workload = load_workload("demo", [*usual, *settings])
        return make_plan(workload, data, accelerators=1, repetitions=1, seed=1)

    return call


def slowed(engine: type[ReadEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    read = engine.read

    def slow(self: Any, *arguments: Any) -> int:
        time.sleep(0.1)
        return read(self, *arguments)

    monkeypatch.setattr(engine, "read", slow)


@needs_io_uring
def test_a_process_that_stood_still_for_its_turn_reads_a_batch_yet(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_trial, "TRIAL_S", 0.0)
    assert planned().engine_choice.startswith("auto took ")


@needs_io_uring
@pytest.mark.parametrize(("slow", "taken"), [(UringEngine, "threads"), (ThreadEngine, "io_uring")])
def test_the_faster_engine_is_taken(
    planned: Planned, monkeypatch: pytest.MonkeyPatch, slow: type[ReadEngine], taken: str
) -> None:
    if slow is ThreadEngine:  # the other one inherits from it
        monkeypatch.setattr(UringEngine, "read", UringEngine.read)
    slowed(slow, monkeypatch)
    plan = planned()
    assert plan.workload.reader.engine == taken
    assert plan.engine_choice.startswith(f"auto took {taken}: ")
    assert "samples/s" in plan.engine_choice


def test_where_io_uring_is_refused_threads_are_taken(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_trial, "refused", lambda: "the kernel refuses io_uring")
    plan = planned()
    assert plan.workload.reader.engine == "threads"
    assert plan.engine_choice == "auto took threads: the kernel refuses io_uring"


@pytest.mark.parametrize(
    ("concurrency", "workers", "ranks", "offered", "ahead", "reads"),
    [
        (4, 2, 2, None, False, 16),  # not known: as the settings say
        (4, 0, 2, 100, False, 8),  # the ranks read themselves
        (16, 4, 1, 1, False, 4),  # one request in a batch
        (16, 4, 1, 1, True, 64),
        (16, 4, 1, 0, False, 4),  # a batch from a kept row group; the next one reads
    ],
)
def test_what_settings_allow_and_batches_offer(
    concurrency: int, workers: int, ranks: int, offered: float | None, ahead: bool, reads: int
) -> None:
    found = job_reads_in_flight(
        concurrency=concurrency,
        workers=workers,
        ranks=ranks,
        requests_per_batch=offered,
        reads_ahead=ahead,
    )
    assert found == reads


# Reads in flight of a job


# The storage curve of a run


SMALL = ("batch_size=8", "reader.crop=null", "loader.workers=1", "accelerator.step_time=1ms")


def plan_of(path: Path | str, *settings: str) -> Plan:
    workload = load_workload("demo", [*SMALL, *settings])
    return make_plan(workload, str(path), accelerators=1, repetitions=1, seed=1)


def objects_of(plan: Plan) -> list[Entry]:
    sizes = plan.manifest.shards["size"].tolist()
    return [Entry(key, size) for key, size in zip(plan.keys, sizes, strict=True)]


def test_of_row_groups_only_the_columns_that_are_read_count(make_dataset: MakeDataset) -> None:
    _, path = make_dataset(format="parquet", samples_per_shard=20, columns=10, content="raw")
    whole, part = (
        requests(plan, objects_of(plan))[0].median_bytes
        for plan in (
            plan_of(path, "reader.direct=false", "reader.decode=false", *more)
            for more in ((), ("reader.columns=1",))
        )
    )
    assert part == pytest.approx(whole / 10, rel=0.05)


def test_what_is_known_of_a_sample_is_of_the_columns_that_are_read(
    make_dataset: MakeDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The curve's samples/s, those of the accelerator in bytes/s, and the loader's batches."""
    _, path = make_dataset(format="parquet", samples_per_shard=20, columns=10, content="raw")
    settings = ("reader.direct=false", "reader.decode=false", "reader.columns=1")
    plan = plan_of(path, *settings, "accelerator.step_time=1s")
    bench, tenth = bench_of(plan, tmp_path), plan.manifest.mean_stored_bytes / 10
    whole = plan.manifest.samples["size"].sum()
    raw = storage_curve(bench)
    assert raw.details.read_bytes_per_sample == pytest.approx(tenth, rel=0.01)
    step = accelerator(bench)
    assert step.bytes_per_s / step.samples_per_s == pytest.approx(tenth, rel=0.01)
    assert bench.delivered.sum() == pytest.approx(whole / 10, rel=0.01)
    needed: list[float] = []
    monkeypatch.setattr(sizing, "reads_in_flight", lambda **of: needed.append(of["reads_per_s"]))
    request = probe(plan).request_bytes
    assert needed == [pytest.approx(8 * tenth / request, rel=0.01)]  # a batch of 8 each second


def test_a_librarys_requests_are_blocks_of_its_files_and_said_to_be_unknown(shards: Path) -> None:
    plan = plan_of(shards, "loader.kind=webdataset", "reader.block_size=64KiB")
    places, note = requests(plan, objects_of(plan))
    assert places.order == "sequential"
    assert places.max_bytes == 65_536
    assert "webdataset" in note
    assert format_bytes(65_536) in note


def test_what_the_page_cache_may_serve_has_no_curve(shards: Path, tmp_path: Path) -> None:
    bench = bench_of(plan_of(shards, "cache=warm"), tmp_path)
    ceiling = storage_curve(bench)
    assert bench.curve is None
    assert ceiling.samples_per_s is None
    assert "warm" in ceiling.not_measured


def test_a_storage_that_fails_under_depth_keeps_the_points_before(
    shards: Path, tmp_path: Path
) -> None:
    plan = plan_of(shards, "reader.access=random", "reader.direct=false")
    objects = {key: Path(shards, key).read_bytes() for key in plan.keys}
    bench = bench_of(replace(plan, storage=Watched(objects, most=3)), tmp_path)
    ceiling = storage_curve(bench)
    assert [point.in_flight for point in bench.curve.curve.points] == [1, 2]
    assert "too many open connections" in bench.curve.curve.stopped
    assert ceiling.by == "reader"
    assert ceiling.bytes_per_s
    # More reads in flight were not possible, so this is no plateau, and the ceiling says so.
    assert bench.curve.curve.plateau_bytes_per_s is None
    assert "no plateau" in ceiling.how

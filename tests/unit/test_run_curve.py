"""The storage's curve inside a run: which bytes it reads, and where there is none or a part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from iobench.base.units import format_bytes
from iobench.runner.agent import HostAgent
from iobench.runner.calibration.bench import Bench
from iobench.runner.calibration.curve import storage_curve
from iobench.runner.curve.target import requests
from iobench.runner.plan import Plan, make_plan
from iobench.settings.workload import load_workload
from iobench.storage.base import Entry
from tests.conftest import MakeDataset
from tests.unit.test_curve_reads import Watched

SMALL = ("batch_size=8", "reader.crop=null", "loader.workers=1", "accelerator.step_time=1ms")


def plan_of(path: Path | str, *settings: str) -> Plan:
    workload = load_workload("demo", [*SMALL, *settings])
    return make_plan(workload, str(path), accelerators=1, repetitions=1, seed=1)


def objects_of(plan: Plan) -> list[Entry]:
    sizes = plan.manifest.shards["size"].tolist()
    return [Entry(key, size) for key, size in zip(plan.keys, sizes, strict=True)]


def bench_of(plan: Plan, tmp_path: Path, seconds: float = 2.0) -> Bench:
    return Bench(plan=plan, agent=HostAgent(plan.storage), directory=tmp_path, seconds=seconds)


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


def test_a_librarys_requests_are_blocks_of_its_files_and_said_to_be_unknown(
    make_dataset: MakeDataset,
) -> None:
    _, path = make_dataset(format="tar", samples_per_shard=20)
    plan = plan_of(path, "loader.kind=webdataset", "reader.block_size=64KiB")
    places, note = requests(plan, objects_of(plan))
    assert places.order == "sequential"
    assert places.max_bytes == 65_536
    assert "webdataset" in note
    assert format_bytes(65_536) in note


def test_what_the_page_cache_may_serve_has_no_curve(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    _, path = make_dataset(format="tar", samples_per_shard=20)
    bench = bench_of(plan_of(path, "cache=warm"), tmp_path)
    ceiling = storage_curve(bench)
    assert bench.curve is None
    assert ceiling.samples_per_s is None
    assert "warm" in ceiling.not_measured


def test_a_storage_that_fails_under_depth_keeps_the_points_before(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    _, path = make_dataset(format="tar", samples_per_shard=20)
    plan = plan_of(path, "reader.access=random", "reader.direct=false")
    objects = {key: Path(path, key).read_bytes() for key in plan.keys}
    bench = bench_of(replace(plan, storage=Watched(objects, most=3)), tmp_path)
    ceiling = storage_curve(bench)
    assert [point.in_flight for point in bench.curve.curve.points] == [1, 2]
    assert "too many open connections" in bench.curve.curve.stopped
    assert ceiling.by == "reader"
    assert ceiling.bytes_per_s
    # More reads in flight were not possible, so this is no plateau, and the ceiling says so.
    assert bench.curve.curve.plateau_bytes_per_s is None
    assert "no plateau" in ceiling.how

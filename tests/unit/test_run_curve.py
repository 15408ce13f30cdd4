"""The storage's curve inside a run: which requests it makes, and the ceiling that it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from iobench.analyse.figures.curve import highest
from iobench.measure import fio
from iobench.runner.agent import HostAgent
from iobench.runner.calibration.bench import Bench
from iobench.runner.calibration.curve import requests, storage_curve
from iobench.runner.plan import Plan, make_plan
from iobench.schema.workload import load_workload
from iobench.storage.base import Entry
from iobench.units import format_bytes
from tests.conftest import MakeDataset
from tests.unit.test_curve_reads import Watched

SMALL = ("batch_size=8", "reader.crop=null", "loader.workers=1", "accelerator.step_time=1ms")


def plan_of(path: Path | str, *settings: str) -> Plan:
    workload = load_workload("demo", [*SMALL, *settings])
    return make_plan(workload, str(path), accelerators=1, repetitions=1, seed=1)


def objects_of(plan: Plan) -> list[Entry]:
    sizes = plan.manifest.shards["size"].tolist()
    return [Entry(key, size) for key, size in zip(plan.keys, sizes, strict=True)]


def bench_of(plan: Plan, tmp_path: Path, seconds: float = 0.5) -> Bench:
    return Bench(plan=plan, agent=HostAgent(plan.storage), directory=tmp_path, seconds=seconds)


@pytest.mark.parametrize(
    ("settings", "samples"),
    [
        ((), 8),
        (("batch_size=1",), 1),
        (("batch_size=60",), 20),  # a shard of 20 samples ends a batch of more
    ],
)
def test_sequential_requests_are_what_a_batch_needs_of_a_shard(
    make_dataset: MakeDataset, settings: Sequence[str], samples: int
) -> None:
    manifest, path = make_dataset(format="tar", samples_per_shard=20)
    plan = plan_of(path, "reader.direct=false", *settings)
    places, note = requests(plan, objects_of(plan))
    assert places.order == "sequential"
    assert not note
    assert places.max_bytes == pytest.approx(samples * manifest.mean_stored_bytes, abs=1)
    blocks, _ = requests(plan_of(path, "reader.block_size=16KiB"), objects_of(plan))
    assert blocks.min_bytes == blocks.max_bytes == 16 << 10


def test_random_requests_are_the_samples(make_dataset: MakeDataset) -> None:
    manifest, path = make_dataset(format="tar", samples_per_shard=20)
    plan = plan_of(path, "reader.access=random", "reader.direct=false")
    places, _ = requests(plan, objects_of(plan))
    assert places.order == "random"
    taken = places.take(60, enough=60)
    found = sorted((place.key, place.offset, place.length) for place in taken.places)
    shards = np.asarray(manifest.samples["shard"]).tolist()
    assert found == sorted(
        (manifest.key(shard), int(offset), int(stored))
        for shard, offset, stored in zip(
            shards, manifest.samples["offset"], manifest.samples["stored"], strict=True
        )
    )


def test_small_files_are_read_whole(make_dataset: MakeDataset) -> None:
    manifest, path = make_dataset(format="files")
    plan = plan_of(path, "reader.direct=false")
    places, _ = requests(plan, objects_of(plan))
    assert places.once
    assert len(places) == manifest.shard_count
    assert places.min_bytes == places.max_bytes == 20_000


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


def test_the_curve_gives_the_ceiling_of_raw_storage(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    _, path = make_dataset(format="tar", samples_per_shard=20)
    bench = bench_of(plan_of(path), tmp_path)
    ceiling = storage_curve(bench)
    assert bench.curve is not None
    assert bench.curve.curve.points
    curve = bench.curve.curve
    best = highest(curve.points)
    assert best is not None
    assert ceiling.bytes_per_s is not None
    assert ceiling.samples_per_s is not None
    assert ceiling.bytes_per_s <= best.bytes_per_s.value
    assert ceiling.bytes_per_s == pytest.approx(best.bytes_per_s.value, rel=0.06)
    assert ceiling.windows is not None
    assert ceiling.windows.value == ceiling.samples_per_s
    assert ceiling.by == ("fio" if fio.available() else "reader")
    assert bool(list(tmp_path.glob("fio/*.fio"))) == fio.available()
    # 60 samples of 20 kB have no 16 pieces of 1 MiB, so small requests tell operations from bytes.
    assert bench.curve.large is not None
    assert bench.curve.large.request_bytes == 4096
    assert bench.curve.large.points[0].in_flight == 4


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
    assert bench.curve is not None
    assert [point.in_flight for point in bench.curve.curve.points] == [1, 2]
    assert "too many open connections" in bench.curve.curve.stopped
    assert ceiling.by == "reader"
    assert ceiling.bytes_per_s
    # More reads in flight were not possible, so this is no plateau, and the ceiling says so.
    assert bench.curve.curve.plateau_bytes_per_s is None
    assert "no plateau" in ceiling.how

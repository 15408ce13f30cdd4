"""Oracles: storage of known speed and steps of known length must yield the known bandwidth,
utilization and verdict.

The truths come from arithmetic on what is planted: a throttle that all processes share (its clock
is exact), step times, and stages made slow on purpose by factors, not by percents, so that a loaded
machine can't turn them round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iobench.generator import generate
from iobench.runner.experiment import Options, run
from iobench.runner.plan import make_plan
from iobench.schema.base import build
from iobench.schema.dataset import DatasetSpec
from iobench.schema.record import TrainingRecord
from iobench.schema.workload import Workload
from iobench.storage.local.storage import LocalStorage

MB = 1_000_000


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``data(name, **spec)``: a dataset's directory, generated once."""
    root = tmp_path_factory.mktemp("oracle")

    def make(name: str, **spec: Any) -> Path:
        path = root / name
        if not path.exists():
            # Workloads look their dataset up by name; these are about their own data, so they carry
            # demo's name.
            generate(
                build(DatasetSpec, {"name": "demo", **spec}, where=name),
                LocalStorage(path),
                workers=0,
            )
        return path

    return make


def measure(
    tmp_path: Path,
    url: str,
    *,
    accelerators: int = 1,
    repetitions: int = 1,
    calibration_s: float = 1.0,
    **workload: Any,
) -> TrainingRecord:
    spec = {
        "name": "oracle",
        "dataset": "demo",
        "batch_size": 10,
        "loader": {"workers": 2},
        **workload,
    }
    plan = make_plan(
        build(Workload, spec, where="oracle"),
        url,
        accelerators=accelerators,
        repetitions=repetitions,
        seed=1,
    )
    doc, _ = run(plan, Options(results=tmp_path, calibration_s=calibration_s))
    assert doc.status == "ok"
    return doc


def raw_shards(data: Any) -> Path:
    return Path(
        data("raw", samples=600, sample_size={"mean": 200_000}, format="tar", samples_per_shard=60)
    )


def test_throttled_storage_binds_and_its_bandwidth_is_reported(tmp_path: Path, data: Any) -> None:
    # 120 MB at 40 MB/s take 3 s; the accelerator asks for 10 x 200 kB each 20 ms = 100 MB/s.
    url = f"throttled+{raw_shards(data)}?bandwidth=40MB"
    doc = measure(tmp_path, url, accelerator={"step_time": "20ms"})
    assert doc.metrics["read_bytes_per_s"].median == pytest.approx(40 * MB, rel=0.05)
    assert doc.job.ceilings["fetch"].bytes_per_s == pytest.approx(40 * MB, rel=0.05)
    assert doc.job.verdict is not None
    assert doc.job.verdict.binds == "storage"
    assert doc.job.verdict.starved
    # A step begins when its batch is there: the accelerator is busy for the share of its appetite
    # that storage delivers.
    assert doc.metrics["accelerator_utilization_sustained"].median == pytest.approx(0.40, abs=0.02)
    assert doc.job.verdict.headroom == pytest.approx(0.40, rel=0.05)
    assert doc.job.verdict.accelerators_fed == 0
    assert "storage" in doc.job.verdict.sentence.lower()


def test_with_the_cap_lifted_the_verdict_changes(tmp_path: Path, data: Any) -> None:
    # The same at 2 x the appetite: the accelerator never waits, and one more could be fed.
    url = f"throttled+{raw_shards(data)}?bandwidth=200MB"
    # Steps of 80 ms, so that a worker's round trip (0.5 to 1 ms) is next to nothing.
    # A batch is 2 requests: with 2 in flight, no worker's first batch waits for one read ahead.
    doc = measure(
        tmp_path,
        url,
        accelerator={"step_time": "80ms"},
        batch_size=40,
        reader={"concurrency": 2},
    )
    assert doc.job.verdict is not None
    assert doc.job.verdict.binds == "accelerator"
    assert not doc.job.verdict.starved
    assert doc.metrics["accelerator_utilization"].median == pytest.approx(1.0, abs=0.02)
    assert doc.metrics["samples_per_s"].median == pytest.approx(
        500, rel=0.1
    )  # 40 per 80 ms, after the first two batches' 80 ms
    assert doc.job.verdict.headroom == pytest.approx(
        2.0, rel=0.1
    )  # of a short window: the cap gives back what a pause left unused
    assert doc.job.verdict.accelerators_fed == 2  # 200 MB/s / (0.9 x 100 MB/s)


def test_latency_is_hidden_by_requests_in_flight(tmp_path: Path, data: Any) -> None:
    # One request at a time of 50 ms: 20 requests/s and worker. Little's law: 8 in flight make 160
    # requests of 100 kB per second.
    small = data("small", samples=160, sample_size={"mean": 100_000}, format="files")
    url = f"throttled+{small}?latency=50ms"
    doc = measure(
        tmp_path,
        url,
        accelerator={"kind": "null"},
        loader={"workers": 1},
        reader={"concurrency": 1},
        max_steps=4,
        calibration_s=0.3,
    )
    assert doc.metrics["samples_per_s"].median == pytest.approx(20, rel=0.1)
    doc = measure(
        tmp_path,
        url,
        accelerator={"kind": "null"},
        loader={"workers": 1},
        reader={"concurrency": 8},
        batch_size=16,
        calibration_s=0.3,
    )
    assert doc.metrics["samples_per_s"].median == pytest.approx(160, rel=0.1)
    assert doc.job.verdict is not None
    assert doc.job.verdict.binds == "storage"


def test_find_max_finds_the_arithmetic(tmp_path: Path, data: Any) -> None:
    # 20 MB/s for each accelerator at full appetite, 18 MB/s at the required 90 %: a storage of 60
    # MB/s feeds 3.
    url = f"throttled+{raw_shards(data)}?bandwidth=60MB"
    spec = {
        "name": "oracle",
        "dataset": "demo",
        "batch_size": 5,
        "accelerator": {"step_time": "50ms"},
        "loader": {"workers": 1},
    }
    plan = make_plan(
        build(Workload, spec, where="oracle"), url, accelerators=1, repetitions=1, seed=1
    )
    doc, _ = run(plan, Options(results=tmp_path, calibration_s=0.4, find_max=True))
    assert doc.job.find_max is not None
    assert doc.job.find_max.accelerators == 3
    by_count = {point.accelerators: point.passed for point in doc.job.find_max.points}
    assert by_count[3]
    assert not by_count[4]

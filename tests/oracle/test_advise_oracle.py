"""Advice oracles: real sweeps on storage of planted latency and bandwidth end with the settings
that the arithmetic predicts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iobench.analyse.tuning.recommend import Target, recommend
from iobench.analyse.tuning.sweepfolder import read_sweep
from iobench.runner.experiment import Options, run
from iobench.runner.plan import make_plan
from iobench.schema.base import build
from iobench.schema.workload import Workload


def point(results: Path, url: str, *, repetitions: int, **workload: Any) -> None:
    spec = build(
        Workload,
        {"name": "oracle", "dataset": "demo", "accelerator": {"step_time": "1ms"}, **workload},
        where="oracle",
    )
    doc, _ = run(
        make_plan(spec, url, accelerators=1, repetitions=repetitions, seed=3),
        Options(results=results, calibration_s=0),
    )
    assert (doc.status, doc.error) == ("ok", "")


def test_the_shard_size_follows_from_latency_and_bandwidth(
    tmp_path: Path, make_dataset: Any
) -> None:
    """Every batch reads whole shards one after another: 20 ms and b / (5 MB/s) each. 95 % of 5 MB/s
    need shards of 1.9 MB.
    """
    for samples in (4, 12, 40):
        _, root = make_dataset(
            samples=480, sample_size={"mean": 10_000}, format="tar", samples_per_shard=samples
        )
        job = {
            "batch_size": 120,
            "reader": {"concurrency": 1, "direct": False, "shuffle": False},
            "loader": {"workers": 1},
        }
        point(tmp_path, f"throttled+{root}?bandwidth=5MB&latency=20ms", repetitions=1, **job)
    found = recommend(read_sweep(tmp_path), Target(dataset_bytes=1e12))
    assert found.shard is not None
    assert found.shard.fit.latency_s == pytest.approx(0.02, rel=0.15)
    assert found.shard.fit.bytes_per_s == pytest.approx(5e6, rel=0.15)
    assert found.shard.fit.trusted
    assert found.shard.bytes == 2 << 20
    assert found.settings == {"dataset.samples_per_shard": "40"}

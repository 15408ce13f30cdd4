"""Oracles: the storage that ``iobench size`` says to buy passes the run that it was bought for.

The bought storage is emulated by ``throttled+`` at the rate and the latency that were bought. Its
run reaches the required utilization, and with a tenth less it does not, so the margin is no waste.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iobench.analyse.capacity.requirement import Demand, Requirement, requirement
from iobench.dataset import layout_of
from iobench.runner.experiment import Options, run
from iobench.runner.plan import make_plan
from iobench.schema.base import build
from iobench.schema.manifest import Manifest
from iobench.schema.workload import Workload

RANKS = 2

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # Small samples of one size in shards that are read in order, as ResNet-50's.
    "shards in order": (
        {"samples": 12_000, "sample_size": {"mean": 2000}, "format": "tar", "shard_size": "2MB"},
        {
            "batch_size": 40,
            "accelerator": {"step_time": 0.15},
            "loader": {"workers": 2, "prefetch_factor": 1},
        },
        "",
    ),
    # A large file for each sample, of very different sizes, with a barrier: as 3D U-Net's.
    "files of different sizes": (
        {
            "samples": 600,
            "sample_size": {
                "distribution": "normal",
                "mean": 100_000,
                "stdev": 46_600,
                "min": 3000,
                "max": 197_000,
            },
        },
        {
            "batch_size": 2,
            "accelerator": {"step_time": 0.15},
            "loader": {"workers": 2, "prefetch_factor": 1},
            "reader": {"block_size": 65_536},
        },
        "",
    ),
    # Single small samples anywhere in the shards, at a latency with a long tail.
    "small random reads": (
        {"samples": 3000, "sample_size": {"mean": 2000}, "format": "tar", "shard_size": "1MB"},
        {
            "batch_size": 10,
            "accelerator": {"step_time": 0.15},
            "loader": {"workers": 2, "prefetch_factor": 1},
            "reader": {"access": "random", "concurrency": 4},
        },
        "latency=10ms&latency_p99=50ms",
    ),
}


def bought(manifest: Manifest, workload: Workload, latency: str) -> Requirement:
    given = dict(each.split("=") for each in latency.split("&")) if latency else {}
    seconds = {name: float(value.removesuffix("ms")) / 1e3 for name, value in given.items()}
    steps = manifest.sample_count // (workload.batch_size * RANKS)
    demand = Demand(
        accelerators=RANKS,
        steps=steps,
        alignment=1,  # throttled+ counts the bytes that the reader asks for
        latency_s=seconds.get("latency"),
        latency_p99_s=seconds.get("latency_p99"),
    )
    return requirement(workload, manifest.spec, demand, layout=layout_of(manifest.spec))


def utilization(results: Path, data: Path, workload: Workload, rate: float, latency: str) -> float:
    url = f"throttled+{data}?bandwidth={round(rate)}" + (f"&{latency}" if latency else "")
    plan = make_plan(workload, url, accelerators=RANKS, repetitions=1, seed=1)
    doc, _ = run(plan, Options(results=results, calibration_s=0.0, knock_outs=False))
    assert (doc.status, doc.error) == ("ok", "")
    return doc.metrics["accelerator_utilization_sustained"].median


@pytest.mark.parametrize("case", CASES)
def test_the_bought_storage_passes_and_a_tenth_less_does_not(
    tmp_path: Path, make_dataset: Any, case: str
) -> None:
    data, settings, latency = CASES[case]
    manifest, root = make_dataset(**data)
    spec = {"name": "oracle", "dataset": "demo", **settings}
    spec["reader"] = {"decode": False, **settings.get("reader", {})}
    workload = build(Workload, spec, where="oracle")
    need = bought(manifest, workload, latency)
    assert need.buy_bytes_per_s is not None
    rates = [need.buy_bytes_per_s, 0.9 * need.buy_bytes_per_s]
    enough, less = [utilization(tmp_path, root, workload, rate, latency) for rate in rates]
    told = (need.margin, enough, less)
    assert enough >= need.required_accelerator_utilization, told
    assert less < need.required_accelerator_utilization, told

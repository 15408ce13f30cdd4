"""Storage of known latency: the probe must find it, and the arithmetic of Little's law must
follow.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.generator import generate
from iobench.runner.plan import make_plan
from iobench.runner.probe import probe
from iobench.schema.base import build
from iobench.schema.dataset import DatasetSpec
from iobench.schema.workload import Workload
from iobench.storage.local.storage import LocalStorage


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("probe") / "data"
    spec = {"name": "probe", "samples": 60, "sample_size": {"mean": 20_000}, "format": "files"}
    generate(build(DatasetSpec, spec, where="test"), LocalStorage(root))
    return root


def workload(tmp_path: Path, step_time: str | None) -> Workload:
    (tmp_path / "probe.yaml").write_text("{name: probe, samples: 60, sample_size: {mean: 20kB}}\n")
    accelerator = {"kind": "emulated", "step_time": step_time} if step_time else {"kind": "null"}
    data = {
        "name": "probe",
        "dataset": str(tmp_path / "probe.yaml"),
        "batch_size": 10,
        "accelerator": accelerator,
        "loader": {"workers": 2},
    }
    return build(Workload, data, where="test")


@pytest.mark.parametrize("latency_ms", [20, pytest.param(60, marks=pytest.mark.nightly)])
def test_latency_and_reads_in_flight(files: Path, tmp_path: Path, latency_ms: int) -> None:
    plan = make_plan(
        workload(tmp_path, "10ms"),
        f"throttled+{files}?latency={latency_ms}ms",
        accelerators=1,
        repetitions=1,
        seed=0,
    )
    found = probe(plan)
    assert latency_ms / 1000 <= found.latency_p50_s < 2 * latency_ms / 1000
    # 1000 samples/s of 20 kB, in reads of whole files (rounded up for direct reads): 1000 reads/s
    # or nearly.
    per_s = 1000 * 20_000 / found.request_bytes
    assert found.reads_in_flight == pytest.approx(per_s * found.latency_p50_s, abs=1)
    assert found.concurrency == -(-found.reads_in_flight // 2)


def test_no_demand_no_proposal(files: Path, tmp_path: Path) -> None:
    found = probe(
        make_plan(workload(tmp_path, None), str(files), accelerators=1, repetitions=1, seed=0)
    )
    assert found.concurrency is None
    assert found.latency_p50_s > 0

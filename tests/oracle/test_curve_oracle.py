"""Storage of known speed: ``probe``, and the probe of a plan, find the planted latency, operations
and bandwidth, and Little's law follows from them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iobench.record.plan import ProbeFigures
from iobench.runner.plan import make_plan
from iobench.runner.plan_figures import probe
from iobench.settings.base import build
from iobench.settings.workload import Workload
from tests.processes import document
from tools.budget_table import rows

SIZE = 64 << 10


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curve")
    for number in range(6):
        (folder / f"{number}.bin").write_bytes(bytes(8 << 20))
    return folder


def probed(data: Path, options: str) -> dict[str, Any]:
    found = document(f"probe throttled+{data}?{options} --request 64KiB")
    assert isinstance(found, dict)
    return found


def covers(rate: dict[str, float], truth: float, slack: float = 0.03) -> bool:
    return rate["low"] * (1 - slack) <= truth <= rate["high"] * (1 + slack)


@pytest.mark.nightly
def test_planted_bandwidth_and_latency(data: Path) -> None:
    """80 MB/s are 1,221 reads/s of 64 KiB; with 20 ms each, 25.4 of them are in flight."""
    found = probed(data, "bandwidth=80MB&latency=20ms")
    (curve,) = found["curves"]
    assert covers(curve["plateau_bytes_per_s"], 80e6)
    assert covers(curve["plateau_reads_per_s"], 80e6 / SIZE)
    assert curve["knee_in_flight"] in (16, 32, 64)
    first = curve["points"][0]
    assert 0.02 <= first["latency_p50_s"] < 0.026
    assert first["reads_per_s"]["value"] == pytest.approx(1 / 0.0208, rel=0.15)
    assert (curve["bound"][0], curve["bound"][-1]) == ("latency", "bandwidth")
    assert found["spent"] == ["bandwidth"]
    assert covers(found["large"]["plateau_bytes_per_s"], 80e6)


@pytest.mark.nightly
def test_planted_operations(data: Path) -> None:
    found = probed(data, "iops=500&latency=10ms")
    (curve,) = found["curves"]
    assert covers(curve["plateau_reads_per_s"], 500)
    assert curve["knee_in_flight"] in (4, 8, 16)
    assert found["spent"] == ["operations"]
    assert (curve["bound"][0], curve["bound"][-1]) == ("latency", "operations")


@pytest.mark.nightly
def test_latency_alone_has_no_plateau(data: Path) -> None:
    """Reads that only wait: twice as many in flight bring twice the rate, up to the last point."""
    (curve,) = probed(data, "latency=50ms")["curves"]
    assert curve["plateau_reads_per_s"] is None
    for point, bound in zip(curve["points"], curve["bound"], strict=True):
        if point["in_flight"] <= 64:  # beyond, this host's CPU may be short
            truth = point["in_flight"] / 0.05
            assert point["reads_per_s"]["value"] == pytest.approx(truth, rel=0.15)
            assert bound == "latency"


def of_a_plan(make_dataset: Any, options: str, accelerator: dict[str, str]) -> ProbeFigures:
    size = {"distribution": "lognormal", "mean": 20_000, "sigma": 1.5}
    _, root = make_dataset(samples=60, sample_size=size, format="files")
    asked = {"name": "probe", "dataset": "demo", "batch_size": 10, "loader": {"workers": 2}}
    workload = build(Workload, asked | {"accelerator": accelerator}, where="oracle")
    url = f"throttled+{root}?{options}"
    return probe(make_plan(workload, url, accelerators=1, repetitions=1, seed=0))


@pytest.mark.parametrize("latency_ms", [20, pytest.param(60, marks=pytest.mark.nightly)])
def test_a_plan_knows_how_many_reads_in_flight_its_demand_needs(
    make_dataset: Any, latency_ms: int
) -> None:
    found = of_a_plan(make_dataset, f"latency={latency_ms}ms", {"step_time": "10ms"})
    assert latency_ms / 1000 <= found.latency_p50_s < 2 * latency_ms / 1000
    # 1000 samples/s, in reads of whole files (rounded up for direct reads): 1000 reads/s or nearly,
    # though half of the files are far smaller than the mean.
    assert found.request_bytes < 0.6 * found.request_bytes_mean
    needed = 1000 * found.latency_mean_s
    assert 0.7 * needed - 1 <= found.reads_in_flight <= needed + 1
    assert found.concurrency == -(-found.reads_in_flight // 2)


def test_no_demand_no_proposal(make_dataset: Any) -> None:
    found = of_a_plan(make_dataset, "latency=1ms", {"kind": "null"})
    assert found.concurrency is None
    assert found.latency_p50_s > 0


# Reference workloads on each kind of place


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("workload", "storage", "verb"),
    [
        ("resnet50-h100", "disk", "check"),
        ("cosmoflow-h100", "nfs", "run"),
        ("retinanet-b200", "s3", "run"),
    ],
)
def test_a_workload_has_an_answer_within_its_budget(
    tmp_path: Path, workload: str, storage: str, verb: str
) -> None:
    """Three rows of the table of budgets; ``python -m tools.budget_table`` makes all of them."""
    (row,) = rows(workload, storage, [verb], tmp_path, budget="90s", data=256 << 20)
    assert (row.code, row.error) == (0, "")
    assert row.answer not in ("", "undecided"), row
    assert row.repetitions >= 1
    assert row.kept(90.0), row

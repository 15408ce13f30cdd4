"""The specs that travel with the package: they load, say where they come from, and demand what the
published rules demand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.runner.plan_figures import describe_plan
from iobench.settings.dataset import load_dataset_spec
from iobench.settings.workload import load_workload

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = sorted(path.stem for path in (ROOT / "workloads").glob("*.yaml"))

REPETITIONS = 6
"""What ``iobench run`` does without ``--repeat``."""

PUBLISHED = {
    # workload: (bytes/s that one accelerator demands, samples/s, required AU), from the MLPerf
    # Storage configurations
    "unet3d-a100": (1.6135e9, 11.006, 0.90),
    "unet3d-h100": (3.1771e9, 21.672, 0.90),
    "unet3d-b200": (6.3346e9, 43.210, 0.90),
    "resnet50-a100": (105.4e6, 919.5, 0.90),
    "resnet50-h100": (204.8e6, 1785.7, 0.90),
    "cosmoflow-a100": (513.3e6, 181.5, 0.70),
    "cosmoflow-h100": (808.1e6, 285.7, 0.70),
    "retinanet-b200": (163.0e6, 504.7, 0.85),
    "retinanet-mi355": (163.0e6, 504.7, 0.85),
    # MLPerf Storage's what-if configurations; bytes are of whole rows
    "dlrm-b200": (24.9e9, 32.77e6, 0.70),
    "dlrm-mi355": (24.9e9, 32.77e6, 0.70),
    "flux-b200": (77e6, 35.56, 0.90),
    "flux-mi355": (77e6, 35.56, 0.90),
    "bert-v100": (0.124e6, 49.59, 0.90),  # DLIO; MLPerf Storage v0.5
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # built-ins are found from anywhere


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_demand_is_the_published_one(name: str) -> None:
    workload = load_workload(name)
    samples_per_s = workload.samples_per_s_per_accelerator
    demand = samples_per_s * load_dataset_spec(workload.dataset).sample_size.mean_bytes
    bytes_per_s, published_samples_per_s, utilization = PUBLISHED[name]
    assert demand == pytest.approx(bytes_per_s, rel=0.01)
    assert samples_per_s == pytest.approx(published_samples_per_s, rel=0.01)
    assert workload.required_accelerator_utilization == utilization


@pytest.mark.parametrize(
    ("name", "total_bytes"),
    [
        ("resnet50", 146.9e9),
        ("unet3d", 24.6e9),
        ("cosmoflow", 1.483e12),
        ("retinanet", 378e9),
        ("imagenet-w21-tar", 645.65e9),
        ("dlrm", 3.68e12),
        ("flux", 2.68e12),
        ("bert", 391_434_110_129),
    ],
)
def test_the_total_is_the_published_one(name: str, total_bytes: float) -> None:
    assert load_dataset_spec(name).nominal_bytes == pytest.approx(total_bytes, rel=0.01)


MAX_FIRST_RUN_S = 300


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_first_run_takes_minutes(name: str) -> None:
    """With the repetitions that ``iobench run`` has by default, over the whole dataset."""
    plan = describe_plan(load_workload(name), None, accelerators=1, repetitions=REPETITIONS)
    if load_workload(name).accelerator.step_time is None:
        assert plan.busy_s is None
        return
    assert 0 < plan.busy_s <= MAX_FIRST_RUN_S


def test_a_specs_identity_leaves_the_prose_out() -> None:
    assert (
        load_dataset_spec("demo", ["description=other"]).identity()
        == load_dataset_spec("demo").identity()
    )
    assert load_dataset_spec("demo", ["seed=2"]).identity() != load_dataset_spec("demo").identity()

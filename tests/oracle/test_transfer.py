"""What is measured with a recording is what is measured with its model: utilization on storage of
known speed, below, at and above the demand.

The model has one thread and the loader waits most of the time, so that they do not compete. A model
that waits stands for one on a device of its own: its steps are recorded before. The steps of one
that computes drift with the speed of a shared machine, so those of its own run are replayed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from iobench.accelerate.recording import block_steps, lag_correlation, record
from iobench.analyse.figures.events import select
from iobench.documents import json_text
from iobench.errors import IobenchError
from iobench.generator import generate
from iobench.measure.timeline import read_events
from iobench.processes import in_own_process
from iobench.runner.experiment import Options, run
from iobench.runner.plan import make_plan
from iobench.schema.accelerator import QUANTILES, StepRecording
from iobench.schema.base import build
from iobench.schema.dataset import DatasetSpec
from iobench.schema.record import EVENTS_FILE
from iobench.schema.workload import AcceleratorSpec, Workload, with_recording
from iobench.storage.local.storage import LocalStorage

BATCH, SIZE, STEPS = 16, 65_536, 160
MAX_DIFFERENCE = 0.02


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("transfer") / "data"
    asked = {"name": "demo", "samples": 400, "sample_size": {"mean": SIZE}, "format": "files"}
    generate(build(DatasetSpec, asked, where="transfer"), LocalStorage(root), workers=0)
    return root


def utilization(
    results: Path, url: str, accelerator: dict[str, object]
) -> tuple[float, list[float]]:
    """AU of a repetition, as MLPerf counts it, and the time of each step in seconds."""
    asked = {
        "name": "transfer",
        "dataset": "demo",
        "batch_size": BATCH,
        "epochs": 100,
        "max_steps": STEPS,
        "cache": "any",
        "accelerator": accelerator,
        "reader": {"crop": 3072, "direct": False, "concurrency": 8},
        "loader": {"workers": 2},
    }
    workload = with_recording(build(Workload, asked, where="transfer"))
    plan = make_plan(workload, url, accelerators=1, repetitions=1, seed=3)
    doc, directory = run(plan, Options(results=results, calibration_s=0, knock_outs=False))
    found = doc.job.repetitions[0].accelerator_utilization
    assert found is not None
    steps = select(read_events(directory / EVENTS_FILE), "measure", 0)["busy_ns"] / 1e9
    return found, steps.tolist()


def model(name: str) -> dict[str, object]:
    return {"kind": "model", "model": f"tests.networks:{name}", "threads": 1}


def replay(path: Path, recording: StepRecording) -> dict[str, object]:
    path.write_text(json_text(recording))
    return {"kind": "recorded", "steps": str(path), "accept_cpu": True}


def throttled(data: Path, of_demand: float, step_s: float) -> str:
    return f"throttled+{data}?bandwidth={of_demand * BATCH * SIZE / step_s:.0f}"


def recorded(name: str) -> StepRecording:
    spec = AcceleratorSpec.model_validate(model(name))
    return in_own_process(
        lambda: record(spec, BATCH, steps=200, seconds=2.0),
        failed=lambda code: IobenchError(f"the recording ended with {code}"),
    )


@pytest.mark.parametrize("of_demand", [0.5, 1.0, 2.0])
def test_a_recording_gives_the_utilization_of_its_model(
    data: Path, tmp_path: Path, of_demand: float
) -> None:
    found = recorded("Waits")
    url = throttled(data, of_demand, found.mean_s)
    real, steps = utilization(tmp_path / "model", url, model("Waits"))
    again, _ = utilization(tmp_path / "recorded", url, replay(tmp_path / "steps.json", found))
    print(f"{of_demand} x: step {found.mean_s:.4f} s, then {np.mean(steps):.4f} s; {real} {again}")
    assert again == pytest.approx(real, abs=MAX_DIFFERENCE)


@pytest.mark.parametrize("of_demand", [0.5, 1.0, 2.0])
def test_the_steps_of_a_run_give_its_utilization_again(
    data: Path, tmp_path: Path, of_demand: float
) -> None:
    url = throttled(data, of_demand, recorded("Computes").mean_s)
    real, steps = utilization(tmp_path / "model", url, model("Computes"))
    found = StepRecording(
        model="Computes",
        batch_size=BATCH,
        device_kind="cpu",
        mean_s=float(np.mean(steps)),
        quantiles_s=np.quantile(steps, np.linspace(0, 1, QUANTILES)).tolist(),
        block_steps=block_steps(lag_correlation(steps)),
        steps_s=steps,
    )
    again, _ = utilization(tmp_path / "recorded", url, replay(tmp_path / "steps.json", found))
    print(f"{of_demand} x: step {found.mean_s:.4f} s; {real} {again}")
    assert again == pytest.approx(real, abs=MAX_DIFFERENCE)

"""What is measured with a recording is what is measured with its model: utilization on storage of
known speed, below, at and above the demand.

The model has one thread and the loader waits most of the time, so that they do not compete. A model
that waits stands for one on a device of its own: its steps are recorded before. The steps of one
that computes drift with the speed of a shared machine, so those of its own run are replayed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from iobench.accelerate.base import RankPlace, Samples
from iobench.accelerate.model import ModelAccelerator
from iobench.accelerate.models import networks
from iobench.accelerate.recording import block_steps, lag_correlation, record
from iobench.base.documents import json_text
from iobench.base.errors import IobenchError
from iobench.base.processes import in_own_process
from iobench.host.timeline import read_events
from iobench.judge.figures.events import select
from iobench.record.run import EVENTS_FILE
from iobench.settings.accelerator import QUANTILES, StepRecording
from iobench.settings.workload import AcceleratorSpec
from tests.oracle.plants import ran

BATCH, SIZE, STEPS = 16, 65_536, 160
MAX_DIFFERENCE = 0.02


@pytest.fixture(scope="module")
def data(make_dataset: Any) -> Path:
    path: Path = make_dataset(samples=400, sample_size={"mean": SIZE}, format="files")[1]
    return path


def utilization(
    results: Path, url: str, accelerator: dict[str, object]
) -> tuple[float, list[float]]:
    """AU of a repetition, as MLPerf counts it, and the time of each step in seconds."""
    doc, directory = ran(
        results,
        url,
        seed=3,
        batch_size=BATCH,
        epochs=100,
        max_steps=STEPS,
        cache="any",
        accelerator=accelerator,
        reader={"crop": 3072, "direct": False, "concurrency": 8},
        loader={"workers": 2},
    )
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


@pytest.mark.parametrize(
    ("model", "samples", "rate", "steps"),
    [
        ("resnet50", 2, 1e-3, 6),
        ("vit-b16", 1, 1e-3, 6),
        ("gpt2", 1, 1e-2, 4),
        ("unet3d", 1, 1e-1, 4),
    ],
)
def test_a_large_model_learns(
    model: str, samples: int, rate: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss falls: GPT-2 in windows of 64 tokens, and the U-Net on 64 voxels a side, for which a
    CPU is enough. ``tests/unit/test_training.py`` has the small models.
    """
    monkeypatch.setattr(networks, "_WINDOW", 64)
    monkeypatch.setattr(networks.GPT2, "sample_bytes", 2 * 64)
    monkeypatch.setattr(networks, "_SIDE", 64)
    monkeypatch.setattr(networks.UNet3D, "sample_bytes", 64**3)
    spec = {"kind": "model", "model": model, "warm_up": "1ms", "learning_rate": rate}
    accelerator = ModelAccelerator(AcceleratorSpec.model_validate(spec))
    accelerator.prepare(RankPlace(0, 1, samples, 1))
    size = accelerator.sample_bytes
    drawn = np.random.default_rng(0).integers(0, 256, samples * size, dtype=np.uint8)
    offsets = np.arange(samples, dtype=np.int64) * size
    batch = Samples(torch.from_numpy(drawn), offsets, np.full(samples, size, np.int64))
    for _ in range(steps):
        accelerator.step(batch, 0)
    facts = accelerator.facts()
    assert facts.first_loss is not None
    assert facts.last_loss < 0.9 * facts.first_loss

"""A model that is trained on delivered batches, and a replay of its steps, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iobench.cli.main import main
from iobench.schema.record import load_training


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("train") / "data"
    asked = ["generate", "cosmoflow", "--to", str(place), "--samples", "40", "-q"]
    assert main([*asked, "--set", "sample_size.mean=8192", "--set", "sample_size.stdev=0"]) == 0
    return place


def run_of(results: Path) -> Path:
    return next(path.parent for path in results.rglob("run.json"))


def test_training_is_a_run_with_a_model(data: Path, tmp_path: Path) -> None:
    asked = ["train", "tests.networks:Tiny", "--data", str(data), "--batch-size", "4"]
    asked += ["--accelerators", "2", "-n", "1", "--no-knockouts", "--calibration", "200ms", "-q"]
    asked += ["--set", "max_steps=12", "--set", "accelerator.threads=1", "--set", "cache=any"]
    assert main([*asked, "--set", "loader.workers=1", "--results", str(tmp_path)]) in (0, 3)
    doc = load_training(run_of(tmp_path))
    trained, repetition = doc.job.trained, doc.job.repetitions[0]
    assert trained is not None
    assert trained.model == "tests.networks:Tiny"
    assert trained.threads == 1
    assert trained.first_loss is not None
    assert repetition.steps == 24
    assert repetition.busy_s is not None
    assert repetition.busy_s > 0
    assert doc.job.ceilings["accelerator"].samples_per_s
    assert doc.job.verdict is not None
    assert doc.job.verdict.contention is not None
    assert doc.job.workload.reader.decode


def test_a_recording_is_replayed_without_the_model(data: Path, tmp_path: Path) -> None:
    steps = tmp_path / "steps.json"
    asked = ["record", "tests.networks:Tiny", "--batch-size", "4", "--to", str(steps)]
    assert main([*asked, "--steps", "20", "--time", "0s", "--set", "accelerator.threads=1"]) == 0
    asked = ["run", "cosmoflow-h100", "--data", str(data), "-n", "1", "--no-knockouts", "-q"]
    asked += ["--calibration", "0s", "--set", "accelerator.kind=recorded", "--set", "cache=any"]
    asked += ["--set", f"accelerator.steps={steps}", "--set", "batch_size=4"]
    place = ["--results", str(tmp_path / "runs")]
    assert main([*asked, *place]) == 2  # of a CPU
    assert main([*asked, *place, "--set", "accelerator.accept_cpu=true"]) in (0, 3)
    doc = load_training(run_of(tmp_path / "runs"))
    recorded = json.loads(steps.read_text())
    assert doc.job.workload.accelerator.step_time == recorded["mean_s"]
    assert doc.job.trained is None
    assert doc.job.repetitions[0].steps == 5 * 10

"""A model that is trained on delivered batches, and a replay of its steps, as a user runs them."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from iobench.accelerate import recording
from iobench.cli import train
from iobench.cli.main import main
from iobench.host.nvml import GpuWatch
from iobench.record.metrics import BY_NAME
from iobench.record.run import load_training
from iobench.settings.workload import Workload
from tests.nvml import FakeGpu, FakeNvml
from tests.processes import completed

Asked = Callable[..., Workload]


@pytest.fixture
def asked(data: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """``asked(settings..., words="")``: the workload that ``train`` would measure."""
    found: list[Workload] = []
    monkeypatch.setattr(train, "measure", lambda workload, args: found.append(workload) or 0)

    def call(*settings: str, words: str = "") -> Workload:
        chosen = " ".join(f"--set {each}" for each in settings)
        assert main(f"train tests.networks:Tiny --data {data} -q {chosen} {words}".split()) == 0
        return found[-1]

    return call


def test_the_allocator_is_loaded_before_the_model_is_tried(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(train, "use_allocator", lambda name, command: order.append(name))
    monkeypatch.setattr(recording, "mean_step", lambda *args, **named: order.append("try") or 1.0)
    asked("accelerator.allocator=jemalloc")
    assert order == ["jemalloc", "try"]


def test_a_compiled_model_gets_whole_batches_only(asked: Asked) -> None:
    """A batch of another size would be compiled in the middle of an epoch."""
    compiled = ("max_steps=5", "accelerator.compile=true")
    assert asked(*compiled).reader.tail == "drop"
    assert asked(*compiled, "reader.tail=keep").reader.tail == "keep"
    assert asked("max_steps=5").reader.tail == "keep"


def test_a_warm_up_takes_a_part_of_the_budget(asked: Asked) -> None:
    """Each part that trains begins with one: three of 20 s are a minute."""
    budget = "--budget 60s"
    assert asked(words=budget).accelerator.warm_up == 4.0
    assert asked("accelerator.warm_up=9s", words=budget).accelerator.warm_up == 9.0
    assert asked("accelerator.warm_up=0s", words=budget).accelerator.warm_up == 0.0


def generated(place: Path, samples: int) -> Path:
    asked = ["generate", "cosmoflow", "--to", str(place), "--samples", str(samples), "-q"]
    assert main([*asked, "--set", "sample_size.mean=8192", "--set", "sample_size.stdev=0"]) == 0
    return place


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated(tmp_path_factory.mktemp("train") / "data", 40)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks that take ten samples in a batch have 3 and 2 batches of it."""
    return generated(tmp_path_factory.mktemp("train") / "odd", 41)


def run_of(results: Path) -> Path:
    return next(path.parent for path in results.rglob("run.json"))


def test_training_is_a_run_with_a_model(data: Path, tmp_path: Path) -> None:
    asked = f"train tests.networks:Tiny --data {data} --results {tmp_path} --batch-size 4"
    asked += " --accelerators 2 -n 1 --no-ablations --calibration 200ms --set max_steps=12"
    asked += " --set accelerator.threads=1 --set cache=any --set loader.workers=1"
    assert main([*asked.split(), "-q", "--set", "accelerator.peak_flops=1e12"]) in (0, 3)
    doc = load_training(run_of(tmp_path))
    trained, repetition = doc.job.trained, doc.job.repetitions[0]
    assert trained.model == "tests.networks:Tiny"
    assert trained.threads == 1
    assert trained.first_loss is not None
    assert repetition.steps == 24
    assert repetition.busy_s > 0
    assert doc.job.ceilings["accelerator"].samples_per_s
    assert doc.job.verdict.contention is not None
    assert doc.job.workload.reader.decode
    # Two ranks are two devices of a stated peak; what a GPU would count is not there, and why.
    work = doc.job.work
    assert work.flops_per_sample
    assert repetition.mfu == pytest.approx(
        work.flops_per_sample * repetition.samples_per_s / 2e12, rel=1e-6
    )
    assert doc.metrics["mfu"].n == 1
    assert repetition.device_utilization_nvml is None
    assert repetition.not_measured["device_utilization_nvml"]
    told = " ".join(completed("report", run_of(tmp_path), "--details").stdout.split())
    _, own = told.split("GPU counters and model FLOPs")
    assert BY_NAME["mfu"].label in own
    assert "1 TFLOP/s" in own


def together(data: Path, results: Path, model: str, *settings: str) -> int:
    """Two ranks that train one model."""
    asked = ["train", f"tests.networks:{model}", "--data", str(data), "--batch-size", "10", "-q"]
    asked += ["--accelerators", "2", "-n", "1", "--no-ablations", "--results", str(results)]
    for one in ("gradient_sync=ddp", "threads=1", "staged=1", "device=cpu"):
        asked += ["--set", f"accelerator.{one}"]
    for one in ("cache=any", "loader.workers=1", "max_steps=1000", *settings):
        asked += ["--set", one]
    return main([*asked, "--calibration", "200ms" if model == "Tiny" else "0s"])


def test_ranks_train_one_model_together(odd: Path, tmp_path: Path) -> None:
    assert together(odd, tmp_path, "Tiny", "epochs=1") in (0, 3)
    doc = load_training(run_of(tmp_path))
    trained, repetition = doc.job.trained, doc.job.repetitions[0]
    assert trained.gradient_bytes == 4 * 98_600
    assert trained.exchange_s > 0
    assert repetition.complete
    assert repetition.samples == 41
    assert repetition.steps == 5
    assert doc.job.ceilings["accelerator"].samples_per_s
    assert "gradients" in doc.job.ceilings["accelerator"].how


@pytest.mark.parametrize(
    ("model", "said"),
    [
        pytest.param("FailsOnRankOne", "planted", marks=pytest.mark.nightly),
        ("DiesOnRankOne", "rank 1 died"),
    ],
)
@pytest.mark.usefixtures("nothing_left")
def test_a_rank_that_fails_ends_those_that_wait_for_its_gradients(
    model: str, said: str, odd: Path, tmp_path: Path
) -> None:
    with redirect_stderr(io.StringIO()) as told:
        assert together(odd, tmp_path, model, "epochs=1000") == 1
    lines = told.getvalue().strip().splitlines()
    assert said in lines[-1]
    assert "Traceback" not in "".join(lines)


def test_a_recording_is_replayed_without_the_model(data: Path, tmp_path: Path) -> None:
    steps = tmp_path / "steps.json"
    asked = ["train", "tests.networks:Tiny", "--set", "batch_size=4", "--record", str(steps)]
    assert main([*asked, "--steps", "20", "--time", "0s", "--set", "accelerator.threads=1"]) == 0
    asked = ["run", "cosmoflow-h100", "--data", str(data), "-n", "1", "--no-ablations", "-q"]
    asked += ["--calibration", "0s", "--set", "accelerator.kind=recorded", "--set", "cache=any"]
    asked += ["--set", f"accelerator.steps={steps}", "--set", "batch_size=4"]
    place = ["--results", str(tmp_path / "runs")]
    assert main([*asked, *place]) == 2  # of a CPU
    asked += ["--set", "accelerator.staged=1", "--set", "accelerator.device=cpu"]
    assert main([*asked, *place, "--set", "accelerator.accept_cpu=true"]) in (0, 3)
    doc = load_training(run_of(tmp_path / "runs"))
    recorded = json.loads(steps.read_text())
    assert doc.job.workload.accelerator.step_time == recorded["mean_s"]
    assert doc.job.trained is None
    assert doc.job.repetitions[0].steps == 5 * 10
    assert doc.job.repetitions[0].samples == 5 * 40
    assert doc.job.workload.accelerator.staged == 1


def test_what_gpus_count_is_shown_apart_from_utilization(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two GPUs, by a double of their driver: what they say is recorded and in each report."""
    gpus = [FakeGpu("GPU-1", busy=100, watts=600), FakeGpu("GPU-2", busy=60, watts=400)]
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(gpus, time.monotonic))
    monkeypatch.setattr(
        "iobench.runner.repetition.GpuWatch", lambda device, ranks: GpuWatch("cuda", 2, environ={})
    )
    asked = f"run cosmoflow-h100 --data {data} --results {tmp_path} -n 1 --no-ablations --quiet"
    asked += " --calibration 0s --set cache=any --set batch_size=4 --set epochs=9"
    asked += " --set accelerator.step_time=60ms --set max_steps=25 --json"
    assert main(asked.split()) in (0, 3)
    repetition = load_training(run_of(tmp_path)).job.repetitions[0]
    assert [each.uuid for each in repetition.devices] == ["GPU-1", "GPU-2"]
    assert repetition.device_utilization_nvml == pytest.approx(0.8)
    assert repetition.sm_utilization == pytest.approx(0.4)
    assert repetition.device_power_w == pytest.approx(500, rel=0.01)
    assert repetition.sm_clock_mhz == pytest.approx(1980)
    assert repetition.mfu is None
    assert set(repetition.not_measured) >= {"mfu"}
    for medium in ("text", "html"):
        shown = completed("report", run_of(tmp_path), "--details", "--format", medium)
        assert shown.returncode == 0
        text = shown.stdout
        assert "GPU counters and model FLOPs" in text
        assert "1,980 MHz" in text
        assert "SM activity" in text
    found = json.loads((run_of(tmp_path) / "run.json").read_text())
    assert found["metrics"]["sm_utilization"]["median"] == pytest.approx(0.4)

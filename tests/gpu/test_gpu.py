"""Everything that uses a CUDA device, on a real one: ``make test-gpu``.

Each command runs in a process of its own, as a user starts it, since a process that has opened CUDA
can't fork ranks that use it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from iobench.accelerate.base import Samples
from iobench.load.slots import DeviceFeed, SlotRing
from iobench.record.run import load_run

ROOT = Path(__file__).parents[2]
IMAGE = 224 * 224 * 3


def iobench(command: str, code: tuple[int, ...] = (0, 3)) -> subprocess.CompletedProcess[str]:
    """``iobench COMMAND``, which must end with one of ``code`` and no traceback."""
    found = subprocess.run(
        [sys.executable, "-m", "iobench", *command.split()],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        check=False,
    )
    assert found.returncode in code, found
    assert "Traceback" not in found.stderr, found.stderr
    return found


def train(data: object, results: Path, command: str, **settings: object) -> Any:
    """A short training on the GPU, and its record."""
    asked = f"train {command} --device cuda --data {data} --results {results} -q"
    asked += " --set cache=any --set accelerator.warm_up=3s"
    for key, value in settings.items():
        asked += f" --set {key}={value}"
    iobench(asked)
    return record_in(results)


def record_in(results: Path) -> Any:
    return load_run(next(path.parent for path in results.rglob("run.json")))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,024 raw images of 150,528 bytes in files of their own."""
    path = tmp_path_factory.mktemp("gpu") / "images"
    sizes = f"--set sample_size.distribution=constant --set sample_size.mean={IMAGE}"
    iobench(f"generate demo --to {path} --samples 1024 -q {sizes}")
    return path


ONCE = "-n 1 --no-ablations --calibration 300ms"
QUICK = f"{ONCE} --set max_steps=24"


@pytest.mark.parametrize("batches", [1, 2])
def test_a_batch_is_on_the_device_byte_for_byte(batches: int) -> None:
    ring = SlotRing(3, 1 << 20, shared=True)
    feed = DeviceFeed(torch.device("cuda"), batches=batches)
    feed.attach(ring)
    assert feed.pinned
    made = np.random.default_rng(1)
    before: list[tuple[torch.Tensor, np.ndarray[Any, Any]]] = []
    for number in range(6):
        size = 1000 * (number + 1)
        bytes_ = made.integers(0, 256, 10 * size, dtype=np.uint8)
        view = np.frombuffer(ring.view(number % 3), dtype=np.uint8)
        view[: len(bytes_)] = bytes_
        offsets = torch.arange(10) * size
        batch = Samples(torch.from_numpy(view), offsets, torch.full((10,), size))
        there, took_ns = feed.copy(batch)
        assert took_ns > 0
        assert there.data.device.type == "cuda"
        before = [*before, (there.data, bytes_)][-batches:]
        for held, was in before:
            assert np.array_equal(held.cpu().numpy(), was)
    feed.close()


@pytest.mark.parametrize("staged", [0, 1])
def test_an_emulated_accelerator_gets_its_batches_on_the_device(
    staged: int, images: Path, tmp_path: Path
) -> None:
    settings = f"--set cache=any --set accelerator.device=cuda --set accelerator.staged={staged}"
    iobench(f"run demo --data {images} -q --results {tmp_path} {ONCE} {settings} --set epochs=1")
    doc = record_in(tmp_path)
    assert doc.job.repetitions[0].samples == 1024
    assert doc.job.loader.pinned


def test_a_training_tells_what_the_gpu_counted(images: Path, tmp_path: Path) -> None:
    asked = "resnet50 -n 1 --no-ablations --batch-size 64 --precision bfloat16 --calibration 1s"
    doc = train(images, tmp_path, f"{asked} --time 8s")
    trained, repetition = doc.job.trained, doc.job.repetitions[0]
    assert torch.cuda.get_device_name() == trained.device
    assert trained.first_loss is not None
    (device,) = repetition.devices
    assert device.name == trained.device
    assert device.not_measured == {}
    assert 0 < repetition.sm_utilization <= 1
    assert 0 < repetition.device_utilization_nvml <= 1
    assert 50 < repetition.device_power_w < 1000
    assert 0 < repetition.mfu < 1
    assert doc.job.ceilings["accelerator"].samples_per_s > repetition.samples_per_s * 0.9


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "float16"},
        {"precision": "bfloat16", "memory_format": "channels_last"},
        {"compile": "true", "precision": "bfloat16"},
        {"staged": "1"},
        {"optimizer": "adamw"},
        {"gradient_sync": "ddp"},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_each_setting_of_a_model_trains(
    settings: dict[str, str], images: Path, tmp_path: Path
) -> None:
    named = {f"accelerator.{key}": value for key, value in settings.items()}
    doc = train(images, tmp_path, f"resnet18 {QUICK}", **named)
    assert doc.job.repetitions[0].steps == 24
    assert np.isfinite(doc.job.trained.last_loss)


@pytest.mark.parametrize("model", ["vit-s16", "vit-b16", "resnet50"])
def test_each_network_trains(model: str, images: Path, tmp_path: Path) -> None:
    doc = train(images, tmp_path, f"{model} {QUICK}")
    assert doc.job.repetitions[0].steps == 24


@pytest.mark.parametrize(("model", "batch"), [("unet3d", 1), ("gpt2", 4)])
def test_a_network_without_images_is_recorded(model: str, batch: int, tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    asked = f"train {model} --device cuda --batch-size {batch} --record {file}"
    iobench(f"{asked} --steps 20 --time 2s -q")
    assert json.loads(file.read_text())["mean_s"] > 0


def test_ranks_share_a_gpu(images: Path, tmp_path: Path) -> None:
    doc = train(images, tmp_path, f"resnet18 {QUICK} --accelerators 2")
    assert doc.job.repetitions[0].steps == 48
    assert len(doc.job.repetitions[0].devices) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--device cuda:9", "'cuda:9' is not available on this host, which has 1"),
        ("--device cuda --batch-size 8192", "memory of cuda:0 is not enough"),
        (
            "--device cuda --accelerators 2 --set accelerator.gradient_sync=ddp",
            "needs a GPU for each of 2 ranks, but there is 1",
        ),
    ],
)
def test_what_the_device_can_not_do_is_one_line(
    words: str, said: str, images: Path, tmp_path: Path
) -> None:
    asked = f"train resnet50 --data {images} --results {tmp_path} {QUICK} -q"
    found = iobench(f"{asked} {words}", code=(1, 2))
    lines = found.stderr.strip().splitlines()
    assert said in found.stderr
    assert len(lines) <= 3, lines


def test_a_recording_has_its_device_and_is_replayed(images: Path, tmp_path: Path) -> None:
    """A replay is as busy as the model on storage that gives half of what the model takes."""
    file = tmp_path / "steps.json"
    asked = "resnet50 --batch-size 64 --precision bfloat16"
    iobench(f"train {asked} --device cuda --record {file} -q --steps 100 --time 8s")
    steps = json.loads(file.read_text())
    assert steps["device_kind"] == "cuda"
    assert steps["where"]["driver"]
    assert steps["where"]["power_w"] > 50
    assert steps["where"]["clock_mhz"] > 300
    assert 0 < steps["mfu"] < 1
    assert not steps["not_measured"]
    half = round(0.5 * 64 * IMAGE / steps["mean_s"])
    slow = f"throttled+{images}?bandwidth={half}"
    # Few batches are fetched ahead, so that the wait for storage begins at once.
    common = "-n 1 --no-ablations --calibration 0s --set max_steps=200 --set loader.workers=2"
    real = train(slow, tmp_path / "real", f"{asked} {common}")
    replay = f"--set accelerator.kind=recorded --set accelerator.steps={file}"
    replay += " --set batch_size=64 --set dataset=demo --set cache=any"
    to = tmp_path / "replayed"
    iobench(f"run resnet50-h100 --data {slow} -q --results {to} {common} {replay}")
    replayed = record_in(to)
    busy = [each.metrics["accelerator_utilization_sustained"].median for each in (real, replayed)]
    assert busy[0] < 0.6  # storage gives half, and what was fetched ahead
    assert busy[1] == pytest.approx(busy[0], abs=0.05)


@pytest.fixture(scope="module")
def vit_bytes_per_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """What a ViT-B/16 takes in batches of 64, by a recording of its steps."""
    file = tmp_path_factory.mktemp("gpu") / "steps.json"
    asked = "train vit-b16 --device cuda --batch-size 64 --steps 30 --time 3s -q"
    iobench(f"{asked} --record {file}")
    return float(64 * IMAGE / json.loads(file.read_text())["mean_s"])


@pytest.mark.parametrize(("share", "cause"), [(0.3, "storage"), (20, "accelerator")])
def test_the_bottleneck_of_a_training_is_the_planted_one(
    share: float, cause: str, vit_bytes_per_s: float, images: Path, tmp_path: Path
) -> None:
    slow = f"throttled+{images}?bandwidth={round(share * vit_bytes_per_s)}"
    doc = train(slow, tmp_path, "vit-b16 -n 2 --batch-size 64 --calibration 1s --time 4s")
    assert doc.job.verdict.bottleneck == cause


LOADERS = ("direct", "mmap", "prefetch", "eager", "fastsafetensors", "runai")


def test_weights_are_loaded_to_the_device(tmp_path: Path) -> None:
    """Each tensor is compared there with what the files hold, by ``load`` itself."""
    weights = tmp_path / "weights"
    iobench(f"generate qwen3-0.6b-weights --to {weights} -q")
    asked = f"load {weights} --loader {','.join(LOADERS)} --device cuda --repeat 2 -q"
    iobench(f"{asked} --results {tmp_path / 'results'}")
    doc = record_in(tmp_path / "results")
    assert {trial.loader for trial in doc.job.trials} >= set(LOADERS)
    assert "device" in {trial.left_out for trial in doc.job.trials}


SCRIPT = """
import torch, iobench
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self): return 640
    def __getitem__(self, i): return torch.full((1000,), i, dtype=torch.float32)

if __name__ == "__main__":
    model = torch.nn.Linear(1000, 4000).cuda()
    loader = DataLoader(Data(), batch_size=32, num_workers=2, pin_memory=True)
    with iobench.watch(loader, name="mine", synchronize=True) as batches:
        for epoch in range(2):
            for batch in batches:
                for _ in range(20):
                    model(batch.cuda(non_blocking=True)).sum().backward()
    print("done")
"""


def test_a_training_of_the_users_own_is_watched(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    found = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False,
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "done" in found.stdout


def test_batches_that_torch_pins_are_trained_on(images: Path, tmp_path: Path) -> None:
    settings = {"loader.pin_memory": "true", "loader.transport": "tensor"}
    doc = train(images, tmp_path, f"resnet18 {QUICK}", **settings)
    assert doc.job.repetitions[0].steps == 24


def test_the_doctor_sees_the_gpu() -> None:
    found = iobench("doctor", code=(0, 1, 3))
    assert torch.cuda.get_device_name() in found.stdout

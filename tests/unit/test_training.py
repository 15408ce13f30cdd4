"""Models that are trained, recordings of their steps, and what is told where they can't be had."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from iobench.accelerate.base import Place, Samples
from iobench.accelerate.bind import loaded_allocator, parse_cpus, rank_cpus, use_allocator
from iobench.accelerate.model import ModelAccelerator, open_model
from iobench.accelerate.recorded import RecordedAccelerator
from iobench.accelerate.recording import block_steps, lag_correlation, record
from iobench.accelerate.warm import change_point, settled
from iobench.cli.main import main
from iobench.errors import IobenchError, UnknownNameError, UsageError
from iobench.registry import NETWORKS
from iobench.schema.accelerator import StepRecording, read_recording
from iobench.schema.workload import AcceleratorSpec, load_workload

# torchvision, timm and OpenAI's release give the same numbers; UNet3D as in mlcommons/training.
PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "vit-s16": 22_050_664,
    "vit-b16": 86_567_656,
    "unet3d": 31_190_243,
    "gpt2": 124_439_808,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_each_model_has_its_known_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = open_model(name)
        loss = model(torch.zeros(2, model.sample_bytes, dtype=torch.uint8))
    assert sum(each.numel() for each in model.parameters()) == PARAMETERS[name]
    assert loss.shape == ()


def test_each_model_is_tested() -> None:
    assert set(NETWORKS.entries()) == set(PARAMETERS)


def spec(model: str = "tests.networks:Tiny", **settings: object) -> AcceleratorSpec:
    asked = {"kind": "model", "model": model, "threads": 1, **settings}
    return AcceleratorSpec.model_validate(asked)


def prepared(batch_size: int = 8, **settings: object) -> ModelAccelerator:
    accelerator = ModelAccelerator(spec(**settings))
    accelerator.prepare(Place(0, 1, batch_size, 1))
    return accelerator


def batch(samples: int = 8, size: int = 4096, seed: int = 0) -> Samples:
    chance = np.random.default_rng(seed)
    data = torch.from_numpy(chance.integers(0, 256, samples * size, dtype=np.uint8))
    offsets = np.arange(samples, dtype=np.int64) * size
    return Samples(data, offsets, np.full(samples, size, dtype=np.int64))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_training_learns_from_the_batches(optimizer: str) -> None:
    accelerator = prepared(optimizer=optimizer)
    losses = []
    for _ in range(60):
        assert accelerator.step(batch(), 0).busy_ns > 0
        losses.append(accelerator.facts().last_loss)
    assert losses[0] == accelerator.facts().first_loss
    assert losses[-1] is not None
    assert losses[0] is not None
    assert losses[-1] < 0.7 * losses[0]


def test_the_facts_say_what_was_trained() -> None:
    facts = prepared().facts()
    assert facts.parameters == 3072 * 32 + 32 + 32 * 8 + 8
    assert facts.threads == torch.get_num_threads() == 1
    assert facts.allocator == loaded_allocator()
    assert facts.warm_up_steps is not None
    assert facts.warm_up_steps >= 3
    assert facts.first_loss is None


def test_a_sample_that_is_too_small_is_refused() -> None:
    with pytest.raises(UsageError, match="3072"):
        prepared().step(batch(size=3000), 0)


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("resnet19", UnknownNameError),
        ("tests.networks:Missing", UsageError),
        ("no.such.module:Model", UsageError),
        ("tests.networks:fails", UsageError),
        ("tests.networks:no_model", UsageError),
        ("tests.networks:Broken", IobenchError),
        ("tests.networks:NotANumber", IobenchError),
    ],
)
def test_a_model_that_cannot_be_trained_gets_one_line(
    model: str, error: type[IobenchError]
) -> None:
    with pytest.raises(error) as found:
        prepared(model=model)
    assert found.value.remedy or error is UnknownNameError
    assert "\n" not in str(found.value.what)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
def test_a_missing_gpu_is_told() -> None:
    with pytest.raises(UsageError, match="cuda"):
        prepared(device="cuda")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_precision_that_the_cpu_lacks_is_refused(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    with pytest.raises(UsageError, match=precision):
        prepared(precision=precision)
    monkeypatch.setattr(
        torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True, "avx512_fp16": True}
    )
    assert prepared(precision=precision).step(batch(), 0).busy_ns > 0


@pytest.mark.parametrize("missing", ["model", "steps"])
def test_a_kind_without_what_it_needs_is_refused(missing: str) -> None:
    kind = {"model": "model", "steps": "recorded"}[missing]
    with pytest.raises(ValueError, match=missing):
        AcceleratorSpec.model_validate({"kind": kind})


# Warm-up


def test_a_warm_up_ends_after_the_change() -> None:
    slow, fast = [9.0, 8.5, 4.0], [1.0, 1.01, 0.99, 1.0, 1.02]
    assert change_point([*slow, *fast]) in (2, 3)
    assert not settled(slow)
    assert not settled([*slow, *fast[:3]])
    assert settled([*slow, *fast])
    assert settled([1.0] * 5)
    assert not settled([1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0])


@given(st.lists(st.floats(0, 1e4), max_size=40))
def test_a_change_point_is_a_position(times: list[float]) -> None:
    assert 0 <= change_point(times) <= max(0, len(times) - 1)


# Recordings


def recording(steps_s: list[float]) -> dict[str, object]:
    return {
        "schema_version": "1",
        "model": "resnet50",
        "batch_size": 400,
        "device_kind": "cuda",
        "mean_s": float(np.mean(steps_s)),
        "quantiles_s": np.quantile(steps_s, np.linspace(0, 1, 101)).tolist(),
        "block_steps": block_steps(lag_correlation(steps_s)),
        "steps_s": steps_s,
    }


def written(folder: Path, times: list[float], **changed: object) -> Path:
    path = folder / "steps.json"
    path.write_text(json.dumps({**recording(times), **changed}))
    return path


def replayed(path: Path, steps: int, rank: int = 0, seed: int = 0) -> list[float]:
    accelerator = RecordedAccelerator(
        AcceleratorSpec.model_validate({"kind": "recorded", "steps": str(path)})
    )
    accelerator.prepare(Place(rank, 4, 400, seed))
    return [next(accelerator._drawn) / 1e9 for _ in range(steps)]


def slow_phases(number: int = 1200) -> list[float]:
    """Step times that depend on the one before: an autoregressive process of order one."""
    chance, level, times = np.random.default_rng(7), 0.0, []
    for _ in range(number):
        level = 0.9 * level + chance.normal(0, 0.02)
        times.append(0.1 * float(np.exp(level)))
    return times


def test_a_replay_has_the_recorded_mean_and_distribution(tmp_path: Path) -> None:
    times = slow_phases()
    path = written(tmp_path, times)
    again = np.sort(replayed(path, 2400))
    assert abs(again.mean() / np.mean(times) - 1) < 0.005
    levels = np.searchsorted(np.sort(times), again, side="right") / len(times)
    assert np.abs(levels - np.arange(1, 2401) / 2400).max() < 0.05  # Kolmogorov and Smirnov


def test_a_replay_keeps_slow_phases_together(tmp_path: Path) -> None:
    times = slow_phases()
    path = written(tmp_path, times)
    assert read_recording(path).block_steps > 5
    before, after = lag_correlation(times)[0], lag_correlation(replayed(path, 1200))[0]
    assert after > 0.8 * before


def test_ranks_and_repetitions_draw_different_orders(tmp_path: Path) -> None:
    path = written(tmp_path, slow_phases())
    one = replayed(path, 200)
    assert one == replayed(path, 200)
    assert one != replayed(path, 200, rank=1)
    assert one != replayed(path, 200, seed=1)


def test_independent_steps_are_replayed_one_by_one() -> None:
    times = np.random.default_rng(3).normal(1, 0.1, 2000).tolist()
    assert block_steps(lag_correlation(times)) == 1
    assert lag_correlation([1.0] * 100) == []


def test_a_recorded_accelerator_has_the_mean_as_its_step_time(tmp_path: Path) -> None:
    path = written(tmp_path, [0.1, 0.2, 0.3])
    asked = ["accelerator.kind=recorded", f"accelerator.steps={path}"]
    workload = load_workload("resnet50-h100", asked)
    assert workload.accelerator.step_time == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("changed", "asked", "refused"),
    [
        ({"batch_size": 64}, [], "batches of 64"),
        ({"device_kind": "cpu"}, [], "CPU"),
        ({"device_kind": "cpu"}, ["accelerator.accept_cpu=true"], ""),
        ({"batch_size": 64}, ["batch_size=64"], ""),
        ({"steps_s": [0.1, 0.0]}, [], "steps_s"),
        ({"schema_version": "9"}, [], "9"),
    ],
)
def test_a_recording_that_does_not_fit_is_refused(
    tmp_path: Path, changed: dict[str, object], asked: list[str], refused: str
) -> None:
    path = written(tmp_path, [0.1, 0.2, 0.3], **changed)
    settings = ["accelerator.kind=recorded", f"accelerator.steps={path}", *asked]
    if not refused:
        assert load_workload("resnet50-h100", settings).accelerator.step_time
        return
    with pytest.raises(IobenchError, match=refused):
        load_workload("resnet50-h100", settings)


def test_record_writes_what_it_measured(tmp_path: Path) -> None:
    ticks: list[int] = []
    found = record(spec(), 4, steps=12, seconds=0, tick=ticks.append)
    assert len(found.steps_s) == 12 == ticks[-1]
    assert found.mean_s == pytest.approx(np.mean(found.steps_s))
    # Two layers, forward and backward: 2 FLOP for each weight, and no gradient of the input.
    assert found.flops_per_sample == 2 * (2 * 3072 * 32) + 3 * (2 * 32 * 8)
    assert StepRecording.model_validate(found.model_dump()) == found


# Verbs


def test_record_does_not_replace_a_file(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    path.write_text("mine")
    assert main(["record", "tests.networks:Tiny", "--to", str(path)]) == 2
    assert path.read_text() == "mine"
    assert main(["record", "tests.networks:Tiny", "--to", str(tmp_path / "no" / "s.json")]) == 2


# Cores and memory


def test_cpus_of_ranks() -> None:
    assert parse_cpus("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert rank_cpus("none", 0, 2) is None
    allowed = [0, 1, 2, 3, 8, 9, 10]
    assert rank_cpus("cores", 0, 3, allowed=allowed) == {0, 1}
    assert rank_cpus("cores", 2, 3, allowed=allowed) == {8, 9}
    with pytest.raises(UsageError):
        rank_cpus("cores", 0, 8, allowed=allowed)


def test_an_allocator_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    use_allocator("system", [])
    with pytest.raises(UsageError) as found:
        use_allocator("jemalloc", [])
    assert "libjemalloc2" in found.value.remedy

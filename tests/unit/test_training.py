"""Models that are trained, recordings of their steps, and what is told where they can't be had."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from iobench.accelerate.base import RankPlace, Samples, device_of_rank
from iobench.accelerate.bind import parse_cpus, rank_cpus
from iobench.accelerate.emulated import RecordedAccelerator
from iobench.accelerate.exchange import GradientExchange
from iobench.accelerate.model import ModelAccelerator, change_point, open_model, settled
from iobench.accelerate.models import NETWORKS
from iobench.accelerate.recording import _where as recorded_where
from iobench.accelerate.recording import block_steps, lag_correlation, mean_step, record
from iobench.base.errors import IobenchError, NoMemoryError, UnknownNameError, UsageError
from iobench.cli.main import main
from iobench.host.nvml import GpuWatch
from iobench.runner.conductor import last_messages
from iobench.runner.crew import ForkedCrew
from iobench.runner.messages import Last, Link
from iobench.settings.accelerator import StepFacts, StepRecording, read_recording
from iobench.settings.workload import AcceleratorSpec, load_workload
from tests.nvml import Clock, FakeGpu, FakeNvml
from tests.processes import python

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
    assert set(NETWORKS.entries()) == set(PARAMETERS)
    with torch.device("meta"):
        model = open_model(name)
        loss = model(torch.zeros(2, model.sample_bytes, dtype=torch.uint8))
    assert sum(each.numel() for each in model.parameters()) == PARAMETERS[name]
    assert loss.shape == ()


def spec(model: str = "tests.networks:Tiny", **settings: object) -> AcceleratorSpec:
    asked = {"kind": "model", "model": model, "threads": 1, **settings}
    return AcceleratorSpec.model_validate(asked)


def prepared(batch_size: int = 8, **settings: object) -> ModelAccelerator:
    accelerator = ModelAccelerator(spec(**settings))
    accelerator.prepare(RankPlace(0, 1, batch_size, 1))
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
    assert losses[0] is not None
    assert losses[-1] < 0.7 * losses[0]


def test_a_loss_below_zero_can_be_recorded() -> None:
    accelerator = prepared(model="tests.networks:Negative")
    accelerator.step(batch(), 0)
    facts = accelerator.facts()
    assert facts.last_loss is not None
    assert facts.last_loss < 0
    assert StepFacts.model_validate(facts.model_dump()) == facts


def test_a_sample_that_is_too_small_is_refused() -> None:
    with pytest.raises(UsageError, match="3072"):
        prepared().step(batch(size=3000), 0)


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("resnet19", UnknownNameError),
        ("tests.networks:Missing", UsageError),
        ("tests.networks:fails", UsageError),
        ("tests.networks:Broken", IobenchError),
        ("tests.networks:NotANumber", IobenchError),
        ("tests.networks:TooLargeForTheGpu", NoMemoryError),
        ("tests.networks:too_large", NoMemoryError),
    ],
)
def test_a_model_that_cannot_be_trained_gets_one_line(
    model: str, error: type[IobenchError]
) -> None:
    with pytest.raises(error) as found:
        prepared(model=model)
    assert found.value.remedy or error is UnknownNameError


def test_the_step_that_lost_the_loss_is_named() -> None:
    accelerator = prepared(model="tests.networks:Explodes")
    before = accelerator.facts().warm_up_steps or 0
    for _ in range(250 - before):
        accelerator.step(batch(), 0)
    with pytest.raises(IobenchError, match="nan in step 251"):
        accelerator.step(batch(), 0)


def test_without_a_compiler_the_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(model: nn.Module) -> nn.Module:
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nand more")

    monkeypatch.setattr(torch, "compile", lacks)
    with pytest.raises(IobenchError, match="compiled") as found:
        prepared(compile=True)
    assert "accelerator.compile=false" in found.value.remedy


def test_a_gpu_that_the_host_has_not_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="cuda"):
        prepared(device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match=r"'cuda:2' .* which has 2 CUDA devices"):
        device_of_rank("cuda:2", 0)
    assert device_of_rank("cuda:1", 0) == torch.device("cuda:1")
    assert device_of_rank("cuda", 3) == torch.device("cuda:1")


def test_the_steps_of_a_rank_are_timed_on_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of torch are recorded on the current GPU, which is the first one at the beginning."""

    class Chosen(Exception):
        pass

    def choose(device: torch.device) -> None:
        raise Chosen(device)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", choose)
    with pytest.raises(Chosen, match="cuda:1"):
        ModelAccelerator(spec(device="cuda")).prepare(RankPlace(1, 2, 8, 1))


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


# Ranks that train one model


@dataclass(frozen=True)
class Trained(Last):
    parameters: npt.NDArray[np.float32]
    exchange_s: float | None


@dataclass(frozen=True)
class Trains:
    """Each rank trains on its part of the same batches, from the same parameters."""

    meeting: str
    model: str
    samples: int = 8

    def run(self, link: Link) -> None:
        kind = "ddp" if link.world > 1 else "none"
        accelerator = ModelAccelerator(spec(self.model, gradient_sync=kind, learning_rate=0.01))
        own = self.samples // link.world
        accelerator.prepare(RankPlace(link.rank, link.world, own, 1, self.meeting))
        torch.manual_seed(5)
        network = accelerator._model
        fresh = open_model(self.model)
        (network.module if link.world > 1 else network).load_state_dict(fresh.state_dict())
        accelerator._optimizer.state.clear()
        for number in range(6):
            whole = batch(self.samples, seed=number)
            mine = slice(link.rank * own, (link.rank + 1) * own)
            accelerator.step(Samples(whole.data, whole.offsets[mine], whole.lengths[mine]), 0)
        flat = torch.nn.utils.parameters_to_vector(network.parameters()).detach().numpy()
        link.send(Trained(flat, accelerator.facts().exchange_s))
        accelerator.close()


@pytest.mark.slow
def test_two_ranks_learn_what_one_learns_from_batches_twice_as_large(tmp_path: Path) -> None:
    def trained(world: int) -> list[Trained]:
        task = Trains(f"file://{tmp_path}/gradients", "tests.networks:Tiny")
        return last_messages(ForkedCrew(world, task), Trained)

    (alone,), (first, second) = trained(1), trained(2)
    assert np.array_equal(first.parameters, second.parameters)
    assert np.allclose(first.parameters, alone.parameters, rtol=1e-4, atol=1e-6)
    torch.manual_seed(5)
    untrained = torch.nn.utils.parameters_to_vector(
        open_model("tests.networks:Tiny").parameters()
    ).detach()
    assert not np.allclose(first.parameters, untrained.numpy(), rtol=1e-4, atol=1e-6)
    assert alone.exchange_s is None
    assert first.exchange_s > 0


def test_ranks_need_a_gpu_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match="2 ranks"):
        GradientExchange("", rank=0, world=4, on_host=2, device=torch.device("cuda:0"))


# Warm-up


def test_a_warm_up_ends_after_the_change() -> None:
    slow, fast = [9.0, 8.5, 4.0], [1.0, 1.01, 0.99, 1.0, 1.02]
    assert change_point([*slow, *fast]) in (2, 3)
    assert not settled(slow)
    assert not settled([*slow, *fast[:3]])
    assert settled([*slow, *fast])
    assert settled([1.0] * 5)
    assert not settled([1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0])


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
    accelerator.prepare(RankPlace(rank, 4, 400, seed))
    return [next(accelerator._drawn) / 1e9 for _ in range(steps)]


def slow_phases(number: int = 1200) -> list[float]:
    """Step times that depend on the one before: an autoregressive process of order one."""
    chance, level, times = np.random.default_rng(7), 0.0, []
    for _ in range(number):
        level = 0.9 * level + chance.normal(0, 0.02)
        times.append(0.1 * float(np.exp(level)))
    return times


def bimodal(number: int = 1200) -> list[float]:
    """Every tenth step also writes a log, on average, and takes twice as long."""
    chance = np.random.default_rng(8)
    return (0.1 * (1 + (chance.random(number) < 0.1)) + chance.normal(0, 0.001, number)).tolist()


def heavy_tail(number: int = 1200) -> list[float]:
    """A Pareto tail of index 2.5: a few steps take tens of times as long."""
    return (0.1 * (1 + np.random.default_rng(9).pareto(2.5, number))).tolist()


def odd() -> list[float]:
    """A number of steps that blocks do not divide."""
    return slow_phases(1237)


@pytest.mark.parametrize(
    ("seed", "shape"), list(enumerate([slow_phases, bimodal, heavy_tail, odd]))
)
def test_a_replay_has_the_recorded_mean_and_distribution(
    tmp_path: Path, shape: Callable[[], list[float]], seed: int
) -> None:
    """Over ten passes, whatever block the replay stops in: mean within 0.5 %, KS below 0.05."""
    times = shape()
    count = 10 * len(times) + 17
    again = np.sort(replayed(written(tmp_path, times), count, rank=seed % 3, seed=seed))
    assert abs(again.mean() / np.mean(times) - 1) < 0.005
    # Two-sided statistic of Kolmogorov and Smirnov, of two samples.
    both = np.concatenate([again, times])
    replay = np.searchsorted(again, both, side="right") / count
    recorded = np.searchsorted(np.sort(times), both, side="right") / len(times)
    assert np.abs(replay - recorded).max() < 0.05


def test_a_batch_of_half_the_samples_takes_half_a_recorded_step(tmp_path: Path) -> None:
    settings = {"kind": "recorded", "steps": str(written(tmp_path, [0.002] * 50))}
    accelerator = RecordedAccelerator(AcceleratorSpec.model_validate(settings))
    accelerator.start()
    assert accelerator.step(None, time.monotonic_ns(), 0.5).busy_ns == 1_000_000


def test_a_replay_keeps_slow_phases_together(tmp_path: Path) -> None:
    times = slow_phases()
    path = written(tmp_path, times)
    assert read_recording(path).block_steps > 5
    before, after = lag_correlation(times)[0], lag_correlation(replayed(path, 1200))[0]
    assert after > 0.8 * before


@pytest.mark.parametrize(
    ("changed", "asked", "refused"),
    [
        ({"batch_size": 64}, [], "batches of 64"),
        ({"device_kind": "cpu"}, [], "CPU"),
        ({"device_kind": "cpu"}, ["accelerator.accept_cpu=true"], ""),
        ({"batch_size": 64}, ["batch_size=64"], ""),
        ({"schema_version": "9"}, [], "9"),
        ({"quantiles_s": [0.1] * 101}, [], "quantiles_s"),
        ({"steps_s": [0.1, 0.2, 0.4]}, [], "mean_s"),
        ({"block_steps": 4}, [], "block_steps"),
        ({"lag_correlation": [1.5]}, [], "lag_correlation"),
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
    assert found.recorded[:2] == "20"
    assert found.source
    assert found.where.torch == torch.__version__
    # The peak of a CPU is not known, and it has no clock that the driver of a GPU would tell.
    assert found.mfu is None
    assert {"mfu", "peak_flops", "where.clock_mhz", "where.driver"} <= set(found.not_measured)
    stated = record(spec(peak_flops=1e12), 4, steps=12, seconds=0)
    assert stated.mfu == pytest.approx(stated.flops_per_sample * 4 / stated.mean_s / 1e12)


def test_a_recording_says_on_which_gpu_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    nvml = FakeNvml([FakeGpu("GPU-1")], clock)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    watch = GpuWatch("cuda", 1, clock=clock, environ={})
    watch.begin()
    clock.now += 2
    watch.end()
    where, missing = recorded_where(spec(device="cuda"), StepFacts(device="H100"), watch)
    watch.close()
    assert missing == {}
    assert where.driver == "570.86.15"
    assert where.power_limit_w == 700
    assert where.power_w == pytest.approx(500)
    assert (where.clock_mhz, where.memory_clock_mhz) == (1980, 2619)


@pytest.mark.slow
def test_the_size_of_a_models_samples_starts_no_thread() -> None:
    """Ranks are forked afterwards. A ViT's weights are made with all threads, where it may."""
    code = (
        "import os, torch; from iobench.accelerate.model import sample_bytes_of; "
        "torch.set_num_threads(4); before = len(os.listdir('/proc/self/task')); "
        "print(sample_bytes_of('vit-s16'), len(os.listdir('/proc/self/task')) - before)"
    )
    assert python(code).split() == ["150528", "0"]


def test_an_interrupted_trial_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Connection) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "recv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mean_step(spec(), 4, seconds=1e6)
    assert multiprocessing.active_children() == []


# Verbs


def test_record_does_not_replace_a_file(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    path.write_text("mine")
    assert main(["train", "tests.networks:Tiny", "--record", str(path)]) == 2
    assert path.read_text() == "mine"
    assert main(["train", "tests.networks:Tiny", "--record", str(tmp_path / "no" / "s.json")]) == 2


def test_a_recording_of_a_given_time_has_few_steps(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    asked = ["train", "tests.networks:Tiny", "--batch-size", "2", "--record", str(path), "-q"]
    assert main([*asked, "--time", "0s"]) == 0
    assert len(read_recording(str(path)).steps_s) == 10


def interrupted(*args: object) -> None:
    raise KeyboardInterrupt


def no_space(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_recording_that_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["train", "tests.networks:Tiny", "--batch-size", "4", "--steps", "3", "--time", "0s"]
    asked += ["--record", str(tmp_path / "steps.json"), "--set", "accelerator.threads=1"]
    with monkeypatch.context() as patch:
        patch.setattr(ModelAccelerator, "step", interrupted)
        assert main(asked) == 130
    with monkeypatch.context() as patch:
        patch.setattr("iobench.base.documents.os.fsync", no_space)
        capsys.readouterr()
        assert main(asked) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "steps.json") in line
    assert list(tmp_path.iterdir()) == []
    assert main([*asked, "--set", "accelerator.peak_flops=1e12"]) == 0
    assert [each.name for each in tmp_path.iterdir()] == ["steps.json"]
    assert "MFU" in capsys.readouterr().out


# Cores and memory


def test_cpus_of_ranks() -> None:
    assert parse_cpus("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert rank_cpus("none", 0, 2) is None
    allowed = [0, 1, 2, 3, 8, 9, 10]
    assert rank_cpus("cores", 0, 3, allowed=allowed) == {0, 1}
    assert rank_cpus("cores", 2, 3, allowed=allowed) == {8, 9}
    with pytest.raises(UsageError):
        rank_cpus("cores", 0, 8, allowed=allowed)

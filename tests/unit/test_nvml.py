"""Counters of the GPUs of a job, by a double of nvidia-ml-py; and model FLOPs utilization."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from iobench.accelerate.recording import flops_per_sample, peak_of, work_of
from iobench.base.errors import IobenchError, UsageError
from iobench.base.processes import in_own_process
from iobench.host.nvml import GpuWatch, HostGpus
from iobench.record.host import DeviceUse
from iobench.settings.workload import AcceleratorSpec
from tests.nvml import Clock, FakeGpu, FakeNvml
from tests.processes import wait_until

ONE, TWO = "GPU-11111111-aaaa", "GPU-22222222-bbbb"


def fake(
    monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu, driver: bool = True
) -> tuple[FakeNvml, Clock]:
    clock = Clock()
    found = FakeNvml(gpus, clock, driver=driver)
    monkeypatch.setitem(sys.modules, "pynvml", found)
    return found, clock


def watched(
    clock: Clock, device: str | None = "cuda", ranks: int = 1, seconds: float = 3.0, **environ: str
) -> tuple[list[DeviceUse], str]:
    watch = GpuWatch(device, ranks, clock=clock, environ=environ)
    watch.begin()
    for _ in range(round(seconds / 0.25)):
        clock.now += 0.25
        watch.tick()
    watch.end()
    watch.close()
    return watch.result()


def test_what_a_gpu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, clock = fake(monkeypatch, FakeGpu(ONE))
    [use], why = watched(clock)
    assert why == ""
    assert use.not_measured == {}
    assert (use.uuid, use.name) == (ONE, "NVIDIA H100 80GB HBM3")
    assert use.seconds == pytest.approx(3)
    assert use.utilization_nvml == pytest.approx(0.8)
    assert use.sm_utilization == pytest.approx(0.4)
    assert use.tensor_utilization == pytest.approx(0.2)
    assert use.dram_utilization == pytest.approx(0.3)
    assert use.power_w == pytest.approx(500)
    assert (use.sm_clock_mhz, use.memory_clock_mhz) == (pytest.approx(1980), pytest.approx(2619))
    assert nvml.counted.opened == 0
    assert all(sample.freed for sample in nvml.counted.samples)


def test_only_the_time_between_begin_and_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    _, clock = fake(monkeypatch, gpu := FakeGpu(ONE, busy=100, watts=600))
    watch = GpuWatch("cuda:0", 1, clock=clock, environ={})
    for busy, watts in ((100, 600.0), (50, 200.0)):
        gpu.busy, gpu.watts = busy, watts
        watch.begin()
        for _ in range(4):
            clock.now += 0.5
            watch.tick()
        watch.end()
        gpu.busy, clock.now = 0, clock.now + 1000
        watch.tick()  # between two epochs
    [use], _ = watch.result()
    assert use.seconds == pytest.approx(4)
    assert use.utilization_nvml == pytest.approx(0.75)
    assert use.power_w == pytest.approx(400)


@pytest.mark.parametrize(
    ("gpu", "lacking"),
    [
        (FakeGpu(ONE, gpm=False), {"sm_utilization", "tensor_utilization", "dram_utilization"}),
        (FakeGpu(ONE, refuses=frozenset({"gpm-tensor"})), {"tensor_utilization"}),
        (FakeGpu(ONE, dram=float("nan")), {"dram_utilization"}),
        (FakeGpu(ONE, refuses=frozenset({"utilization"})), {"utilization_nvml"}),
        (FakeGpu(ONE, refuses=frozenset({"clock"})), {"sm_clock_mhz", "memory_clock_mhz"}),
        (FakeGpu(ONE, refuses=frozenset({"energy", "power"})), {"power_w"}),
    ],
)
def test_what_a_gpu_does_not_count_is_none_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu, lacking: set[str]
) -> None:
    nvml, clock = fake(monkeypatch, gpu)
    [use], _ = watched(clock)
    assert set(use.not_measured) == lacking
    assert all(getattr(use, name) is None for name in lacking)
    assert all(use.not_measured.values())
    assert use.power_w is None or use.power_w == pytest.approx(500)
    assert all(sample.freed for sample in nvml.counted.samples)


@pytest.mark.parametrize(
    ("device", "ranks", "environ", "expected"),
    [
        ("cuda", 1, {}, [ONE]),
        ("cuda", 8, {}, [ONE, TWO]),
        ("cuda:1", 8, {}, [TWO]),
        ("cuda", 2, {"CUDA_VISIBLE_DEVICES": "1,0"}, [TWO, ONE]),
        ("cuda", 2, {"CUDA_VISIBLE_DEVICES": f"{TWO},{ONE}"}, [TWO, ONE]),
        ("cuda", 2, {"CUDA_VISIBLE_DEVICES": "GPU-2222"}, [TWO]),
        ("cuda", 2, {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, [ONE]),
        ("cuda", 1, {"CUDA_VISIBLE_DEVICES": "MIG-33"}, ["MIG-33"]),
        ("cuda:7", 1, {}, []),
        ("cpu", 1, {}, []),
        (None, 1, {}, []),
    ],
)
def test_the_gpus_of_a_job(
    monkeypatch: pytest.MonkeyPatch,
    device: str | None,
    ranks: int,
    environ: dict[str, str],
    expected: list[str],
) -> None:
    nvml, clock = fake(monkeypatch, FakeGpu(ONE), FakeGpu(TWO))
    devices, why = watched(clock, device, ranks, **environ)
    assert [use.uuid for use in devices] == expected
    assert bool(why) is not bool(expected)
    assert nvml.counted.opened == 0


def test_a_repetition_shorter_than_the_window_of_nvml_has_no_utilization(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, clock = fake(monkeypatch, FakeGpu(ONE))
    [use], _ = watched(clock, seconds=0.75)
    assert set(use.not_measured) == {"utilization_nvml"}
    assert use.sm_utilization == pytest.approx(0.4)


def test_gpus_of_different_kinds_need_a_known_order(monkeypatch: pytest.MonkeyPatch) -> None:
    _, clock = fake(monkeypatch, FakeGpu(ONE, "NVIDIA L4"), FakeGpu(TWO))
    devices, why = watched(clock)
    assert devices == []
    assert "CUDA_DEVICE_ORDER" in why
    assert len(watched(clock, CUDA_DEVICE_ORDER="PCI_BUS_ID")[0]) == 1
    assert watched(clock, CUDA_VISIBLE_DEVICES=TWO)[0][0].uuid == TWO


def test_without_the_driver_there_is_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, clock = fake(monkeypatch, driver=False)
    assert watched(clock) == ([], "NVIDIA's driver does not answer: Driver Not Loaded")


def test_all_gpus_of_the_host_count_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = frozenset({"handle"})
    fakes = FakeGpu(ONE, busy=40), FakeGpu(TWO, busy=80), FakeGpu("GPU-3", refuses=refused)
    nvml, _ = fake(monkeypatch, *fakes)
    gpus = HostGpus()
    assert gpus.read() == (pytest.approx(0.6), float(10 << 30))
    gpus.close()
    assert gpus.read() == (None, None)
    assert nvml.counted.opened == 0
    fake(monkeypatch, driver=False)
    assert HostGpus().read() == (None, None)


# Figures of a repetition


# Peaks and operations


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("", None),
    ],
)
def test_the_peak_of_a_gpu_is_that_of_its_datasheet(name: str, tflops: float | None) -> None:
    half, single = peak_of(name, "bfloat16"), peak_of(name, "float32")
    if tflops is None:
        assert half is None
        return
    assert half == peak_of(name, "float16") == tflops * 1e12
    assert single <= half / 2 * 1.001


# 2 FLOP for each multiplication and addition; backward takes twice as many as forward, but for the
# gradient of the input. Of multiply-adds, torchvision and timm state 1.81 and 4.61 G.
@pytest.mark.parametrize(("model", "forward_gmac"), [("resnet18", 1.81), ("vit-s16", 4.61)])
def test_operations_of_known_models(model: str, forward_gmac: float) -> None:
    flops, why = flops_per_sample(model)
    assert why == ""
    assert flops == pytest.approx(6e9 * forward_gmac, rel=0.05)


def model_spec(**settings: object) -> AcceleratorSpec:
    asked = {"kind": "model", "model": "tests.networks:Tiny", **settings}
    return AcceleratorSpec.model_validate(asked)


def test_the_peak_of_a_gpu_that_is_not_known_is_told() -> None:
    work = work_of(model_spec(device="cuda:0"), "NVIDIA Unheard Of")
    assert "peak of NVIDIA Unheard Of unknown" in work.not_measured["peak_flops"]
    known = work_of(model_spec(device="cuda:0", precision="bfloat16"), "NVIDIA H200")
    assert (known.peak_flops, known.devices) == (989.5e12, 1)


def test_a_model_whose_operations_can_not_be_counted_has_the_reason() -> None:
    flops, why = flops_per_sample("tests.networks:Broken")
    assert flops is None
    assert "could not be counted" in why


# A process of its own


def test_a_stop_ends_the_process_that_computes_apart(tmp_path: Path) -> None:
    """Ctrl-C while it works: this process goes on with the interrupt, and the other one is gone."""
    sign = tmp_path / "pid"

    def work() -> None:
        sign.with_suffix(".part").write_text(str(os.getpid()))
        sign.with_suffix(".part").rename(sign)
        time.sleep(3600)

    def interrupt() -> None:
        wait_until(sign.exists, "the process has begun")
        os.kill(int(sign.read_text()), signal.SIGINT)  # a terminal interrupts both
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        in_own_process(work, failed=lambda code: IobenchError(f"it ended with {code}"))
    thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(sign.read_text()), 0)


def test_what_a_process_of_its_own_gives_and_raises() -> None:
    def refused() -> None:
        raise UsageError("not that one")

    def dies() -> None:
        os._exit(9)

    def failed(code: int | None) -> IobenchError:
        return IobenchError(f"it ended with {code}")

    assert in_own_process(lambda: 42, failed=failed) == 42
    with pytest.raises(UsageError, match="not that one"):
        in_own_process(refused, failed=failed)
    with pytest.raises(IobenchError, match="ended with 9"):
        in_own_process(dies, failed=failed)

"""A double of nvidia-ml-py's module ``pynvml``: GPUs whose counters follow a plan, without any GPU.

It has the functions, the constants and the structures that iobench uses, with the names and the
signatures of nvidia-ml-py 13.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """``pynvml.NVMLError``; its text is that of NVML's status."""


def not_supported() -> NVMLError:
    return NVMLError("Not Supported")


@dataclass
class Clock:
    """A clock, in seconds, that only tests move."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeGpu:
    """A GPU with constant figures. ``refuses``: functions that it answers with NOT_SUPPORTED."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    busy: int = 80  # percent
    sm: float = 40.0
    tensor: float = 20.0
    dram: float = 30.0
    watts: float = 500.0
    sm_mhz: int = 1980
    memory_mhz: int = 2619
    gpm: bool = True
    refuses: frozenset[str] = frozenset()


@dataclass
class _Sample:
    """A sample of GPM; ``freed`` samples must not be used again."""

    gpu: FakeGpu
    at: float
    freed: bool = False


@dataclass
class Counted:
    opened: int = 0
    samples: list[_Sample] = field(default_factory=list)


class FakeNvml(ModuleType):
    """Put it into ``sys.modules["pynvml"]``. ``counted`` says what was opened and not closed."""

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL = 2
    NVML_GPM_METRIC_ANY_TENSOR_UTIL = 5
    NVML_GPM_METRIC_DRAM_BW_UTIL = 10

    def __init__(
        self, gpus: Sequence[FakeGpu], clock: Callable[[], float], *, driver: bool = True
    ) -> None:
        super().__init__("pynvml")
        self.gpus, self.clock, self.driver = list(gpus), clock, driver
        self.counted = Counted()

    def _asked(self, gpu: FakeGpu, function: str) -> None:
        if function in gpu.refuses:
            raise not_supported()

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.counted.opened += 1

    def nvmlShutdown(self) -> None:
        self.counted.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        self._asked(self.gpus[index], "handle")
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        if uuid.startswith("MIG-"):
            refused = frozenset({"utilization", "energy", "power", "gpm"})
            return FakeGpu(uuid, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", refuses=refused)
        raise NVMLError("Not Found")

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> bytes:  # as versions before 11.5 return it
        return gpu.name.encode()

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        self._asked(gpu, "utilization")
        return SimpleNamespace(gpu=gpu.busy, memory=0)

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> Any:
        self._asked(gpu, "memory")
        return SimpleNamespace(total=80 << 30, free=75 << 30, used=5 << 30)

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: int) -> int:
        self._asked(gpu, "clock")
        return {self.NVML_CLOCK_SM: gpu.sm_mhz, self.NVML_CLOCK_MEM: gpu.memory_mhz}[kind]

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        self._asked(gpu, "power")
        return round(gpu.watts * 1e3)

    def nvmlDeviceGetPowerManagementLimit(self, gpu: FakeGpu) -> int:
        self._asked(gpu, "power")
        return 700_000

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu) -> int:
        self._asked(gpu, "energy")
        return round(gpu.watts * self.clock() * 1e3)

    def nvmlGpmQueryDeviceSupport(self, gpu: FakeGpu) -> Any:
        self._asked(gpu, "gpm")
        return SimpleNamespace(isSupportedDevice=int(gpu.gpm))

    def nvmlGpmSampleAlloc(self) -> _Sample:
        sample = _Sample(self.gpus[0], 0.0)
        self.counted.samples.append(sample)
        return sample

    def nvmlGpmSampleGet(self, gpu: FakeGpu, sample: _Sample) -> _Sample:
        self._asked(gpu, "gpm-sample")
        sample.gpu, sample.at = gpu, self.clock()
        return sample

    def nvmlGpmSampleFree(self, sample: _Sample) -> None:
        assert not sample.freed
        sample.freed = True

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(333)]
        return SimpleNamespace(version=0, numMetrics=0, sample1=None, sample2=None, metrics=metrics)

    def nvmlGpmMetricsGet(self, asked: Any) -> Any:
        first, second = asked.sample1, asked.sample2
        assert asked.version == 1
        assert not first.freed
        assert not second.freed
        assert second.at - first.at > 0.1
        figures = {2: first.gpu.sm, 5: first.gpu.tensor, 10: first.gpu.dram}
        for metric in asked.metrics[: asked.numMetrics]:
            metric.value = figures[metric.metricId]
            if metric.metricId == 5 and "gpm-tensor" in first.gpu.refuses:
                metric.nvmlReturn = 3
        return asked

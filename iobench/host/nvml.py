"""What NVIDIA's driver counts on GPUs, those of a job and all of the host, by nvidia-ml-py.

Source: NVML API reference (nvmlDeviceGetUtilizationRates, nvmlDeviceGetMemoryInfo,
nvmlDeviceGetTotalEnergyConsumption, nvmlDeviceGetClockInfo, GPM functions) and the CUDA C++
Programming Guide (CUDA_VISIBLE_DEVICES).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..record.host import DeviceUse

INTERVAL_S = 0.5
"""Time between two readings."""

MIN_WINDOW_S = 1.0
"""NVML's utilization is that of a window of up to a second, which must lie in the measured time."""

MIN_GPM_S = 0.15
"""NVML's GPM samples must be more than 100 ms apart."""

MAX_PERCENT = 101.0
"""Counters that are read one after the other may give a little more than 100 %."""

_GPM = {
    "sm_utilization": "NVML_GPM_METRIC_SM_UTIL",
    "tensor_utilization": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_utilization": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}

_FIGURES = ("utilization_nvml", *_GPM, "power_w", "sm_clock_mhz", "memory_clock_mhz")

NO_GPM = "this GPU has no GPM metrics; Hopper and later have them"


class NoGpusError(Exception):
    """The GPUs of the job can't be watched; the message is the reason."""


@dataclass
class _Gpu:
    """One GPU, the sums of its readings (value x seconds), and the seconds of each."""

    handle: Any
    uuid: str
    name: str
    sums: dict[str, float] = field(default_factory=dict)
    spans: dict[str, float] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    energy_mj: float | None = None
    gpm: tuple[Any, float] | None = None  # the last sample, and when it was taken

    def add(self, name: str, value: float, seconds: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value * seconds
        self.spans[name] = self.spans.get(name, 0.0) + seconds


class GpuWatch:
    """Watches the GPUs that a job uses, between ``begin`` and ``end``.

    ``device``: that of the accelerator's specification; with ``cuda``, ``ranks`` take the visible
    GPUs in turn. The driver is opened at the first ``begin``, since its library does not survive a
    fork; GPUs that can't be watched are no error, and ``result`` has the reason.
    """

    def __init__(
        self,
        device: str | None,
        ranks: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._device, self._ranks = device, ranks
        self._clock, self._environ = clock, environ
        self._nvml: Any = None
        self._gpus: list[_Gpu] | None = None
        self._why = ""
        self._last: float | None = None
        self.seconds = 0.0

    def begin(self) -> None:
        """The time that counts begins."""
        if self._gpus is None:
            self._open()
        self._last = self._clock()
        for gpu in self._gpus or ():
            gpu.energy_mj = self._energy(gpu)
            gpu.gpm = self._gpm_sample(gpu)

    def tick(self) -> None:
        """Read all counters if it is time for that."""
        if self._last is not None and self._clock() - self._last >= INTERVAL_S:
            self._take()

    def end(self) -> None:
        """The time that counts is over, until the next ``begin``."""
        if self._last is not None:
            self._take()
        self._last = None
        for gpu in self._gpus or ():
            self._free(gpu)

    def result(self) -> tuple[list[DeviceUse], str]:
        """What was counted on each GPU, and why there is none."""
        if self._gpus is None and not self._why:
            return [], "no step was made"
        return [self._use(gpu) for gpu in self._gpus or ()], self._why

    def power_limit_w(self) -> float | None:
        """The limit of the first GPU's power; None if it does not tell."""
        if self._nvml is None or not self._gpus:
            return None
        limit = _told(self._nvml, "nvmlDeviceGetPowerManagementLimit", self._gpus[0].handle)
        return None if limit is None else limit * 1e-3

    def driver(self) -> str | None:
        """The version of the driver; None if it does not tell."""
        found = _told(self._nvml, "nvmlSystemGetDriverVersion") if self._nvml is not None else None
        return None if found is None else _text(found)

    def close(self) -> None:
        """Release the driver. ``result`` stays as it is."""
        self.end()
        if self._nvml is not None:
            _told(self._nvml, "nvmlShutdown")
        self._nvml = None

    def _open(self) -> None:
        self._gpus = []
        try:
            if self._device is None or not self._device.startswith("cuda"):
                raise NoGpusError("the accelerator uses no GPU")
            self._nvml = load_nvml()
            there = visible(self._nvml, self._environ)
            number = self._device.partition(":")[2]
            mine = [int(number)] if number else range(min(self._ranks, len(there)))
            if not there or (number and int(number) >= len(there)):
                raise NoGpusError(f"this process sees no GPU {number or 0}")
            self._gpus = [self._named(there[each]) for each in mine]
        except NoGpusError as error:
            self._why = str(error)

    def _named(self, handle: Any) -> _Gpu:
        uuid, name = (
            _text(_told(self._nvml, function, handle) or "")
            for function in ("nvmlDeviceGetUUID", "nvmlDeviceGetName")
        )
        return _Gpu(handle, uuid, name)

    def _take(self) -> None:
        now = self._clock()
        assert self._last is not None
        seconds, self._last = now - self._last, now
        self.seconds += seconds
        for gpu in self._gpus or ():
            for name, read in self._readers(gpu).items():
                try:
                    gpu.add(name, read(), seconds)
                except self._nvml.NVMLError as error:
                    gpu.why[name] = _refused(error)
            self._add_power(gpu, seconds)
            self._add_gpm(gpu)

    def _readers(self, gpu: _Gpu) -> dict[str, Callable[[], float]]:
        nvml, handle = self._nvml, gpu.handle
        return {
            "utilization_nvml": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        }

    def _add_power(self, gpu: _Gpu, seconds: float) -> None:
        """By the counter of energy (Volta and later), else by readings of the power."""
        before, gpu.energy_mj = gpu.energy_mj, self._energy(gpu)
        if before is not None and gpu.energy_mj is not None:
            # A counter that began anew in between tells nothing of this interval.
            if gpu.energy_mj >= before and seconds > 0:
                gpu.add("power_w", (gpu.energy_mj - before) / 1e3 / seconds, seconds)
            return
        try:
            gpu.add("power_w", self._nvml.nvmlDeviceGetPowerUsage(gpu.handle) / 1e3, seconds)
        except self._nvml.NVMLError as error:
            gpu.why["power_w"] = _refused(error)

    def _energy(self, gpu: _Gpu) -> float | None:
        found = _told(self._nvml, "nvmlDeviceGetTotalEnergyConsumption", gpu.handle)
        return None if found is None else float(found)

    def _gpm_sample(self, gpu: _Gpu) -> tuple[Any, float] | None:
        """A sample of GPM; None with the reason in ``gpu.why`` where the GPU has none."""
        nvml, sample = self._nvml, None
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(gpu.handle).isSupportedDevice:
                gpu.why |= dict.fromkeys(_GPM, NO_GPM)
                return None
            sample = nvml.nvmlGpmSampleAlloc()
            nvml.nvmlGpmSampleGet(gpu.handle, sample)
            return sample, self._clock()
        except AttributeError:
            gpu.why |= dict.fromkeys(_GPM, "this version of nvidia-ml-py lacks GPM metrics")
        except nvml.NVMLError as error:
            gpu.why |= dict.fromkeys(_GPM, _refused(error))
            if sample is not None:
                nvml.nvmlGpmSampleFree(sample)
        return None

    def _add_gpm(self, gpu: _Gpu) -> None:
        nvml = self._nvml
        if gpu.gpm is None or self._clock() - gpu.gpm[1] < MIN_GPM_S:
            return
        after = self._gpm_sample(gpu)
        if after is None:
            return
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(_GPM)
        asked.sample1, asked.sample2 = gpu.gpm[0], after[0]
        for place, constant in enumerate(_GPM.values()):
            asked.metrics[place].metricId = getattr(nvml, constant)
        try:
            found = nvml.nvmlGpmMetricsGet(asked)
            for place, name in enumerate(_GPM):
                metric = found.metrics[place]
                if metric.nvmlReturn != nvml.NVML_SUCCESS:
                    gpu.why[name] = _refused(nvml.NVMLError(metric.nvmlReturn))
                elif not 0 <= metric.value <= MAX_PERCENT:
                    gpu.why[name] = f"NVML: {metric.value} is no share in percent"
                else:
                    gpu.add(name, min(metric.value, 100.0) / 100, after[1] - gpu.gpm[1])
        except nvml.NVMLError as error:
            gpu.why |= dict.fromkeys(_GPM, _refused(error))
        self._free(gpu)
        gpu.gpm = after

    def _free(self, gpu: _Gpu) -> None:
        if gpu.gpm is not None and self._nvml is not None:
            _told(self._nvml, "nvmlGpmSampleFree", gpu.gpm[0])
        gpu.gpm = None

    def _use(self, gpu: _Gpu) -> DeviceUse:
        means = {name: gpu.sums[name] / span for name, span in gpu.spans.items() if span > 0}
        why = {name: gpu.why[name] for name in gpu.why if name not in means}
        if "utilization_nvml" in means and self.seconds < MIN_WINDOW_S:
            del means["utilization_nvml"]
            why["utilization_nvml"] = "NVML looks back a second, and the repetition was shorter"
        short = "the repetition was too short for two readings"
        missing = {name: why.get(name, short) for name in _FIGURES if name not in means}
        return DeviceUse(
            uuid=gpu.uuid, name=gpu.name, seconds=self.seconds, not_measured=missing, **means
        )


class HostGpus:
    """All GPUs of the host, whatever uses them; a host without NVIDIA's driver has none.

    Open it after all forks: the driver's library does not survive one.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._gpus: list[Any] = []
        with suppress(NoGpusError):
            self._nvml = load_nvml()
            numbers = range(_told(self._nvml, "nvmlDeviceGetCount") or 0)
            self._gpus = self._of_each("nvmlDeviceGetHandleByIndex", numbers)

    def read(self) -> tuple[float | None, float | None]:
        """(mean share of the time with a kernel running, bytes in use by all), None if unknown."""
        rates = self._of_each("nvmlDeviceGetUtilizationRates", self._gpus)
        memory = self._of_each("nvmlDeviceGetMemoryInfo", self._gpus)
        busy, used = [each.gpu / 100 for each in rates], [float(each.used) for each in memory]
        return sum(busy) / len(busy) if busy else None, sum(used) if used else None

    def close(self) -> None:
        if self._nvml is not None:
            _told(self._nvml, "nvmlShutdown")
        self._nvml, self._gpus = None, []

    def _of_each(self, function: str, asked: Sequence[Any]) -> list[Any]:
        told = (_told(self._nvml, function, each) for each in asked)
        return [each for each in told if each is not None]


def load_nvml() -> Any:
    """The module ``pynvml`` of nvidia-ml-py, with the driver opened. Raises NoGpusError."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoGpusError(f"NVIDIA's driver does not answer: {error}") from None
    return pynvml


def visible(nvml: Any, environ: Mapping[str, str]) -> Sequence[Any]:
    """Handles of the GPUs that CUDA shows to a process, in CUDA's order.

    CUDA_VISIBLE_DEVICES has numbers or UUIDs (also their beginnings, also of MIG instances), and
    its first invalid entry ends the list. Raises NoGpusError where CUDA's order is not known: it
    sorts GPUs of different kinds by their speed, unless CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    try:
        every = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
        asked = environ.get("CUDA_VISIBLE_DEVICES")
        entries = None if asked is None else [each.strip() for each in asked.split(",")]
        named = entries is not None and any(each.startswith(("GPU-", "MIG-")) for each in entries)
        kinds = {_text(nvml.nvmlDeviceGetName(handle)) for handle in every}
        if len(kinds) > 1 and not named and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            raise NoGpusError(
                "the order in which CUDA numbers GPUs of different kinds is not known: set "
                "CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )
        if entries is None:
            return every
        found = []
        for entry in entries:
            handle = _by_entry(nvml, entry, every)
            if handle is None:
                break
            found.append(handle)
        return found
    except nvml.NVMLError as error:
        raise NoGpusError(f"NVIDIA's driver does not list the GPUs: {error}") from None


def _by_entry(nvml: Any, entry: str, every: Sequence[Any]) -> Any:
    """The GPU of one entry of CUDA_VISIBLE_DEVICES; None if it is none."""
    if entry.isdecimal():
        return every[int(entry)] if int(entry) < len(every) else None
    if entry.startswith("MIG-"):
        return _told(nvml, "nvmlDeviceGetHandleByUUID", entry)
    if entry.startswith("GPU-"):
        fits = [one for one in every if _text(nvml.nvmlDeviceGetUUID(one)).startswith(entry)]
        return fits[0] if len(fits) == 1 else None
    return None


def _told(nvml: Any, function: str, *about: Any) -> Any:
    """What a function of NVML returns; None where the driver refuses it."""
    with suppress(nvml.NVMLError):
        return getattr(nvml, function)(*about)
    return None


def _refused(error: Exception) -> str:
    return f"NVML: {error}"


def _text(value: str | bytes) -> str:
    """A text of NVML: older versions of nvidia-ml-py return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value

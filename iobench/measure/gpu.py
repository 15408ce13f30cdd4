"""How busy the GPUs of this host are, by the NVIDIA driver's own library (NVML), without torch.

Source: NVML API reference (nvmlDeviceGetUtilizationRates, nvmlDeviceGetMemoryInfo). A host without
that library has no figures.
"""

from __future__ import annotations

import ctypes

_LIBRARY = "libnvidia-ml.so.1"
_OK = 0
"""NVML_SUCCESS. All functions return a status; they are called by their C names."""


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: percent of the last sample period, of up to a second."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _GpuMemory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Gpus:
    """All GPUs of the host. Open it after all forks: the driver's library does not survive one."""

    def __init__(self, library: str = _LIBRARY) -> None:
        self._library: ctypes.CDLL | None = None
        self._devices: list[ctypes.c_void_p] = []
        try:
            driver = ctypes.CDLL(library)
            if driver.nvmlInit_v2() != _OK:
                return
        except (OSError, AttributeError):
            return
        self._library = driver
        count = ctypes.c_uint()
        if driver.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _OK:
            return
        for number in range(count.value):
            device = ctypes.c_void_p()
            if driver.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)) == _OK:
                self._devices.append(device)

    def read(self) -> tuple[float | None, float | None]:
        """(mean share of the time with a kernel running, bytes in use by all), None if unknown."""
        busy, used = [], []
        for device in self._devices:
            assert self._library is not None
            rates, memory = _Utilization(), _GpuMemory()
            if self._library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(rates)) == _OK:
                busy.append(rates.gpu / 100)
            if self._library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == _OK:
                used.append(float(memory.used))
        return sum(busy) / len(busy) if busy else None, sum(used) if used else None

    def close(self) -> None:
        if self._library is not None:
            self._library.nvmlShutdown()
            self._library, self._devices = None, []

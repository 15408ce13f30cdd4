"""Counters of the host and its GPUs that are read again and again while a phase runs.

Sources: proc(5) (``/proc/net/dev``, ``/proc/meminfo``), Linux
``Documentation/accounting/psi.rst``.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import psutil

from ..base.cgroup import read_text
from .resources import Snapshot, parse_pressure

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
    """All GPUs of the host, by the NVIDIA driver's own library (NVML), without torch.

    Open it after all forks: the driver's library does not survive one. A host without that library
    has no figures. Source: NVML API reference (nvmlDeviceGetUtilizationRates,
    nvmlDeviceGetMemoryInfo).
    """

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


LOOPBACK = "lo"


class HostCounters:
    """Reads all counters of SAMPLE_COLUMNS; ``path`` is any path on the device that is counted.

    Close it: it may hold the GPUs' driver.
    """

    def __init__(self, path: Path | str | None) -> None:
        self.path = path
        self._interfaces = interfaces()
        self._gpus = Gpus()

    def read(self) -> dict[str, float | None]:
        """The value of each column at this moment; None if this host does not count it."""
        now = Snapshot.take(self.path)
        network = psutil.net_io_counters(pernic=True, nowrap=False)
        own = [network[name] for name in self._interfaces if name in network]
        memory = parse_memory(read_text(Path("/proc/meminfo")) or "")
        busy, used = self._gpus.read()
        nfs = now.nfs.operations if now.nfs is not None else None
        reads = nfs.get("READ") if nfs is not None else None
        some = {
            name: parse_pressure(read_text(Path("/proc/pressure") / name) or "")[0]
            for name in ("cpu", "memory")
        }
        every = None if nfs is None else sum(operation.ops for operation in nfs.values())
        return {
            "device_read_bytes": now.device_read_bytes,
            "device_write_bytes": now.device_write_bytes,
            "device_busy_s": now.device_busy_s,
            "network_received_bytes": sum(each.bytes_recv for each in own) if own else None,
            "network_sent_bytes": sum(each.bytes_sent for each in own) if own else None,
            "loopback_bytes": network[LOOPBACK].bytes_recv if LOOPBACK in network else None,
            "cpu_busy_s": now.cpu_busy_s,
            "cpu_total_s": now.cpu_total_s,
            "io_pressure_s": now.io_pressure_s,
            "cpu_pressure_s": some["cpu"],
            "memory_pressure_s": some["memory"],
            "nfs_reads": None if nfs is None else (reads.ops if reads else 0),
            "nfs_others": None if every is None else every - (reads.ops if reads else 0),
            "nfs_read_rtt_s": None if nfs is None else (reads.rtt_ms / 1e3 if reads else 0.0),
            "memory_used_bytes": memory[0],
            "page_cache_bytes": memory[1],
            "gpu_busy": busy,
            "gpu_memory_bytes": used,
        }

    def close(self) -> None:
        self._gpus.close()


def interfaces(root: Path = Path("/sys/class/net")) -> list[str]:
    """Network interfaces whose bytes add up: those of devices, or all but loopback without any.

    Bonds, bridges and VLANs pass on the bytes of a device, which would count twice.
    """
    try:
        found = sorted(each.name for each in root.iterdir() if each.name != LOOPBACK)
    except OSError:
        return []
    return [name for name in found if (root / name / "device").exists()] or found


def parse_memory(text: str) -> tuple[int | None, int | None]:
    """Bytes of memory that are (not available, in the page cache), from ``/proc/meminfo``."""
    pairs = (line.partition(":") for line in text.splitlines())
    kib = {name: rest.split()[0] for name, _, rest in pairs if rest.split()}
    known = {name: int(value) * 1024 for name, value in kib.items() if value.isdigit()}
    used = (
        known["MemTotal"] - known["MemAvailable"]
        if {"MemTotal", "MemAvailable"} <= known.keys()
        else None
    )
    return used, known.get("Cached")

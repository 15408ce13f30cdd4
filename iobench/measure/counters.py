"""Counters of the host that are read again and again while a phase runs. Only reads of /proc.

Sources: proc(5) (``/proc/net/dev``, ``/proc/meminfo``), Linux
``Documentation/accounting/psi.rst``.
"""

from __future__ import annotations

from pathlib import Path

import psutil

from ..cgroup import read_text
from .gpu import Gpus
from .resources import Snapshot, parse_pressure

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

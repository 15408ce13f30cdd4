"""What the host and the device did between two moments, and counters that are read meanwhile.

CPU throttling, device and NFS traffic, IO pressure, busy cores. The counters are of the whole
machine or the whole cgroup: beside the CPU time of this process and of its children they show
whether something else ran at the same time. The peak memory is that of this process.

Sources: proc(5) (``/proc/net/dev``, ``/proc/meminfo``), Linux
``Documentation/accounting/psi.rst``.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from ..base import cgroup, memory
from ..base.cgroup import Throttling, read_text
from ..base.filesystem import (
    NFS,
    block_devices,
    find_mount,
    mount_of,
    nearest_existing,
    parse_mountinfo,
)
from ..record.host import Resources
from . import nfs
from .nvml import HostGpus

_SECTOR = 512  # bytes; the unit of /proc/diskstats, whatever the device's block size


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Counters at one moment; None if this kernel does not have them."""

    monotonic_s: float
    throttling: Mapping[Path, Throttling]  # of each control group of this process
    device: str | None
    device_read_bytes: int | None
    device_write_bytes: int | None
    device_busy_s: float | None
    io_pressure_s: float | None  # time in which at least one task waited for IO
    io_pressure_full_s: float | None  # time in which all tasks did
    cpu_busy_s: float | None  # over all cores
    cpu_total_s: float | None
    own_cpu_s: float  # of this process
    children_cpu_s: float  # of its children that have ended, and of theirs
    nfs: nfs.MountStats | None  # of the mount, if it is NFS

    @classmethod
    def take(cls, path: Path | str | None = None) -> Snapshot:
        """``path``: any path on the device to count. Never raises."""
        disk = _disk(path) if path is not None else None
        some, full = parse_pressure(read_text(Path("/proc/pressure/io")) or "")
        busy, total = _cpu_s()
        return cls(
            monotonic_s=time.monotonic(),
            throttling=cgroup.throttling(),
            device=disk[0] if disk else None,
            device_read_bytes=disk[1] if disk else None,
            device_write_bytes=disk[2] if disk else None,
            device_busy_s=disk[3] if disk else None,
            io_pressure_s=some,
            io_pressure_full_s=full,
            cpu_busy_s=busy,
            cpu_total_s=total,
            own_cpu_s=time.process_time(),
            children_cpu_s=_children_s(),
            nfs=_nfs(path) if path is not None else None,
        )


def diff(before: Snapshot, after: Snapshot) -> Resources:
    """What happened between two snapshots.

    Ratios are from 0 to 1. A figure that one of the snapshots lacks is None, with the reason.
    """
    wall = after.monotonic_s - before.monotonic_s
    device = after.device if before.device == after.device else None
    total = minus(after.cpu_total_s, before.cpu_total_s)
    busy = minus(after.cpu_busy_s, before.cpu_busy_s)
    throttled = _throttled(before.throttling, after.throttling)
    found: dict[str, int | float | str | None] = {
        "throttled_periods": throttled.periods if throttled else None,
        "throttled_s": throttled.seconds if throttled else None,
        "device": device,
        "device_read_bytes": None,
        "device_write_bytes": None,
        "device_busy": None,
        "io_pressure_s": minus(after.io_pressure_s, before.io_pressure_s),
        "io_pressure_full_s": minus(after.io_pressure_full_s, before.io_pressure_full_s),
        "cpu_busy": min(1.0, busy / total) if busy is not None and total else None,
        "own_cpu_s": after.own_cpu_s - before.own_cpu_s,
        "children_cpu_s": after.children_cpu_s - before.children_cpu_s,
    }
    if device is not None:
        found["device_read_bytes"] = minus(after.device_read_bytes, before.device_read_bytes)
        found["device_write_bytes"] = minus(after.device_write_bytes, before.device_write_bytes)
        in_flight = minus(after.device_busy_s, before.device_busy_s)
        if in_flight is not None and wall > 0:
            found["device_busy"] = min(1.0, in_flight / wall)
    missing = {
        key: _REASONS[key.partition("_")[0]] for key, value in found.items() if value is None
    }
    return Resources.model_validate({"wall_s": wall, **found, "not_measured": missing})


def _throttled(
    before: Mapping[Path, Throttling], after: Mapping[Path, Throttling]
) -> Throttling | None:
    """That of the group which was throttled most in between: nested quotas stop the same threads.

    None where no group was counted at both moments, or where all counters began anew.
    """
    used = [
        Throttling(now.periods - then.periods, now.seconds - then.seconds)
        for group, now in after.items()
        if (then := before.get(group)) is not None and now >= then
    ]
    return max(used, key=lambda each: each.seconds, default=None)


def _children_s() -> float:
    """CPU time of all children that have ended and were waited for, and of their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


_REASONS = {
    "throttled": "the kernel shows no CPU throttling of this cgroup (cpu.stat)",
    "device": "the data is on no block device that /proc/diskstats of this host lists",
    "io": "the kernel has no /proc/pressure/io",
    "cpu": "/proc/stat shows no CPU time between the two moments",
}
"""Why a counter is missing, by the first word of the figure's name."""


def parse_diskstats(text: str, major: int, minor: int) -> tuple[str, int, int, float] | None:
    """(name, bytes read, bytes written, seconds with IO in flight) of one device."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 14 and fields[0] == str(major) and fields[1] == str(minor):
            return (
                fields[2],
                int(fields[5]) * _SECTOR,
                int(fields[9]) * _SECTOR,
                int(fields[12]) / 1000,
            )
    return None


def parse_pressure(text: str) -> tuple[float | None, float | None]:
    """Seconds of (some, full) pressure from a /proc/pressure file."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        value = rest.rpartition("total=")[2]
        if value.isdigit():
            found[kind] = int(value) / 1e6
    return found.get("some"), found.get("full")


def _cpu_s() -> tuple[float | None, float | None]:
    """(busy, total) CPU seconds of this host.

    Waiting for IO, and time stolen by the hypervisor, are not busy, but part of the total.
    """
    try:
        spent = psutil.cpu_times()
    except OSError:
        return None, None
    # The times of the user and of nice processes include those of guests.
    busy = spent.user + spent.nice + spent.system + spent.irq + spent.softirq
    return busy, busy + spent.idle + spent.iowait + spent.steal


def _disk(path: Path | str) -> tuple[str, int, int, float] | None:
    try:
        existing = nearest_existing(Path(path).resolve())
        number = existing.stat().st_dev
    except (OSError, RuntimeError):
        return None
    text = read_text(Path("/proc/diskstats")) or ""
    found = parse_diskstats(text, os.major(number), os.minor(number))
    if found or os.major(number):
        return found
    mount = find_mount(
        str(existing), parse_mountinfo(read_text(Path("/proc/self/mountinfo")) or "")
    )
    chain = block_devices(number, mount.source if mount else "")  # btrfs: an anonymous device
    major, _, minor = (chain[0]["number"] or "").partition(":") if chain else ("", "", "")
    return (
        parse_diskstats(text, int(major), int(minor))
        if major.isdigit() and minor.isdigit()
        else None
    )


def _nfs(path: Path | str) -> nfs.MountStats | None:
    mount = mount_of(path)
    return nfs.read(mount.point) if mount and mount.fs_type in NFS else None


def minus(after: float | None, before: float | None) -> float | None:
    """None where either is missing, and where a counter began anew in between."""
    return None if after is None or before is None or after < before else after - before


_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class PeakMemory:
    """Peak resident memory of this process since this object was made.

    Shared pages are included, child processes are not.
    """

    def __init__(self) -> None:
        try:
            _CLEAR_REFS.write_text("5")  # resets the peak to what is resident now
            self._before = _resident("VmRSS")
        except OSError:
            self._before = None

    def extra_bytes(self) -> int | None:
        """The peak since then, minus what was resident then; None if the kernel does not say."""
        peak = _resident("VmHWM")
        return (
            max(0, peak - self._before) if peak is not None and self._before is not None else None
        )


def _resident(key: str) -> int | None:
    for line in _STATUS.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    return None


LOOPBACK = "lo"


class HostCounters:
    """Reads all counters of SAMPLE_COLUMNS; ``path`` is any path on the device that is counted.

    Close it: it may hold the GPUs' driver.
    """

    def __init__(self, path: Path | str | None) -> None:
        self.path = path
        self._interfaces = interfaces()
        self._gpus = HostGpus()

    def read(self) -> dict[str, float | None]:
        """The value of each column at this moment; None if this host does not count it."""
        now = Snapshot.take(self.path)
        network = psutil.net_io_counters(pernic=True, nowrap=False)
        own = [network[name] for name in self._interfaces if name in network]
        total, left = memory.meminfo("MemTotal"), memory.meminfo("MemAvailable")
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
            "memory_used_bytes": minus(total, left),
            "page_cache_bytes": memory.meminfo("Cached"),
            "gpu_busy": busy,
            "gpu_memory_bytes": used,
        }

    def close(self) -> None:
        self._gpus.close()


def interfaces(root: Path = Path("/sys/class/net")) -> list[str]:
    """Network interfaces whose bytes add up: those of devices, or all but loopback without any.

    Bonds, bridges and VLANs pass on the bytes of a device, which would count twice. So would a
    virtual function on Azure, whose bytes its master counts, too, which is a device of its own
    (Linux, netvsc_get_stats64).
    """
    try:
        found = sorted(each.name for each in root.iterdir() if each.name != LOOPBACK)
    except OSError:
        return []
    own = [name for name in found if (root / name / "device").exists()]
    return [name for name in own if (root / name / "master").resolve().name not in own] or found

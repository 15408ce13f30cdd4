"""What the control groups of this process allow: CPU quota, memory limit, throttling.

Versions 1 and 2, and both mounted at once. ``root`` is ``/`` except in tests. A missing file means
an unknown fact (None), never an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_NO_LIMIT = 1 << 60  # version 1 writes a number near 2^63 for "unlimited"


class ControlGroup(NamedTuple):
    version: int
    path: Path


def read_text(path: Path) -> str | None:
    """A small file of /proc or /sys; None if it is missing or unreadable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def selected(text: str | None) -> str | None:
    """The selected word of a /sys file: ``always [madvise] never`` -> ``madvise``.

    Text without brackets is returned as it is.
    """
    if not text:
        return None
    return text.partition("[")[2].partition("]")[0] or text


def groups(controller: str, root: Path = Path("/")) -> Iterator[ControlGroup]:
    """The groups of this process for one controller, from its own group up to the mount's root.

    A limit of any of them applies.
    """
    base = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        _, controllers, inside = fields
        if controllers == "":
            tops = [(2, base), (2, base / "unified")]
        elif controller in controllers.split(","):
            tops = [(1, base / controllers), (1, base / controller)]
        else:
            continue
        version, top = next(((v, t) for v, t in tops if (t / "cgroup.procs").exists()), (0, base))
        if version:
            yield from _upwards(version, top, inside)


def _upwards(version: int, top: Path, inside: str) -> Iterator[ControlGroup]:
    parts = [part for part in inside.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        directory = top.joinpath(*parts[:depth])
        if directory.is_dir():  # in a container the path may name a group that only the host sees
            yield ControlGroup(version, directory)


def cpu_quota_cores(root: Path = Path("/")) -> float | None:
    """The lowest CPU quota in cores (2.5: two and a half); None without a quota."""
    quotas = []
    for version, path in groups("cpu", root):
        if version == 2:
            fields = (read_text(path / "cpu.max") or "").split()
        else:
            fields = [
                read_text(path / "cpu.cfs_quota_us") or "",
                read_text(path / "cpu.cfs_period_us") or "",
            ]
        if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit() and int(fields[1]) > 0:
            quotas.append(int(fields[0]) / int(fields[1]))
    return min(quotas, default=None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """The lowest memory limit in bytes; None without one. It includes the process's page cache."""
    limits = []
    for version, path in groups("memory", root):
        text = read_text(path / ("memory.max" if version == 2 else "memory.limit_in_bytes")) or ""
        if text.isdigit() and int(text) < _NO_LIMIT:
            limits.append(int(text))
    return min(limits, default=None)


def memory_left_bytes(root: Path = Path("/")) -> int | None:
    """What may still be taken below the tightest memory limit; None without one.

    Pages of files in the page cache count as free: the kernel drops them before it refuses memory.
    """
    left = []
    for version, path in groups("memory", root):
        names = _MEMORY_FILES[version]
        limit, usage = (read_text(path / name) or "" for name in names[:2])
        if not (limit.isdigit() and usage.isdigit()) or int(limit) >= _NO_LIMIT:
            continue
        stat = _numbers(path / "memory.stat")
        cached = sum(stat.get(name, 0) for name in names[2:])
        left.append(max(0, int(limit) - max(0, int(usage) - cached)))
    return min(left, default=None)


_MEMORY_FILES = {
    1: (
        *("memory.limit_in_bytes", "memory.usage_in_bytes"),
        *("total_inactive_file", "total_active_file"),
    ),
    2: ("memory.max", "memory.current", "inactive_file", "active_file"),
}
"""Version -> the files of limit and usage, and the keys of memory.stat that are page cache."""


def _numbers(path: Path) -> dict[str, int]:
    """The keys of a flat keyed file, and their numbers."""
    pairs = (line.split() for line in (read_text(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


class Throttling(NamedTuple):
    periods: int  # in which the group used up its quota
    seconds: float  # for which its threads were stopped, summed over the cores


def throttling(root: Path = Path("/")) -> dict[Path, Throttling]:
    """What each group of this process was throttled since it was made, as far as the kernel says.

    A group above has a quota of its own, and may be older by far.
    """
    found = {}
    for version, path in groups("cpu", root):
        stat = _numbers(path / "cpu.stat")
        key, unit = ("throttled_usec", 1e-6) if version == 2 else ("throttled_time", 1e-9)
        if "nr_throttled" in stat and key in stat:
            found[path] = Throttling(stat["nr_throttled"], stat[key] * unit)
    return found


def version(root: Path = Path("/")) -> str | None:
    """The mounted version: ``v1``, ``v2`` or ``hybrid``; None if no cgroup is mounted."""
    base = root / "sys/fs/cgroup"
    if (base / "cgroup.controllers").exists():
        return "v2"
    if (base / "unified/cgroup.controllers").exists():
        return "hybrid"
    return "v1" if any((base / name).is_dir() for name in ("cpu", "memory", "cpuset")) else None

"""How much memory this process can use: of the machine, of its control groups, of its own limit.

One answer for everything that asks: how large a dataset must be to be cold, whether buffers or a
model's state fit, and how many times the memory a dataset is. None means that the kernel does not
tell. ``root`` is ``/`` except in tests.
"""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

from . import cgroup


def total_bytes(root: Path = Path("/")) -> int | None:
    """Memory that can really be used, page cache included: the machine's, or its group's limit."""
    limits = (meminfo("MemTotal", root), cgroup.memory_limit_bytes(root))
    return min((limit for limit in limits if limit), default=None)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that can still be taken without swapping.

    The least of what the machine has (proc(5), MemAvailable), of what is left below the limits of
    the control groups, and of what is left below the process's own limit (``ulimit -v``).
    """
    left = (meminfo("MemAvailable", root), cgroup.memory_left_bytes(root), _own_limit())
    return min((value for value in left if value is not None), default=None)


def meminfo(key: str, root: Path = Path("/")) -> int | None:
    """One line of /proc/meminfo, kB turned into bytes."""
    for line in (cgroup.read_text(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        fields = value.split()
        if name == key and fields and fields[0].isdigit():
            return int(fields[0]) * (1024 if fields[1:] == ["kB"] else 1)
    return None


def _own_limit() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    return max(0, limit - address_space_bytes())


def address_space_bytes() -> int:
    """What this process has mapped; 0 where the kernel does not say."""
    pages = (cgroup.read_text(Path("/proc/self/statm")) or "0").split()[0]
    return int(pages) * mmap.PAGESIZE

"""Which cores a rank keeps to, and which library gives it memory."""

from __future__ import annotations

import ctypes.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ..base.errors import UsageError

_LIBRARIES = {
    # Library as the linker knows it, and Debian's package.
    "tcmalloc": ("tcmalloc_minimal", "libtcmalloc-minimal4"),
    "jemalloc": ("jemalloc", "libjemalloc2"),
}

_NODES = Path("/sys/devices/system/node")


def parse_cpus(text: str) -> list[int]:
    """Parse the kernel's list of CPUs, such as ``0-3,8``. Raises ValueError."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def nodes(root: Path = _NODES) -> list[list[int]]:
    """The CPUs of each NUMA node of the host; empty where the kernel shows none."""
    found = sorted(root.glob("node[0-9]*/cpulist"), key=lambda path: int(path.parent.name[4:]))
    return [cpus for path in found if (cpus := parse_cpus(path.read_text()))]


def rank_cpus(
    bind: str, rank: int, world: int, *, allowed: Sequence[int] | None = None
) -> set[int] | None:
    """The CPUs to which a rank and its workers keep; None: all that are allowed.

    ``node``: those of one NUMA node, the ranks taking the nodes in turn. ``cores``: an equal share
    of the allowed cores, neighbours together. Raises UsageError where there are fewer cores than
    ranks.
    """
    usable = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    if bind == "node":
        there = [kept for node in nodes() if (kept := set(node) & set(usable))]
        return there[rank % len(there)] if there else None
    if bind == "cores":
        if len(usable) < world:
            raise UsageError(
                f"accelerator.bind=cores needs a core for each of {world} ranks, but this process "
                f"may use {len(usable)}",
                remedy="use fewer --accelerators, or accelerator.bind=none",
            )
        share = len(usable) // world
        return set(usable[rank * share : (rank + 1) * share])
    return None


def loaded_allocator() -> str:
    """The library that gives memory to this process: tcmalloc, jemalloc or system."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    return next((name for name in _LIBRARIES if f"lib{name}" in mapped), "system")


def use_allocator(wanted: str, command: Sequence[str]) -> None:
    """Start this program again with ``wanted`` as its allocator, unless it has that already.

    ``command``: the arguments of ``iobench``. Does not return if it starts the program again.
    Raises UsageError where the library is not installed, or does not load.
    """
    if changed := allocator_environment(wanted):
        _start_again(changed, command)


def allocator_environment(wanted: str) -> dict[str, str]:
    """The variables with which a process must start to have ``wanted`` as its allocator.

    Empty if this process has it already, since its children then have it, too. Raises UsageError
    where the library is not installed, or does not load.
    """
    if wanted == "system" or loaded_allocator() == wanted:
        return {}
    library, package = _LIBRARIES[wanted]
    path = ctypes.util.find_library(library)
    loaded = os.environ.get("LD_PRELOAD", "")
    if path is None or path in loaded.split():
        raise UsageError(
            f"the allocator {wanted} is not installed (apt-get install {package})"
            if path is None
            else f"{path} did not load",
            remedy="install it, or use accelerator.allocator=system",
        )
    return {"LD_PRELOAD": f"{path} {loaded}".strip()}


def _start_again(changed: dict[str, str], command: Sequence[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    start = [sys.executable, "-m", "iobench", *command]
    os.execve(sys.executable, start, {**os.environ, **changed})

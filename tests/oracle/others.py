"""How much of this machine's CPU other processes took while an oracle ran."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from iobench.judge.rules_ranks import MAX_OTHER_LOAD, MIN_COUNTED_S

CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class Cpu:
    """CPU seconds until a moment: those of all, and those of this process and what it started."""

    at_s: float
    all_s: float
    own_s: float


def cpu_now() -> Cpu:
    """Time that a hypervisor gave to other machines counts as taken by others, too."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    user, nice, system, _, _, irq, softirq, steal = (int(each) for each in fields[1:9])
    ticks = user + nice + system + irq + softirq + steal
    mine = psutil.Process()
    own_s = sum(mine.cpu_times()[:4])
    for child in mine.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            own_s += sum(child.cpu_times()[:4])
    return Cpu(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), own_s)


def cores_of_others(since: Cpu) -> float:
    """How many cores other processes took on average; 0 for a time that is too short to tell."""
    now = cpu_now()
    took_s = now.at_s - since.at_s
    if took_s < MIN_COUNTED_S:
        return 0.0
    return max(0.0, (now.all_s - since.all_s) - (now.own_s - since.own_s)) / took_s


def too_busy(cores: float) -> bool:
    """Whether others took more than a run of iobench allows before it warns."""
    return cores > MAX_OTHER_LOAD * CORES

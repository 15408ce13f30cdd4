"""Nothing that a rank has started outlives it: its process group ends with it.

A rank that is killed can end nothing itself. What its loader has started (workers of a library, or
of the user's own code) would go on, so each rank leads a process group, which its parent kills when
the rank has ended. Where the parent is killed, too, its guard does it: a process that waits for
that. This is done for ranks that run code of others; a process that leaves the group on purpose
(setsid(2)) is not found.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def lead_group() -> int:
    """Make this process the leader of a process group of its own; return the group's number."""
    os.setpgid(0, 0)
    return os.getpid()


def end_groups(ranks: Sequence[int]) -> None:
    """Kill what is left of the process groups that these processes have led.

    Not multiprocessing's resource tracker, which removes what killed processes leave in /dev/shm,
    and then ends.
    """
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError):  # no process, or one that has just ended
            pid = int(entry)
            stat = Path(f"/proc/{pid}/stat").read_text()
            group = int(stat.rpartition(")")[2].split()[2])  # proc(5)
            if group not in ranks or group == os.getpgrp():
                continue
            if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def watch_over(ranks: Sequence[int]) -> int:
    """Start the guard of ranks that this process will start; return its number.

    ``ranks``: their numbers, in memory that is shared with them; each writes its own there. If this
    process is killed, the guard kills the groups of the ranks, and ends. End it with
    ``dismiss`` once the ranks have ended.
    """
    parent = os.getpid()
    guard = os.fork()
    if guard:
        return guard
    try:
        lead_group()  # Ctrl-C is no reason to end
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        while os.getppid() == parent:
            signal.sigwait({signal.SIGTERM})
        end_groups(list(ranks))
    finally:
        os._exit(0)


def dismiss(guard: int) -> None:
    """End the guard."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(guard, signal.SIGKILL)
        os.waitpid(guard, 0)

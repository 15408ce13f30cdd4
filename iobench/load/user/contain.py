"""What the user's code does beside loading stays in its rank's process, and ends with it.

Only a process that belongs to a rank may call this: it changes where the process prints, and ends
what the process has started.
"""

from __future__ import annotations

import multiprocessing.util
import os
import signal
import sys
import threading
import warnings
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

_LAST = 0
"""Priority of the finalizer: before multiprocessing waits for processes that the user started."""


def contain(*, silent: bool) -> None:
    """Print to stderr what the user's code prints, since stdout is for the run's document.

    When the process ends, what it started ends, too, and threads of the user are not waited for.
    ``silent``: the user has seen all this before, so that prints and warnings are dropped.
    """
    sys.stdout.flush()
    target = os.open(os.devnull, os.O_WRONLY) if silent else 2
    os.dup2(target, 1)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
    if silent:
        os.close(target)
        warnings.simplefilter("ignore")
    multiprocessing.util.Finalize(None, end_the_rest, exitpriority=_LAST)


def end_the_rest() -> None:
    """Kill the processes that this one started and has not ended.

    A thread that would keep the process from ending is not waited for.
    """
    end_children()
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    if any(not each.daemon for each in others):
        sys.stderr.flush()
        os._exit(0)


def end_children() -> None:
    """Kill the children of this process, except for multiprocessing's own, which end by themselves.

    Children of children are theirs to end; the workers of a DataLoader do (``die_with_parent``).
    """
    for pid in _children():
        if pid not in _helpers():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _children() -> set[int]:
    """The children of all threads of this process (proc(5), ``/proc/PID/task/TID/children``)."""
    found: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found.update(map(int, listed.read_text().split()))
    return found


def _helpers() -> set[int | None]:
    """Processes in which multiprocessing cleans up and starts others (CPython 3.11 to 3.14)."""
    return {
        getattr(resource_tracker._resource_tracker, "_pid", None),
        getattr(forkserver._forkserver, "_forkserver_pid", None),
    }

"""What a process owes to its parent: it dies with it, and shares nothing with it that breaks.

``die_with_parent`` binds a process to its parent's life. ``watch`` names what a forked
child must drop. The child drops it before any of its code runs and while it has one thread: looking
at the process's number on first use instead is a race, because two threads of a child that find
another number than their own would both drop and make anew.

What the parent has thrown away but not collected yet is never finalised in the child: the
finaliser of a client library's object may wait for a lock that one of the parent's threads held at
the moment of the fork, and nobody in the child releases it.

Which rank a line of the log is of: every process knows its own, and loader workers inherit it.

Modules log through ``logging.getLogger(__name__)``; ``cli/terminal.py`` decides where that goes.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol, TypeVar
from weakref import WeakSet

from .errors import IobenchError

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_S = 0.01


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends (prctl(2), PR_SET_PDEATHSIG).

    ``parent``: the number of the process that started this one; None: what multiprocessing says.
    Where that is no longer the parent, it died before the kernel was asked, and this process ends
    at once. For the kernel, the parent is the thread that started this process, so that thread must
    live as long as the parent.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is None and (by_multiprocessing := multiprocessing.parent_process()) is not None:
        parent = by_multiprocessing.pid
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def stat_fields(pid: int) -> list[str]:
    """What ``/proc/PID/stat`` says after the name (proc(5)): state, parent, group ...

    Nothing where there is no such process, or where it is hidden.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()


def interrupted_with_parent() -> None:
    """Have the kernel send SIGTERM when the process that started this one ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Forked(Protocol):
    def after_fork(self) -> None:
        """In the child: forget the parent's handles, locks and threads without closing them."""


_watched: WeakSet[Forked] = WeakSet()


def watch(instance: Forked) -> None:
    """Call the instance's ``after_fork`` in every child forked from now on, while it lives."""
    _watched.add(instance)


def _in_child() -> None:
    gc.freeze()
    for instance in list(_watched):
        instance.after_fork()


os.register_at_fork(after_in_child=_in_child)


@contextmanager
def alone_on_this_host(name: str, patience_s: float) -> Iterator[bool]:
    """Admit one thread of one process of this host at a time; False: another one stays too long.

    A name in the abstract namespace of Unix sockets (unix(7)) has one owner, and ends with it.
    ``name``: at most 90 bytes.
    """
    deadline = time.monotonic() + patience_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mine:
        while True:
            try:
                mine.bind(f"\0iobench-{name}")
                break
            except OSError:
                if time.monotonic() > deadline:
                    yield False
                    return
            time.sleep(_POLL_S)
        yield True


def in_own_process(
    work: Callable[[], T],
    *,
    failed: Callable[[int | None], IobenchError],
    within_s: float | None = None,
) -> T:
    """Return what ``work`` returns in a forked process of its own.

    Threads of torch and a context of CUDA would not survive the fork of the ranks. Raises the
    IobenchError that it raises, ``failed(exit code)`` if the process dies, and TimeoutError if it
    takes longer than ``within_s``.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, work))
    process.start()
    theirs.close()
    try:
        if within_s is not None and not ours.poll(within_s):
            raise TimeoutError
        found: T | IobenchError = ours.recv()
    except (EOFError, pickle.UnpicklingError):
        process.join()
        raise failed(process.exitcode) from None
    except BaseException:  # Ctrl-C is for this process; the other one need not end its work
        process.kill()
        raise
    finally:
        ours.close()
        process.join()
    if isinstance(found, IobenchError):
        raise found
    return found


def _send(pipe: Connection, work: Callable[[], object]) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pipe.send(work())
    except IobenchError as error:
        pipe.send(error)


_rank: int | None = None


def set_rank(number: int) -> None:
    """From now on this process, and what it forks, is of this rank."""
    global _rank
    _rank = number


def rank() -> int | None:
    """Of this process; None where it is of no rank."""
    return _rank

"""Work that may take too much memory, or end its process, done in a child process."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from iobench.base.errors import IobenchError
from iobench.host.resources import PeakMemory


class Ended(NamedTuple):
    """What a child's work came to: its value, or the one error of iobench's that it raised.

    ``extra_bytes``: resident memory at its peak, above what the child began with.
    """

    value: Any
    error: IobenchError | None
    extra_bytes: int


def in_child(work: Callable[[], Any], *, room: int = 4 << 30) -> Ended:
    """Do ``work`` in a forked child that may take ``room`` bytes more of address space.

    Fails where the child dies, or raises anything but an IobenchError.
    """
    ours, theirs = os.pipe()
    with warnings.catch_warnings():  # of threads that the parent has; the child uses none of them
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            try:
                answer = pickle.dumps(_worked(work, room))
            except BaseException as error:
                answer = pickle.dumps(f"{type(error).__name__}: {error}")
            with os.fdopen(theirs, "wb") as pipe:
                pipe.write(answer)
        finally:  # even where nobody reads the answer: it must not go on as a test process
            os._exit(0)
    os.close(theirs)
    try:
        with os.fdopen(ours, "rb") as pipe:
            text = pipe.read()
    except BaseException:  # the test took too long
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    assert not os.WIFSIGNALED(status), f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    found = pickle.loads(text)
    assert isinstance(found, Ended), found
    return found


def _worked(work: Callable[[], Any], room: int) -> Ended:
    with open("/proc/self/statm") as file:
        have = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (have + room, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    peak = PeakMemory()
    value = error = None
    try:
        value = work()
    except IobenchError as raised:
        error = raised
    extra = peak.extra_bytes()
    assert extra is not None, "this kernel does not tell the peak of memory"
    return Ended(value, error, extra)

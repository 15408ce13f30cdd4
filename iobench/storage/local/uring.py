"""A ring of io_uring, from numpy arrays and three system calls: no library, nothing to compile.

Requests are written as records of one array, and all of them enter the kernel in one system call,
which also waits for completions. Without a kernel thread that polls (IORING_SETUP_SQPOLL) the
kernel reads and writes the queues only within these calls, so that Python needs no memory
barriers. Source: io_uring(7), io_uring_setup(2), io_uring_enter(2), linux/io_uring.h.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from functools import cache

import numpy as np
import numpy.typing as npt

OPENAT, READ, ASYNC_CANCEL = 18, 22, 14
"""Kinds of requests (enum io_uring_op)."""

REQUEST = np.dtype(
    [
        ("opcode", "u1"),
        ("flags", "u1"),
        ("ioprio", "u2"),
        ("fd", "i4"),
        ("offset", "u8"),
        ("address", "u8"),
        ("length", "u4"),
        ("options", "u4"),  # of OPENAT: the flags of open(2)
        ("user", "u8"),  # comes back with the completion
        ("rest", "u8", 3),
    ]
)
"""struct io_uring_sqe."""

COMPLETION = np.dtype([("user", "u8"), ("result", "i4"), ("flags", "u4")])
"""struct io_uring_cqe. ``result``: as the system call returns it, or minus its errno."""

_SETUP, _ENTER = 425, 426  # the same on every architecture but alpha
_GETEVENTS = 1
_SINGLE_ISSUER, _DEFER_TASKRUN = 1 << 12, 1 << 13
_CANCEL_ALL, _CANCEL_ANY = 1, 4
_REQUESTS_AT = 0x10000000  # IORING_OFF_SQES
_ONE_MAPPING = 1  # IORING_FEAT_SINGLE_MMAP
_MASK = 0xFFFFFFFF

_libc = ctypes.CDLL(None, use_errno=True)


class _Offsets(ctypes.Structure):
    """Where the fields of one queue are (struct io_sqring_offsets, io_cqring_offsets)."""

    _fields_ = tuple((f"f{n}", ctypes.c_uint32) for n in range(10))


class _Params(ctypes.Structure):
    """struct io_uring_params."""

    _fields_ = (
        *((f"{name}", ctypes.c_uint32) for name in ("requests", "completions", "flags")),
        *((f"{name}", ctypes.c_uint32) for name in ("cpu", "idle", "features", "queue")),
        ("reserved", ctypes.c_uint32 * 3),
        ("sq", _Offsets),
        ("cq", _Offsets),
    )


@cache
def refused() -> str | None:
    """Why this process cannot use io_uring, or None if it can.

    A container's seccomp filter and ``kernel.io_uring_disabled`` refuse it.
    """
    try:
        Ring(1).close()
    except OSError as error:
        return f"the kernel refuses io_uring ({error.strerror})"
    return None


class Ring:
    """A ring for up to ``entries`` requests at a time. For the thread that makes it.

    Raises OSError if the kernel refuses it.
    """

    def __init__(self, entries: int) -> None:
        params, fd = _Params(), -1
        # With the first flags, completions are posted only while this thread waits for them, which
        # saves interrupts. Kernels before 6.1 do not know them.
        for flags in (_SINGLE_ISSUER | _DEFER_TASKRUN, 0):
            params = _Params(flags=flags)
            fd = _libc.syscall(_SETUP, entries, ctypes.byref(params))
            if fd >= 0 or ctypes.get_errno() != errno.EINVAL:
                break
        if fd < 0:
            raise _last_error()
        self._fd = fd
        self._thread = threading.get_ident()
        self._pid = os.getpid()
        os.set_inheritable(fd, False)
        if not params.features & _ONE_MAPPING:
            os.close(fd)
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        heads = [getattr(params.sq, f"f{n}") for n in range(10)]
        tails = [getattr(params.cq, f"f{n}") for n in range(10)]
        nbytes = max(heads[6] + 4 * params.requests, tails[5] + 16 * params.completions)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        queues = mmap.mmap(fd, -(-nbytes // 4) * 4, flags=flags, offset=0)
        requests = mmap.mmap(fd, 64 * params.requests, flags=flags, offset=_REQUESTS_AT)
        words = np.frombuffer(queues, np.uint32, nbytes // 4)
        self.entries = int(params.requests)
        # The kernel's own numbers: of requests taken and given, of completions given and taken.
        self._taken = words[heads[0] // 4 : heads[0] // 4 + 1]
        self._given = words[heads[1] // 4 : heads[1] // 4 + 1]
        self._collected = words[tails[0] // 4 : tails[0] // 4 + 1]
        self._completed = words[tails[1] // 4 : tails[1] // 4 + 1]
        words[heads[6] // 4 :][: params.requests] = np.arange(params.requests, dtype=np.uint32)
        self._completions = np.frombuffer(queues, COMPLETION, params.completions, tails[5])
        self._requests = np.frombuffer(requests, REQUEST, params.requests)
        self._tail = 0

    @property
    def mine(self) -> bool:
        """Whether this thread of this process may use the ring."""
        return self._thread == threading.get_ident() and self._pid == os.getpid()

    @property
    def in_flight(self) -> int:
        """Requests that the kernel has taken and not completed."""
        return (int(self._taken[0]) - int(self._completed[0])) & _MASK

    def put(self, requests: npt.NDArray[np.void]) -> None:
        """Add requests, at most ``entries`` between two calls of ``enter``."""
        at = np.arange(self._tail, self._tail + len(requests)) % self.entries
        self._requests[at] = requests
        self._tail = (self._tail + len(requests)) & _MASK
        self._given[0] = self._tail

    def enter(self, wait: int) -> None:
        """Hand over all requests that were added, and wait for ``wait`` completions.

        Returns earlier if a signal arrives. Raises OSError.
        """
        more = (self._tail - int(self._taken[0])) & _MASK
        flags = _GETEVENTS
        if _libc.syscall(_ENTER, self._fd, more, wait, flags, None, 0) < 0:
            error = _last_error()
            if error.errno not in (errno.EINTR, errno.EAGAIN, errno.EBUSY):
                raise error

    def collect(self) -> npt.NDArray[np.void]:
        """Return the completions that nobody has collected yet."""
        head, tail = int(self._collected[0]), int(self._completed[0])
        at = np.arange(head, head + ((tail - head) & _MASK)) % len(self._completions)
        found = self._completions[at]
        self._collected[0] = tail
        return found

    def cancel_all(self) -> None:
        """Cancel every request that the kernel has not begun; each still has its completion."""
        request = np.zeros(1, REQUEST)
        request["opcode"], request["options"] = ASYNC_CANCEL, _CANCEL_ALL | _CANCEL_ANY
        request["user"] = NOBODY
        self.put(request)

    def close(self) -> None:
        """Give the ring back. The caller has waited for all requests."""
        fd, self._fd = self._fd, -1
        os.close(fd)
        # The mappings hold descriptors as well.
        del self._taken, self._given, self._collected, self._completed
        del self._completions, self._requests

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()


NOBODY = (1 << 64) - 1
"""``user`` of a completion that nobody waits for."""


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))

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
from typing import Any

import numpy as np
import numpy.typing as npt

READ_FIXED, TIMEOUT, ASYNC_CANCEL, OPENAT, CLOSE, READ = 4, 11, 14, 18, 19, 22
"""Kinds of requests (enum io_uring_op)."""

FIXED_FILE, HARDLINK = 1 << 0, 1 << 3
"""Flags of a request: ``fd`` is the place of a registered file; the next request begins when this
one has ended, however it ended."""

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
        ("user", "i8"),  # comes back with the completion
        ("buffer", "u2"),  # of READ_FIXED: the place of the registered memory
        ("personality", "u2"),
        ("place", "u4"),  # of OPENAT and CLOSE: 1 + the place of a registered file; 0: none
        ("rest", "u8", 2),
    ]
)
"""struct io_uring_sqe."""

_WORDS = REQUEST.itemsize // 8

COMPLETION = np.dtype([("user", "i8"), ("result", "i4"), ("flags", "u4")])
"""struct io_uring_cqe. ``result``: as the system call returns it, or minus its errno."""

_SETUP, _ENTER, _REGISTER = 425, 426, 427  # the same on every architecture but alpha
_GETEVENTS, _LIMITED_WAIT = 1 << 0, 1 << 3  # IORING_ENTER_GETEVENTS, IORING_ENTER_EXT_ARG
_SINGLE_ISSUER, _DEFER_TASKRUN = 1 << 12, 1 << 13
_CANCEL_ALL, _CANCEL_ANY = 1, 4
_UPDATE_FILES, _SET_FILES, _SET_BUFFERS, _UPDATE_BUFFERS = 6, 13, 15, 16
"""Kinds of registrations (enum io_uring_register_op)."""
_SPARSE = 1  # IORING_RSRC_REGISTER_SPARSE
_REQUESTS_AT = 0x10000000  # IORING_OFF_SQES
_ONE_MAPPING, _LIMITS_WAITS = 1 << 0, 1 << 8  # IORING_FEAT_SINGLE_MMAP, IORING_FEAT_EXT_ARG
_LONGEST_WAIT_S = 1
_AT_ONCE: tuple[int, Any, Any] = _GETEVENTS, None, 0
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


class _Register(ctypes.Structure):
    """struct io_uring_rsrc_register."""

    _fields_ = (
        ("count", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint64),
        ("values", ctypes.c_uint64),
        ("tags", ctypes.c_uint64),
    )


class _Update(ctypes.Structure):
    """struct io_uring_rsrc_update2."""

    _fields_ = (
        ("offset", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("values", ctypes.c_uint64),
        ("tags", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("also_reserved", ctypes.c_uint32),
    )


class _Memory(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class _Timespec(ctypes.Structure):
    """struct __kernel_timespec."""

    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


class _WaitLimit(ctypes.Structure):
    """struct io_uring_getevents_arg."""

    _fields_ = (
        ("signals", ctypes.c_uint64),
        ("signal_bytes", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("time", ctypes.c_uint64),
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
        words = memoryview(queues).cast("I")
        self.entries = int(params.requests)
        # The kernel's own numbers: of requests taken and given, of completions given and taken.
        self._taken, self._given = words[heads[0] // 4 :], words[heads[1] // 4 :]
        self._collected, self._completed = words[tails[0] // 4 :], words[tails[1] // 4 :]
        order = np.arange(params.requests, dtype=np.uint32)
        np.frombuffer(words, np.uint32)[heads[6] // 4 :][: len(order)] = order
        completions = np.frombuffer(queues, COMPLETION, params.completions, tails[5])
        self._users, self._results = completions["user"], completions["result"]
        self._few = completions.view(np.int64).data
        self._requests = np.frombuffer(requests, np.uint64).reshape(-1, _WORDS)
        self._tail = self._seen = 0
        self._time = _Timespec(seconds=_LONGEST_WAIT_S)
        limit = _WaitLimit(time=ctypes.addressof(self._time))
        # The last arguments of a call that waits; kernels before 5.11 know no limit.
        self._waiting = _AT_ONCE
        if params.features & _LIMITS_WAITS:
            nbytes = ctypes.c_size_t(ctypes.sizeof(limit))  # all of a word: it goes over the stack
            self._waiting = _GETEVENTS | _LIMITED_WAIT, ctypes.byref(limit), nbytes

    @property
    def mine(self) -> bool:
        """Whether this thread of this process may use the ring."""
        return self._thread == threading.get_ident() and self._pid == os.getpid()

    @property
    def left(self) -> bool:
        """Whether requests of this process are in flight that this thread can't wait for."""
        return self._fd >= 0 and self._pid == os.getpid() and not self.mine and self.awaited > 0

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    @property
    def awaited(self) -> int:
        """Requests that were added and not completed."""
        return (self._tail - self._completed[0]) & _MASK

    def put(self, requests: npt.NDArray[np.void]) -> None:
        """Add requests, at most ``entries`` between two calls of ``enter``."""
        given = requests.view(np.uint64).reshape(-1, _WORDS)  # to copy records costs more
        start = self._tail & (self.entries - 1)
        first = self.entries - start
        if len(given) <= first:
            self._requests[start : start + len(given)] = given
        else:
            self._requests[start:] = given[:first]
            self._requests[: len(given) - first] = given[first:]
        self._given[0] = self._tail = (self._tail + len(given)) & _MASK

    def enter(self, wait: int) -> None:
        """Hand over all requests that were added, and wait for ``wait`` completions.

        Returns earlier if a signal arrives, and after a second: a signal that arrives just before
        the system call does not end it. Raises OSError.
        """
        more = (self._tail - self._taken[0]) & _MASK
        how = self._waiting if wait else _AT_ONCE
        if _libc.syscall(_ENTER, self._fd, more, wait, *how) < 0:
            error = _last_error()
            if error.errno not in (errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ETIME):
                raise error

    @property
    def completed(self) -> int:
        """Completions that are there and were not dropped."""
        return (self._completed[0] - self._collected[0]) & _MASK

    def completions(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the ``user`` and the result of each completion; they stay there until ``drop``."""
        self._seen = self._completed[0]
        count = (self._seen - self._collected[0]) & _MASK
        start = self._collected[0] & (len(self._users) - 1)
        user, result = self._users[start : start + count], self._results[start : start + count]
        if len(user) < count:
            rest = count - len(user)
            user = np.concatenate((user, self._users[:rest]))
            result = np.concatenate((result, self._results[:rest]))
        return user.copy(), result.astype(np.int64)

    def few_completions(self) -> list[tuple[int, int]]:
        """As ``completions``, and faster for a few: the ``user`` and the result of each."""
        self._seen = self._completed[0]
        first, mask = self._collected[0], len(self._users) - 1
        found = []
        for number in range(first, first + ((self._seen - first) & _MASK)):
            at = 2 * (number & mask)
            result = self._few[at + 1] & _MASK
            found.append((self._few[at], result - (result >> 31 << 32)))
        return found

    def drop(self) -> None:
        """Drop the completions that were returned last."""
        self._collected[0] = self._seen

    def cancel_all(self) -> None:
        """Cancel every request that the kernel has not begun; each still has its completion."""
        request = np.zeros(1, REQUEST)
        request["opcode"], request["options"] = ASYNC_CANCEL, _CANCEL_ALL | _CANCEL_ANY
        request["user"] = NOBODY
        self.put(request)

    def keep_places(self, count: int) -> bool:
        """Make ``count`` places for registered files, whose use costs less than a descriptor's.

        False where the kernel is older than 5.19.
        """
        wanted = _Register(count=count, flags=_SPARSE)
        return self._register(_SET_FILES, wanted, ctypes.sizeof(wanted))

    def set_place(self, place: int, fd: int) -> None:
        """Register this file at a place; -1 empties it. The descriptor may then be closed.

        Raises OSError.
        """
        number = ctypes.c_int32(fd)
        update = _Update(offset=place, values=ctypes.addressof(number))
        if not self._register(_UPDATE_FILES, update, 1):
            raise _last_error()

    def keep_buffers(self, count: int) -> bool:
        """Make ``count`` places for registered memory.

        False where the kernel is older than 5.19.
        """
        wanted = _Register(count=count, flags=_SPARSE)
        return self._register(_SET_BUFFERS, wanted, ctypes.sizeof(wanted))

    def set_buffer(self, place: int, address: int, nbytes: int) -> bool:
        """Register memory at a place: its pages are pinned until the ring is closed.

        So the memory must not be freed before. At most ``LARGEST_BUFFER`` bytes. False if the
        kernel refuses it, as it does beyond the memory that this user may lock.
        """
        memory = _Memory(address, nbytes)
        update = _Update(offset=place, values=ctypes.addressof(memory), count=1)
        return self._register(_UPDATE_BUFFERS, update, ctypes.sizeof(update))

    def _register(self, what: int, argument: Any, count: int) -> bool:
        return int(_libc.syscall(_REGISTER, self._fd, what, ctypes.byref(argument), count)) >= 0

    def close(self) -> None:
        """Give the ring back. The caller has waited for all requests."""
        fd, self._fd = self._fd, -1
        os.close(fd)
        # The mappings hold descriptors as well.
        del self._taken, self._given, self._collected, self._completed
        del self._users, self._results, self._few, self._requests

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) < 0 or os is None:  # None at the interpreter's end
            return
        if self.left:
            return  # to close it would not stop what the kernel does
        if self.mine:
            self.await_all()
        self.close()

    def await_all(self) -> None:
        """Cancel what the kernel has not begun, and wait for all that it has; drop completions."""
        if not self.awaited:
            return
        self.cancel_all()
        self.enter(0)
        while self.awaited:  # counted by the kernel
            self.enter(1)
            self.completions()
            self.drop()


LARGEST_BUFFER = 1 << 30
"""Bytes of registered memory at one place."""

NOBODY = -1
"""``user`` of a completion that nobody waits for."""


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))

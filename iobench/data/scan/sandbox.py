"""One child process that parses the metadata of files of others, with limits of memory and time.

Libraries such as pyarrow and h5py may end their process over a damaged file, allocate what it
claims, or never return. So a scan lets a child find the samples. The child is forked, which takes
milliseconds; it serves one file after another, and is replaced when it dies. It is given no file:
it asks for ranges of bytes, and the parent reads them from the storage. What comes back is a
document of JSON and a few arrays of numbers, never a pickle.

The child keeps no open file or connection of its parent, dumps no core, and ends with its parent.
Where the kernel lets users make namespaces (unshare(2)), it has no network either. It keeps the
user's rights to open files by their paths.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np

from ...base.buffers import Buffer
from ...base.limits import SANDBOX_BYTES, SANDBOX_BYTES_PER_S, SANDBOX_S, plausible
from ...base.memory import address_space_bytes
from ...base.processes import die_with_parent
from ...storage.files import ByteSource, ReadWindow
from .samples import ShardSamples, damaged

_SIZE = struct.Struct("<Q")
_RANGE = struct.Struct("<QQ")
_ASKS, _FAILED, _FOUND = b"R", b"E", b"D"
"""The first byte of what the child sends: a range that it wants, an error, or the document."""

_COLUMNS: dict[str, Any] = {
    "offset": np.int64,
    "stored": np.int64,
    "size": np.int64,
    "deflated": np.bool_,
}
_DOCUMENT_BYTES = 64 << 20
_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # linux/sched.h


Finder = Callable[[ByteSource, int], ShardSamples]
"""Finds the samples of a file of so many bytes. Raises ValueError that says why it can't."""


class Sandbox:
    """Finds samples in a child process. Not thread-safe.

    The child is forked at once, so make this before the process has threads.
    """

    def __init__(self, find: Finder) -> None:
        self._find = find
        self._start()

    def samples(self, window: ReadWindow, key: str, size: int) -> ShardSamples:
        """Find the samples of the file that the window has opened.

        Raises DatasetError naming a file that can't be read, or with which the child died, hung or
        took too much memory; StorageError.
        """
        if not self._end.alive:
            self._start()
        left_s = SANDBOX_S + size / SANDBOX_BYTES_PER_S
        try:
            found = self._answer(window, size, left_s)
        except TimeoutError:
            self._end()
            raise damaged(key, f"reading it took more than {left_s:.0f} s") from None
        except (OSError, EOFError, ValueError, TypeError, KeyError):
            raise damaged(key, f"the process that read it {self._end()}") from None
        except BaseException:  # an error of the storage, or Ctrl-C: the child waits for bytes
            self._end()
            raise
        if isinstance(found, str):
            raise damaged(key, found)
        return found

    def _answer(self, window: ReadWindow, size: int, left_s: float) -> ShardSamples | str:
        """Give the child the bytes that it asks for; return what it found, or why it could not."""
        pipe = self._pipe
        pipe.send_bytes(_SIZE.pack(size))
        while True:
            begun = time.monotonic()
            message = _message(pipe, _DOCUMENT_BYTES, left_s)
            left_s -= time.monotonic() - begun
            kind, body = message[:1], message[1:]
            if kind == _FAILED:
                return " ".join(body.decode("utf-8", "replace").split())
            if kind == _FOUND:
                return _received(pipe, json.loads(body), size, left_s)
            start, end = _RANGE.unpack(body)
            if not start <= end <= size:
                raise ValueError(f"the child asks for bytes {start} to {end} of {size}")
            pipe.send_bytes(window.apart(start, end))

    def _start(self) -> None:
        self._pipe, theirs = Pipe()
        parent = os.getpid()
        with warnings.catch_warnings():  # of threads of the parent, none of which the child uses
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _serve(theirs, self._find, parent)
        theirs.close()
        self._end = weakref.finalize(self, _ended, self._pipe, child, parent)


def _ended(pipe: Connection, child: int, parent: int) -> str:
    """End the child, if it still lives; return how it ended."""
    if os.getpid() != parent:  # a process that was forked from the parent later
        return ""
    pipe.close()
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        return f"ended with status {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    return f"was killed by signal {number} ({signal.strsignal(number)})"


def _message(pipe: Connection, most: int, left_s: float) -> bytes:
    if not pipe.poll(max(0.0, left_s)):
        raise TimeoutError
    return pipe.recv_bytes(most)


def _received(pipe: Connection, document: dict[str, Any], size: int, left_s: float) -> ShardSamples:
    """Receive the columns, and check that all samples lie in the file."""
    columns = {
        name: np.frombuffer(_message(pipe, plausible(size), left_s), _COLUMNS[name])
        for name in document["columns"]
    }
    offset, stored, sizes = (columns[name] for name in ("offset", "stored", "size"))
    if len({len(column) for column in columns.values()}) > 1 or (
        len(offset)
        and (
            min(int(column.min()) for column in (offset, stored, sizes)) < 0
            or int((offset + stored).max()) > size
        )
    ):
        raise ValueError("the samples lie outside of the file")
    return ShardSamples(
        **columns,
        suffixes=frozenset(map(str, document["suffixes"])),
        nbytes=int(document["nbytes"]),
        blocks=tuple(map(int, document["blocks"])),
        codecs=Counter(document["codecs"]),
        notes=Counter(document["notes"]),
    )


# In the child


class _Asked:
    """A file of which the parent reads the bytes."""

    def __init__(self, pipe: Connection, at_first: int) -> None:
        """``at_first``: the address space of the child when it was started, in bytes."""
        self._pipe = pipe
        self._most = at_first + SANDBOX_BYTES
        _limit(resource.RLIMIT_AS, self._most)

    def apart(self, start: int, end: int) -> Buffer:
        _limit(resource.RLIMIT_AS, self._most + 2 * (end - start))
        self._pipe.send_bytes(_ASKS + _RANGE.pack(start, end))
        return memoryview(self._pipe.recv_bytes())


def _serve(pipe: Connection, find: Finder, parent: int) -> NoReturn:
    try:
        _confine(pipe.fileno(), parent)
        at_first = address_space_bytes()
        while True:
            (size,) = _SIZE.unpack(pipe.recv_bytes())
            _limit(
                resource.RLIMIT_CPU,
                int(time.process_time() + SANDBOX_S + size / SANDBOX_BYTES_PER_S) + 1,
            )
            try:
                found = find(_Asked(pipe, at_first), size)
            except MemoryError:
                pipe.send_bytes(_FAILED + b"it takes too much memory")
            except ValueError as error:
                pipe.send_bytes(_FAILED + str(error).encode("utf-8", "replace"))
            except Exception as error:
                text = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
                pipe.send_bytes(_FAILED + text.encode("utf-8", "replace"))
            else:
                _send(pipe, found)
    finally:
        os._exit(1)


def _send(pipe: Connection, found: ShardSamples) -> None:
    columns = [name for name in _COLUMNS if getattr(found, name) is not None]
    document = {
        "columns": columns,
        "suffixes": sorted(found.suffixes),
        "nbytes": found.nbytes,
        "blocks": found.blocks,
        "codecs": found.codecs,
        "notes": found.notes,
    }
    pipe.send_bytes(_FOUND + json.dumps(document, default=int).encode())
    for name in columns:
        pipe.send_bytes(np.ascontiguousarray(getattr(found, name), _COLUMNS[name]).tobytes())


def _confine(keep: int, parent: int) -> None:
    """Give up what the child does not need."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.closerange(3, keep)
    os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
    ctypes.CDLL(None).unshare(_NEW_USER | _NEW_NET)


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, hard))

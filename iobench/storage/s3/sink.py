"""An object going up: one PUT, or parts in parallel where it is larger than one part."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Event, Semaphore
from typing import Protocol

from ..base import Buffer
from .errors import Failure, Kind
from .threads import Threads

PARTS = 4
"""Parts of one object that are on their way at once."""

_MOST_PARTS = 10_000
"""S3's limit for one object."""

_LEAST_PART = 5 << 20
"""S3 refuses smaller ones, but for the last."""

_FIRST_BUFFER = 64 << 10

_GRACE_S = 2.0
"""How long a failed upload is waited for."""


class Target(Protocol):
    """Where one object goes; every call is sent again as far as that helps, and raises Failure."""

    def put(self, data: bytearray) -> None: ...

    def start(self) -> str: ...

    def part(self, upload: str, number: int, data: bytearray, stop: Event) -> str: ...

    def finish(self, upload: str, etags: list[str], size: int) -> None: ...

    def abort(self, upload: str) -> None: ...


class UploadSink:
    """Holds at most PARTS + 1 parts in memory. ``write`` waits where PARTS of them are on their way."""

    def __init__(self, target: Target, threads: Threads, *, part_size: int, size_hint: int) -> None:
        self._target = target
        self._threads = threads
        self._part_size = max(part_size, -(-size_hint // _MOST_PARTS))
        self._buffer = bytearray(min(self._part_size, max(size_hint, _FIRST_BUFFER)))
        self._filled = 0
        self._size = 0
        self._upload = ""
        self._parts: list[Future[str]] = []
        self._room = Semaphore(PARTS)
        self._stop = Event()

    def write(self, data: bytes | Buffer) -> None:
        source = memoryview(data).cast("B")
        self._size += len(source)
        while len(source):
            if self._filled == self._part_size:
                self._send()
            if self._filled == len(self._buffer):
                self._grow(self._filled + len(source))
            count = min(len(self._buffer) - self._filled, len(source))
            self._buffer[self._filled : self._filled + count] = source[:count]
            self._filled += count
            source = source[count:]

    def _grow(self, wanted: int) -> None:
        size = min(self._part_size, max(wanted, 2 * len(self._buffer)))
        self._buffer.extend(bytes(size - len(self._buffer)))

    def _send(self) -> None:
        if not self._upload:
            self._upload = self._target.start()
        if len(self._parts) == _MOST_PARTS:
            raise Failure(
                Kind.OTHER,
                detail=f"it has more than {_MOST_PARTS} parts: raise the option part_size",
            )
        self._room.acquire()
        if failed := next((part for part in self._parts if part.done() and part.exception()), None):
            failed.result()
        data, number = self._buffer, len(self._parts) + 1
        del data[self._filled :]
        self._buffer, self._filled = bytearray(), 0

        def go() -> str:
            try:
                return self._target.part(self._upload, number, data, self._stop)
            finally:
                self._room.release()

        self._parts.append(self._threads.submit(go))
        self._buffer = bytearray(self._part_size)

    def commit(self) -> None:
        if not self._upload:
            del self._buffer[self._filled :]
            self._target.put(self._buffer)
            return
        if self._filled:
            self._send()
        self._buffer = bytearray()
        self._target.finish(self._upload, [part.result() for part in self._parts], self._size)

    def abort(self) -> None:
        """Nothing is left of the upload, unless the server is gone: then this does not wait for ever, and discard_unfinished finds it."""
        self._stop.set()
        if self._upload:
            _for_a_while(self._abort)

    def _abort(self) -> None:
        wait(
            [part for part in self._parts if not part.cancel()]
        )  # else they would come after the abort, and stay
        try:
            self._target.abort(self._upload)
        except Failure:
            pass  # the first failure is already on its way to the user


class ParallelUpload:
    """An object of known size: each block is a part (the only one is a PUT), sent by the thread that brings it, which holds one copy."""

    alignment = 1

    def __init__(self, target: Target, *, size: int, block_size: int) -> None:
        self.block_size = max(block_size, _LEAST_PART, -(-size // _MOST_PARTS))
        self._target = target
        self._size = size
        self._etags = [""] * -(-size // self.block_size)
        self._whole = bytearray()
        self._stop = Event()
        self._upload = target.start() if size > self.block_size else ""

    def write_at(self, offset: int, data: Buffer) -> None:
        copy = bytearray(
            data
        )  # a request may be sent again, and its library may look at the bytes again
        if not self._upload:
            self._whole = copy
            return
        number = offset // self.block_size
        self._etags[number] = self._target.part(self._upload, number + 1, copy, self._stop)

    def commit(self) -> None:
        if not self._upload:
            self._target.put(self._whole)
            return
        self._target.finish(self._upload, self._etags, self._size)

    def abort(self) -> None:
        self._stop.set()
        if self._upload:
            _for_a_while(self._abort)

    def _abort(self) -> None:
        try:
            self._target.abort(self._upload)
        except Failure:
            pass  # the first failure is already on its way to the user


def _for_a_while(call: Callable[[], None]) -> None:
    """A call in a thread of its own (those of the parts may be stuck), which ends with it; waited for no longer than the grace."""
    threads = Threads(1, "iobench-abort")
    done = threads.submit(call)
    threads.close()
    wait([done], timeout=_GRACE_S)

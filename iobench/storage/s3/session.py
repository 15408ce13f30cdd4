"""The open client of one S3 storage in one process, and uploads through it.

An upload is one PUT, or parts in parallel for an object larger than one part.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from threading import Event, Semaphore
from typing import Protocol

from ..base import Buffer
from .clients import make_client
from .clients.base import Client
from .connection import Deletions
from .errors import Failure, Kind, Retrier
from .options import S3Options
from .threads import Threads

PARTS = 4
"""How many parts of one object are sent at the same time."""

_MAX_PARTS = 10_000
"""S3's limit for one object (Amazon S3 user guide, "Amazon S3 multipart upload limits")."""

_MIN_PART_BYTES = 5 << 20
"""S3 refuses smaller parts, except for the last one."""

_FIRST_BUFFER = 64 << 10

_ABORT_WAIT_S = 2.0
"""Longest wait for the abort of a failed upload."""


class UploadTarget(Protocol):
    """The requests that upload one object.

    Each request is retried as far as that helps, and raises Failure.
    """

    def put(self, data: bytearray) -> None: ...

    def start(self) -> str: ...

    def part(self, upload: str, number: int, data: bytearray, stop: Event) -> str: ...

    def finish(self, upload: str, etags: list[str], size: int) -> None: ...

    def abort(self, upload: str) -> None: ...


class _Upload:
    """An upload that can be aborted. ``_upload`` is '' as long as there is nothing to abort."""

    _target: UploadTarget
    _upload: str
    _stop: Event
    _parts: Sequence[Future[str]] = ()

    def abort(self) -> None:
        """Abort the upload on the server, so that nothing of it is left.

        If the server does not answer, this gives up after a while; ``discard_unfinished`` then
        finds the upload.
        """
        self._stop.set()
        if self._upload:
            _call_with_time_limit(self._abort)

    def _abort(self) -> None:
        # A part that arrived after the abort would stay on the server.
        wait([part for part in self._parts if not part.cancel()])
        with suppress(Failure):  # the first failure has already been raised
            self._target.abort(self._upload)


class UploadSink(_Upload):
    """Holds at most PARTS + 1 parts in memory; ``write`` waits while PARTS parts are being sent."""

    def __init__(
        self, target: UploadTarget, threads: Threads, *, part_size: int, size_hint: int
    ) -> None:
        self._target = target
        self._threads = threads
        self._part_size = max(part_size, -(-size_hint // _MAX_PARTS))
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
        if len(self._parts) == _MAX_PARTS:
            raise Failure(
                Kind.OTHER,
                detail=f"the object needs over {_MAX_PARTS} parts: raise the option part_size",
            )
        self._room.acquire()
        if failed := next((part for part in self._parts if part.done() and part.exception()), None):
            failed.result()
        data, number = self._buffer, len(self._parts) + 1
        del data[self._filled :]
        self._buffer, self._filled = bytearray(), 0

        def send() -> str:
            try:
                return self._target.part(self._upload, number, data, self._stop)
            finally:
                self._room.release()

        self._parts.append(self._threads.submit(send))
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


class ParallelUpload(_Upload):
    """The upload of an object of known size; each block is a part (a single one: a PUT).

    A block is sent by the thread that writes it, which holds one copy of it.
    """

    alignment = 1

    def __init__(self, target: UploadTarget, *, size: int, block_size: int) -> None:
        self.block_size = max(block_size, _MIN_PART_BYTES, -(-size // _MAX_PARTS))
        self._target = target
        self._size = size
        self._etags = [""] * -(-size // self.block_size)
        self._whole = bytearray()
        self._stop = Event()
        self._upload = target.start() if size > self.block_size else ""

    def write_at(self, offset: int, data: Buffer) -> None:
        # A copy, since the request may be retried after the caller has reused its memory.
        copy = bytearray(data)
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


def _call_with_time_limit(call: Callable[[], None]) -> None:
    """Run the call in a new thread, and wait at most ``_ABORT_WAIT_S`` for it.

    The upload's own threads may be stuck.
    """
    threads = Threads(1, "iobench-abort")
    done = threads.submit(call)
    threads.close()
    wait([done], timeout=_ABORT_WAIT_S)


ENFORCED, IGNORED, REFUSED, UNKNOWN = (
    "enforced",
    "ignored by the server",
    "refused by the server",
    "not checked",
)
"""What the server does with a conditional write (``If-None-Match: *``)."""

_MAX_PROBE_BYTES = 1 << 20
"""The first new object up to this size is written twice, to see whether the server refuses the
second write."""


class Session:
    """Made in the process that uses it. Thread-safe. Raises Failure, UsageError."""

    def __init__(self, options: S3Options, bucket: str, conditional: str, retrier: Retrier) -> None:
        self.pid = os.getpid()
        self.conditional = conditional
        self.retrier = retrier
        self.client: Client = make_client(options, bucket)
        self.uploads = Threads(PARTS, "iobench-upload")
        self.deletions: Deletions | None = None

    def close(self) -> None:
        self.uploads.close()
        if self.deletions is not None:
            self.deletions.close()
        self.client.close()


class NewObject:
    """The upload of an object whose key must not exist yet.

    Adds the condition to each request, and says what a retry may find. Every method raises Failure.
    """

    def __init__(self, session: Session, key: str) -> None:
        self._session = session
        self._client = session.client
        self._key = key

    def refuse_existing(self) -> None:
        """Raises Failure of Kind.EXISTS if the key exists."""
        try:
            self._session.retrier.run(lambda _: self._client.head(self._key))
        except Failure as failure:
            # Without the right to list, AWS answers 403 for a missing object: the write decides.
            if failure.kind in (Kind.MISSING, Kind.DENIED):
                return
            raise
        raise Failure(Kind.EXISTS)

    def put(self, data: bytearray) -> None:
        session = self._session
        if session.conditional != ENFORCED:
            self.refuse_existing()
        try:
            self._put(data, only_new=session.conditional != REFUSED)
        except Failure as failure:
            if failure.kind is not Kind.UNSUPPORTED or session.conditional == REFUSED:
                raise
            session.conditional = REFUSED
            self._put(data, only_new=False)
        if session.conditional == UNKNOWN and len(data) <= _MAX_PROBE_BYTES:
            session.conditional = self._probe(data)

    def _put(self, data: bytearray, *, only_new: bool) -> None:
        def put(number: int) -> None:
            try:
                self._client.put(self._key, data, only_new=only_new)
            except Failure as failure:
                # A retried PUT may find its own first attempt if only the response was lost:
                # compare size and ETag before reporting a conflict.
                ours = (
                    number
                    and failure.kind is Kind.EXISTS
                    and self._is(len(data), hashlib.md5(data, usedforsecurity=False).hexdigest())
                )
                if not ours:
                    raise

        self._session.retrier.run(put)

    def _probe(self, data: bytearray) -> str:
        """Write the same object again: a server that enforces the condition refuses that."""
        try:
            self._client.put(self._key, data, only_new=True)
        except Failure as failure:
            return ENFORCED if failure.kind is Kind.EXISTS else UNKNOWN
        return IGNORED

    def start(self) -> str:
        return self._session.retrier.run(lambda _: self._client.start(self._key))

    def part(self, upload: str, number: int, data: bytearray, stop: Event) -> str:
        return self._session.retrier.run(
            lambda _: self._client.part(self._key, upload, number, data), stop=stop
        )

    def finish(self, upload: str, etags: list[str], size: int) -> None:
        # A server may enforce the condition of a PUT and ignore that of CompleteMultipartUpload.
        self.refuse_existing()

        failures: list[Failure] = []

        def finish(number: int) -> None:
            try:
                self._client.finish(
                    self._key, upload, etags, only_new=self._session.conditional != REFUSED
                )
            except Failure as failure:
                ours = (
                    number
                    and failure.kind in (Kind.NO_UPLOAD, Kind.EXISTS, Kind.MISSING)
                    and self._is(size)
                )
                if not ours:
                    failures.append(failure)
                    raise

        try:
            self._session.retrier.run(finish)
        except Failure as failure:
            if failure.kind is not Kind.NO_UPLOAD or len(failures) < 2:
                raise
            # A server may forget the upload that it could not finish: the first failure is why.
            first = failures[0]
            first.attempts, first.elapsed_s = failure.attempts, failure.elapsed_s
            raise first from None

    def _is(self, size: int, etag: str = "") -> bool:
        """Whether the object is the one just sent. ``etag``: '' matches every ETag."""
        try:
            found = self._client.head(self._key)
        except Failure:
            return False
        return found.size == size and etag in ("", found.etag)

    def abort(self, upload: str) -> None:
        self._session.retrier.run(lambda _: self._client.abort(self._key, upload))

"""The open client of one S3 storage in one process, and the upload of one object through it."""

from __future__ import annotations

import hashlib
import os
from threading import Event

from .clients import make_client
from .clients.base import Client
from .deletion import Deletions
from .errors import Failure, Kind, Retrier
from .options import S3Options
from .sink import PARTS
from .threads import Threads

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

    def __init__(self, options: S3Options, bucket: str, conditional: str) -> None:
        self.pid = os.getpid()
        self.conditional = conditional
        self.retrier = Retrier(options)
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
                    raise

        self._session.retrier.run(finish)

    def _is(self, size: int, etag: str = "") -> bool:
        """Whether the object is the one just sent. ``etag``: '' matches every ETag."""
        try:
            found = self._client.head(self._key)
        except Failure:
            return False
        return found.size == size and etag in ("", found.etag)

    def abort(self, upload: str) -> None:
        self._session.retrier.run(lambda _: self._client.abort(self._key, upload))

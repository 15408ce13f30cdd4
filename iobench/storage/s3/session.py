"""What one process has open of an S3 storage, and how one object goes up through it."""

from __future__ import annotations

import hashlib
import os
from threading import Event

from .clients import make_client
from .clients.base import Client
from .errors import Failure, Kind
from .options import S3Options
from .retry import Retrier
from .sink import PARTS
from .threads import Threads

ENFORCED, IGNORED, REFUSED, UNKNOWN = (
    "enforced",
    "ignored by the server",
    "refused by the server",
    "not checked",
)
"""What the server does with a conditional write (If-None-Match: *)."""

_PROBE = 1 << 20
"""Bytes: one new object up to this size is written twice, to see whether the server refuses the second."""


class Session:
    """Made in the process that uses it; thread-safe. Raises Failure, UsageError."""

    def __init__(self, options: S3Options, bucket: str, conditional: str) -> None:
        self.pid = os.getpid()
        self.conditional = conditional
        self.retrier = Retrier(options)
        self.client: Client = make_client(options, bucket)
        self.uploads = Threads(PARTS, "iobench-upload")

    def close(self) -> None:
        self.uploads.close()
        self.client.close()


class Target:
    """One key that is not to exist yet: the conditions, and what sending again means for each request. Every method raises Failure."""

    def __init__(self, session: Session, key: str) -> None:
        self._session = session
        self._client = session.client
        self._key = key

    def refuse_existing(self) -> None:
        """Fails with Kind.EXISTS where the key is taken."""
        try:
            self._session.retrier.run(lambda _: self._client.head(self._key))
        except Failure as failure:
            # Without the right to list, AWS answers 403 for an object that is not there: the write itself then tells.
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
        if session.conditional == UNKNOWN and len(data) <= _PROBE:
            session.conditional = self._probed(data)

    def _put(self, data: bytearray, *, only_new: bool) -> None:
        def put(number: int) -> None:
            try:
                self._client.put(self._key, data, only_new=only_new)
            except Failure as failure:
                # Sent again, a write meets itself where only the first answer was lost.
                ours = (
                    number
                    and failure.kind is Kind.EXISTS
                    and self._is(len(data), hashlib.md5(data, usedforsecurity=False).hexdigest())
                )
                if not ours:
                    raise

        self._session.retrier.run(put)

    def _probed(self, data: bytearray) -> str:
        """The same bytes under the same key once more, which a server that knows conditions refuses."""
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
        self.refuse_existing()  # a server that looks at the condition of a PUT may not look at this one's

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
        """Whether the object is what was just sent; '' is any ETag."""
        try:
            found = self._client.head(self._key)
        except Failure:
            return False
        return found.size == size and etag in ("", found.etag)

    def abort(self, upload: str) -> None:
        self._session.retrier.run(lambda _: self._client.abort(self._key, upload))

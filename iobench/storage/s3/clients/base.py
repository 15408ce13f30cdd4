"""The protocol of an S3 client library.

Each method sends one request and never retries. Every failure is raised as ``Failure``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ...base import Buffer
from ..wire import S3Settings


class ObjectInfo(NamedTuple):
    key: str  # the full key in the bucket
    size: int  # bytes
    etag: str


class Upload(NamedTuple):
    key: str
    id: str


class Client(Protocol):
    """Made in the process that uses it; thread-safe."""

    def get(self, key: str, offset: int, buffer: Buffer) -> int:
        """Fill ``buffer`` from ``offset``; the number of bytes read.

        It is less than ``len(buffer)`` only at the object's end. Raises Failure: of Kind.RANGE for
        an ``offset`` beyond the end.
        """

    def put(self, key: str, data: bytes | bytearray, *, only_new: bool) -> None:
        """Write an object.

        With ``only_new`` the server is asked (``If-None-Match: *``) to refuse an existing key:
        Failure of Kind.EXISTS.
        """

    def start(self, key: str) -> str:
        """Start a multipart upload; its id."""

    def part(self, key: str, upload: str, number: int, data: bytes | bytearray) -> str:
        """Upload part ``number`` (from 1); its ETag."""

    def finish(self, key: str, upload: str, etags: Sequence[str], *, only_new: bool) -> None: ...

    def abort(self, key: str, upload: str) -> None: ...

    def head(self, key: str) -> ObjectInfo: ...

    def delete(self, key: str, *, etag: str = "") -> None:
        """Delete an object.

        With ``etag`` the server is asked (``If-Match``) to refuse another one: Failure of
        Kind.EXISTS.
        """

    def page(self, prefix: str, place: str) -> tuple[list[ObjectInfo], str]:
        """The next objects below ``prefix`` ('' or ending in '/'), and where to continue.

        ``place`` is '' for the first page; '' is returned with the last page.
        """

    def uploads(self, prefix: str, place: tuple[str, str]) -> tuple[list[Upload], tuple[str, str]]:
        """As ``page``, for unfinished multipart uploads, with ('', '') in place of ''."""

    def facts(self) -> dict[str, Any]:
        """What the client learned about the server, for the result."""

    def close(self) -> None: ...


@runtime_checkable
class Wired(Protocol):
    """A client whose GETs and DELETEs may be sent in its place."""

    def wire_settings(self) -> S3Settings: ...


LEAST_RATE = 64 << 10
"""Bytes per second. A request of many bytes gets the time that it takes at this rate."""


def allowed_s(deadline_s: float, length: int) -> float:
    """How long a request that moves so many bytes may take."""
    return deadline_s + length / LEAST_RATE


def longest_s(deadline_s: float, method: str, extent: str | None, sent: str | None) -> float | None:
    """The same by a request's method and its headers Range and Content-Length; None: no limit.

    POST completes an upload, for which S3 takes minutes and sends a space now and then.
    """
    if method == "POST":
        return None
    if extent is not None:
        found = re.fullmatch(r"bytes=(\d{1,19})-(\d{1,19})", extent)
        return None if found is None else allowed_s(deadline_s, int(found[2]) - int(found[1]) + 1)
    return allowed_s(deadline_s, int(sent) if sent else 0)

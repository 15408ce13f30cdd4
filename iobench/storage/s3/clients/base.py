"""What S3Storage asks of a client library. One request each; nothing is sent twice, and every failure is a ``Failure``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ...base import Buffer


class Found(NamedTuple):
    key: str  # whole, as the bucket has it
    size: int  # bytes
    etag: str


class Upload(NamedTuple):
    key: str
    id: str


class Client(Protocol):
    """Made in the process that uses it; thread-safe."""

    def get(self, key: str, offset: int, buffer: Buffer) -> int:
        """Fill ``buffer`` from ``offset``; the bytes read are fewer only where the object ends. Beyond the end: Failure of Kind.RANGE."""

    def put(self, key: str, data: bytes | bytearray, *, only_new: bool) -> None:
        """``only_new`` asks the server to refuse (Kind.EXISTS) where the key exists: If-None-Match: *."""

    def start(self, key: str) -> str:
        """A multipart upload; its id."""

    def part(self, key: str, upload: str, number: int, data: bytes | bytearray) -> str:
        """Part ``number`` (from 1); its ETag."""

    def finish(self, key: str, upload: str, etags: Sequence[str], *, only_new: bool) -> None: ...

    def abort(self, key: str, upload: str) -> None: ...

    def head(self, key: str) -> Found: ...

    def delete(self, key: str) -> None: ...

    def page(self, prefix: str, place: str) -> tuple[list[Found], str]:
        """The next objects below ``prefix`` ('' or ending in '/'), and the place to go on from: '' at the end, as at the beginning."""

    def uploads(self, prefix: str, place: tuple[str, str]) -> tuple[list[Upload], tuple[str, str]]:
        """As ``page``, of unfinished multipart uploads; ('', '') is the beginning and the end."""

    def facts(self) -> dict[str, Any]:
        """What was learned about the server on the way, for the result."""

    def close(self) -> None: ...

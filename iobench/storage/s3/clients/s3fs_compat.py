"""The parts of s3fs and aiobotocore that are not public.

Checked with s3fs 2026.9.0 and aiobotocore 3.9.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession
from fsspec.asyn import sync

from .base import longest_s


def turn_off_retries(files: Any) -> None:
    """One attempt for each request of this S3FileSystem: iobench counts its own retries."""
    files.retries = 1  # s3fs counts attempts


def get_range(
    files: Any, bucket: str, key: str, extent: str, coming: Callable[[dict[str, Any]], int]
) -> tuple[bytes, int]:
    """The body of the answer to a range request, and what ``coming`` says of its headers.

    ``cat_file`` shows no headers, so that nothing could be compared.
    """

    async def read() -> tuple[bytes, int]:
        answer = await files._call_s3("get_object", Bucket=bucket, Key=key, Range=extent)
        try:
            length = coming(answer)
            return await answer["Body"].read(), length
        finally:
            answer["Body"].close()

    result: tuple[bytes, int] = sync(files.loop, read)
    return result


def session_class(deadline_s: float) -> type[AIOHTTPSession]:
    """Of connections that follow no redirection, and wait for no answer for ever."""

    class _NoRedirects(AIOHTTPSession):  # type: ignore[misc]
        async def _get_session(self, proxy_url: Any) -> Any:
            return _Patient(await super()._get_session(proxy_url), deadline_s)

    return _NoRedirects


class _Patient:
    def __init__(self, session: aiohttp.ClientSession, deadline_s: float) -> None:
        self._session, self._deadline_s = session, deadline_s

    async def request(self, method: str, **more: Any) -> aiohttp.ClientResponse:
        usual = more.pop("timeout", None) or self._session.timeout
        headers = more["headers"]
        extent, sent = headers.get("Range"), headers.get("Content-Length")
        limit_s = longest_s(self._deadline_s, method, extent, sent)
        timeout = aiohttp.ClientTimeout(
            total=limit_s, sock_connect=usual.sock_connect, sock_read=usual.sock_read
        )
        return await self._session.request(method, **more, timeout=timeout, allow_redirects=False)


def close(files: Any) -> None:
    """Close the connections of an S3FileSystem."""
    if files._s3 is not None:
        files.close_session(files.loop, files._s3)
        files._s3 = files._s3creator = None

"""obstore: Rust's object_store for Python. About 0.15 ms of CPU time per request.

It can't send single parts or list unfinished uploads; botocore does both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ...base import Buffer
from ..errors import Failure, Kind, failure_of_text
from ..options import S3Options
from ..threads import MainThreadHelper
from ..wire import S3Settings, proxies_of_environment
from .base import LEAST_RATE, ObjectInfo, Upload
from .boto_api import BotocoreClient, copy_into, whole_number
from .botocore_compat import expiry
from .chain import Chain
from .obstore_compat import obstore_of_this_process

T = TypeVar("T")

_CHUNK = 128 << 10
"""Bytes. Larger bodies are copied to the caller's memory in pieces of this size, which costs half
as much as one large piece."""

_PAGE = 1000
"""The number of objects in one page of S3's listings."""


class ObstoreClient:
    def __init__(self, options: S3Options, bucket: str) -> None:
        self._options = options
        self._bucket = bucket
        self._chain = chain = Chain(options, bucket)
        self._lib = obstore_of_this_process()
        self._helper = MainThreadHelper()
        self._lock = Lock()
        self._botocore: BotocoreClient | None = None
        self._partial = True
        """False once the server has answered a range request with 200, which obstore refuses."""
        settings: dict[str, Any] = {
            "region": chain.region,
            "virtual_hosted_style_request": not chain.path_style,
        }
        if chain.endpoint:
            settings["endpoint"] = (
                chain.endpoint
                if chain.path_style
                else chain.endpoint.replace("://", f"://{bucket}.", 1)
            )
        if options.checksum == "when_supported":
            settings["checksum_algorithm"] = "SHA256"
        if options.signing == "none":
            settings["skip_signature"] = True
        else:
            settings["credential_provider"] = _provider(chain.credentials())
        self._settings = settings
        self._stores: dict[float, Any] = {}
        self._store = self._store_for(0)

    def _store_for(self, length: int) -> Any:
        """The store for requests that move up to so many bytes.

        A client of obstore has one limit for the time of all its requests.
        """
        # Few of them, each with connections of its own: 1 s, 16 s, 4.3 min and so on at the least
        # rate, beside the deadline.
        step = 1.0
        while step * LEAST_RATE < length:
            step *= 16
        if step not in self._stores:
            with self._lock:
                limit = self._options.deadline + step
                self._stores[step] = self._lib.store.S3Store(
                    self._bucket,
                    client_options=_http(self._options, self._chain, self._bucket, limit),
                    retry_config={
                        "max_retries": 0,
                        "retry_timeout": timedelta(seconds=self._options.deadline),
                    },
                    **self._settings,
                )
        return self._stores[step]

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return self._helper(call)
        except Exception as error:
            failure = self._chain.redacted(_to_failure(error))
        raise failure

    # Reading

    def get(self, key: str, offset: int, buffer: Buffer) -> int:
        if self._partial:
            try:
                return self._call(lambda: self._range(key, offset, buffer))
            except Failure as failure:
                if failure.detail != _NOT_PARTIAL:
                    raise
                self._partial = False
        count = self._call(lambda: self._whole(key, buffer)) if offset == 0 else -1
        return count if count >= 0 else self._control().get(key, offset, buffer)

    def _range(self, key: str, offset: int, buffer: Buffer) -> int:
        store = self._store_for(len(buffer))
        answer = self._lib.get(store, key, options={"range": (offset, offset + len(buffer))})
        first, end = answer.range
        last = offset + len(buffer)
        if first != offset or end > last or (end < last and end != answer.meta["size"]):
            raise Failure(Kind.LOST, detail=f"the server sent the range {first}-{end}")
        return _fill(answer, end - first, buffer)

    def _whole(self, key: str, buffer: Buffer) -> int:
        """Read the whole object, or return -1 if it is larger than ``buffer``."""
        answer = self._lib.get(self._store_for(len(buffer)), key)
        size = answer.range[1]
        return _fill(answer, size, buffer) if size <= len(buffer) else -1

    def head(self, key: str) -> ObjectInfo:
        return _info(self._call(lambda: self._lib.head(self._store, key)))

    def page(self, prefix: str, place: str) -> tuple[list[ObjectInfo], str]:
        def first() -> Any:
            stream = self._lib.list(
                self._store, prefix or None, offset=place or None, chunk_size=_PAGE
            )
            return next(iter(stream), [])

        found = [_info(meta) for meta in self._call(first)]
        return found, found[-1].key if len(found) >= _PAGE else ""

    # Writing

    def put(self, key: str, data: bytes | bytearray, *, only_new: bool) -> None:
        mode = "create" if only_new else "overwrite"
        store = self._store_for(len(data))
        self._call(lambda: self._lib.put(store, key, data, mode=mode, use_multipart=False))

    def delete(self, key: str, *, etag: str = "") -> None:
        if etag:  # obstore knows no condition of a deletion
            self._control().delete(key, etag=etag)
            return
        self._call(lambda: self._lib.delete(self._store, key))

    def start(self, key: str) -> str:
        return self._control().start(key)

    def part(self, key: str, upload: str, number: int, data: bytes | bytearray) -> str:
        return self._control().part(key, upload, number, data)

    def finish(self, key: str, upload: str, etags: Sequence[str], *, only_new: bool) -> None:
        self._control().finish(key, upload, etags, only_new=only_new)

    def abort(self, key: str, upload: str) -> None:
        self._control().abort(key, upload)

    def uploads(self, prefix: str, place: tuple[str, str]) -> tuple[list[Upload], tuple[str, str]]:
        return self._control().uploads(prefix, place)

    def _control(self) -> BotocoreClient:
        with self._lock:
            if self._botocore is None:
                self._botocore = BotocoreClient(self._options, self._bucket, self._chain)
            return self._botocore

    def facts(self) -> dict[str, Any]:
        facts = self._chain.facts()
        if not self._partial:
            facts["ranges"] = (
                "whole objects by obstore, parts of them by botocore: "
                "the server answers ranges with 200"
            )
        return facts

    def wire_settings(self) -> S3Settings:
        return self._chain.wire_settings()

    def close(self) -> None:
        self._helper.close()
        if self._botocore is not None:
            self._botocore.close()
            self._botocore = None


def _fill(answer: Any, size: int, buffer: Buffer) -> int:
    if size <= _CHUNK:
        done = copy_into(buffer, answer.bytes()) if size else 0
    else:
        done = 0
        for chunk in answer.stream(min_chunk_size=_CHUNK):
            done += copy_into(buffer[done:], chunk)
    if done != size:
        raise Failure(Kind.LOST, detail=f"got {done} of {size} bytes")
    return done


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], whole_number(meta["size"]), str(meta["e_tag"] or "").strip('"'))


def _http(options: S3Options, chain: Chain, bucket: str, limit_s: float) -> dict[str, Any]:
    """``limit_s``: for a whole request, which also ends when nothing came for ``read_timeout``."""
    timeout = timedelta(seconds=options.timeout)
    endpoint = chain.endpoint or f"https://s3.{chain.region}.amazonaws.com"
    settings: dict[str, Any] = {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": timeout,
        "read_timeout": timeout,
        "timeout": timedelta(seconds=limit_s),
    }
    if not proxies_of_environment():
        # obstore follows redirections, and can't be told not to. So the way to every other host
        # leads through a proxy that does not exist.
        host = urlsplit(endpoint).hostname or ""
        settings["proxy_url"] = f"http://{_NOWHERE}"
        settings["proxy_excludes"] = f"{host},{bucket}.{host}"
    if chain.verify is False:
        settings["allow_invalid_certificates"] = True
    elif isinstance(chain.verify, str):
        settings["root_certificate"] = Path(chain.verify).read_bytes()
    return settings


def _provider(credentials: Any) -> Callable[[], dict[str, Any]]:
    def provide() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        expiry_time = expiry(credentials)  # without it obstore would keep them forever
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": expiry_time,
        }

    return provide


_NOWHERE = "127.255.255.254:1"

_NOT_PARTIAL = "Received non-partial response when range requested"

_STATUS = re.compile(r"status code: (\d{3})")
_WORDS = (
    (re.compile("close_notify"), Kind.LOST),  # a connection that was cut, before all words of TLS
    (re.compile(r"dns error|failed to lookup address|name or service not known", re.I), Kind.NAME),
    (
        re.compile(
            r"certificate|\btls\b|\bssl\b|handshake|InvalidContentType|corrupt message", re.I
        ),
        Kind.TLS,
    ),
    (
        re.compile(
            r"kind: Connect\b|connection refused|ConnectionRefused|error trying to connect", re.I
        ),
        Kind.UNREACHABLE,
    ),
    (re.compile(r"kind: Timeout|TimedOut|timed out", re.I), Kind.TIMEOUT),
    (
        re.compile(
            r"HttpError|reqwest::Error|hyper::Error|IncompleteMessage|ConnectionReset|BrokenPipe"
            r"|UnexpectedEof|Interrupted",
            re.I,
        ),
        Kind.LOST,
    ),
)


def _to_failure(error: BaseException) -> Failure:
    """The Failure for an exception of obstore, whose only information is its text.

    The text contains the server's answer, which may repeat parts of the request, so only its code
    and message are kept.
    """
    if isinstance(error, Failure):
        return error
    text = str(error)
    if "redirect without LOCATION" in text:
        return Failure(Kind.REGION, detail="the server answers with a redirection to nowhere")
    if _NOWHERE in text:
        return Failure(Kind.REGION, detail="the server points to another host")
    if _NOT_PARTIAL in text:
        return Failure(Kind.UNSUPPORTED, detail=_NOT_PARTIAL)
    if status := _STATUS.search(text):
        return failure_of_text(int(status[1]), text)
    if type(error).__name__ in ("AlreadyExistsError", "PreconditionError"):
        return Failure(Kind.EXISTS)
    if isinstance(error, FileNotFoundError):
        return Failure(Kind.MISSING)
    kind = next((kind for words, kind in _WORDS if words.search(text)), Kind.OTHER)
    return Failure(kind, detail=type(error).__name__ if kind is Kind.OTHER else "")

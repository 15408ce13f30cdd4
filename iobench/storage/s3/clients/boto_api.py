"""S3's operations by botocore's names, for every client that is built on botocore."""

from __future__ import annotations

import re
import ssl
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from typing import Any

import numpy as np
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
    SSLError,
)
from urllib3 import disable_warnings
from urllib3.exceptions import InsecureRequestWarning, ProtocolError

from ...base import Buffer
from ..errors import Failure, Kind, failure_of_answer
from ..options import S3Options
from ..wire import S3Settings
from .base import ObjectInfo, Upload
from .botocore_compat import Deadlines
from .chain import Chain

_MAX_CONNECTIONS = 256
"""With more threads in one process, botocore would open a new connection for each request."""

_SMALL = 1 << 20
"""Bytes. Copying less than this takes less time than to release and reacquire the GIL."""

_MAX_SIZE = 10**19  # bytes

_PIECE = 256 << 10
"""Bytes. A body is read in pieces through reused memory: in one read it costs twice as much."""

_UNKNOWN_NAME = re.compile(
    r"name or service not known|no address associated|temporary failure in name resolution"
    r"|name resolution|getaddrinfo",
    re.I,
)


def config(options: S3Options, chain: Chain) -> dict[str, Any]:
    """Arguments of botocore's Config. Its own retries are off: iobench counts its retries."""
    return {
        "retries": {"total_max_attempts": 1},
        "connect_timeout": options.timeout,
        "read_timeout": options.timeout,
        "max_pool_connections": _MAX_CONNECTIONS,
        "s3": {"addressing_style": "path" if chain.path_style else "virtual"},
        "request_checksum_calculation": options.checksum,
        "response_checksum_validation": options.checksum,
        **({"signature_version": UNSIGNED} if options.signing == "none" else {}),
    }


class BotoApi:
    """A client made of botocore's operations; a subclass says how to call one."""

    bucket: str
    chain: Chain

    @abstractmethod
    def call(self, operation: str, **arguments: Any) -> Any:
        """One operation on the bucket. Raises Failure."""

    def get(self, key: str, offset: int, buffer: Buffer) -> int:
        answer = self.call(
            "get_object", Key=key, Range=f"bytes={offset}-{offset + len(buffer) - 1}"
        )
        return self.fill(answer, offset, buffer)

    def fill(self, answer: dict[str, Any], offset: int, buffer: Buffer) -> int:
        """Copy the body of a range request's answer into ``buffer``; the number of bytes."""
        body = answer["Body"]
        coming = range_length(answer, offset, len(buffer))
        done, failure = 0, None
        try:
            while done < coming:
                count = body.readinto(buffer[done : min(done + _PIECE, coming)])
                if not count:
                    break
                done += count
            if done == coming:
                # Reading to the end returns the connection to the pool, and verifies checksums.
                body.read()
                return coming
        except Exception as error:
            failure = to_failure(error)
        body.close()
        raise failure or Failure(Kind.LOST, detail=f"got {done} of {coming} bytes")

    def put(self, key: str, data: bytes | bytearray, *, only_new: bool) -> None:
        self.call("put_object", Key=key, Body=data, **({"IfNoneMatch": "*"} if only_new else {}))

    def start(self, key: str) -> str:
        return str(self.call("create_multipart_upload", Key=key)["UploadId"])

    def part(self, key: str, upload: str, number: int, data: bytes | bytearray) -> str:
        return str(
            self.call("upload_part", Key=key, UploadId=upload, PartNumber=number, Body=data)["ETag"]
        )

    def finish(self, key: str, upload: str, etags: Sequence[str], *, only_new: bool) -> None:
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        condition = {"IfNoneMatch": "*"} if only_new else {}
        self.call(
            "complete_multipart_upload",
            Key=key,
            UploadId=upload,
            MultipartUpload={"Parts": parts},
            **condition,
        )

    def abort(self, key: str, upload: str) -> None:
        self.call("abort_multipart_upload", Key=key, UploadId=upload)

    def head(self, key: str) -> ObjectInfo:
        answer = self.call("head_object", Key=key)
        return ObjectInfo(key, _body_length(answer), str(answer.get("ETag", "")).strip('"'))

    def delete(self, key: str, *, etag: str = "") -> None:
        condition = {"IfMatch": f'"{etag}"'} if etag else {}
        self.call("delete_object", Key=key, **condition)

    def page(self, prefix: str, place: str) -> tuple[list[ObjectInfo], str]:
        answer = self.call(
            "list_objects_v2", Prefix=prefix, **({"ContinuationToken": place} if place else {})
        )
        found = [
            ObjectInfo(
                item["Key"],
                whole_number(item.get("Size", "")),
                str(item.get("ETag", "")).strip('"'),
            )
            for item in answer.get("Contents", ())
        ]
        return found, str(answer.get("NextContinuationToken", "")) if answer.get(
            "IsTruncated"
        ) else ""

    def uploads(self, prefix: str, place: tuple[str, str]) -> tuple[list[Upload], tuple[str, str]]:
        markers = {"KeyMarker": place[0], "UploadIdMarker": place[1]} if any(place) else {}
        answer = self.call("list_multipart_uploads", Prefix=prefix, **markers)
        found = [
            Upload(item["Key"], item["UploadId"])
            for item in answer.get("Uploads", ())
            if item["Key"].startswith(prefix)
        ]
        more = bool(answer.get("IsTruncated")) and bool(found)
        return found, (
            answer.get("NextKeyMarker", ""),
            answer.get("NextUploadIdMarker", ""),
        ) if more else ("", "")

    def facts(self) -> dict[str, Any]:
        return self.chain.facts()

    def wire_settings(self) -> S3Settings:
        return self.chain.wire_settings()


class BotocoreClient(BotoApi):
    """botocore's own client, which boto3 wraps."""

    def __init__(self, options: S3Options, bucket: str, chain: Chain | None = None) -> None:
        self.bucket = bucket
        self.chain = chain or Chain(options, bucket)
        self._options = options
        if self.chain.verify is False:
            # The user asked for it; the warning would appear for each request.
            disable_warnings(InsecureRequestWarning)
        self._client = self.make()
        self._watch = Deadlines(self._client, options.deadline, options.timeout / 4)

    def arguments(self) -> dict[str, Any]:
        chain = self.chain
        return {
            "region_name": chain.region,
            "endpoint_url": chain.endpoint or None,
            "verify": chain.verify,
            "config": Config(**config(self._options, chain)),
        }

    def make(self) -> Any:
        return self.chain.session.create_client("s3", **self.arguments())

    def call(self, operation: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, operation)(Bucket=self.bucket, **arguments)
        except Exception as error:
            failure = self.chain.redacted(to_failure(error))
        raise failure

    def close(self) -> None:
        self._watch.close()
        self._client.close()


def copy_into(buffer: Buffer, data: Any) -> int:
    """Copy ``data`` into the front of ``buffer``; the number of bytes.

    Large copies release the GIL; for small ones that costs more than the copy.
    """
    size = len(data)
    if size <= _SMALL:
        buffer[:size] = memoryview(data)
    else:
        np.copyto(np.frombuffer(buffer, dtype=np.uint8)[:size], np.frombuffer(data, dtype=np.uint8))
    return size


def _body_length(answer: dict[str, Any]) -> int:
    if "ContentLength" not in answer:  # the connection was lost within the answer's head
        raise Failure(Kind.LOST, detail="the answer does not tell its length")
    return whole_number(answer["ContentLength"])


def whole_number(value: Any) -> int:
    """A number of bytes that a server has sent. Raises Failure if it can be none."""
    text = str(value) if isinstance(value, str) or -_MAX_SIZE < value < _MAX_SIZE else ""
    if not re.fullmatch(r"\d{1,19}", text, re.ASCII):
        raise Failure(Kind.OTHER, detail="the server says a size that can be none")
    return int(text)


def range_length(answer: dict[str, Any], offset: int, want: int) -> int:
    """How many bytes to take from the answer to a range request.

    Content-Range decides, not the status: some servers answer 200 to a range request. Raises
    Failure if the range is not the requested one.
    """
    length = _body_length(answer)
    said = answer.get("ContentRange") or ""
    stated = re.fullmatch(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", said, re.ASCII)
    if stated is None and said:
        raise Failure(Kind.LOST, detail="the server sent a range that can be none")
    if stated is None:
        if length > (0 if offset else want):  # the server sent the whole object
            raise Failure(Kind.UNSUPPORTED, detail="the server ignores ranges")
        return length
    first, last = int(stated[1]), int(stated[2])
    ends = stated[3] != "*" and last + 1 == int(stated[3])
    if (
        first != offset
        or last - first + 1 != length
        or not (length == want or (length < want and ends))
    ):
        raise Failure(Kind.LOST, detail=f"the server sent the range {first}-{last}")
    return length


def to_failure(error: BaseException) -> Failure:
    """The Failure for an exception of a client library, or for one of its causes.

    It keeps no reference to the exception, which can hold whole requests.
    """
    if isinstance(error, Failure):
        return error
    for link in _causes(error):
        if isinstance(link, ClientError):
            said = link.response.get("Error", {})
            status = int(link.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            return failure_of_answer(
                status, str(said.get("Code", "")), str(said.get("Message", ""))
            )
        for kinds, kind in _KINDS:
            if isinstance(link, kinds):
                if kind is Kind.UNREACHABLE and any(
                    _UNKNOWN_NAME.search(str(cause)) for cause in _causes(error)
                ):
                    return Failure(Kind.NAME)
                detail = str(link).rpartition("] ")[2] if kind is Kind.TLS else ""
                return Failure(kind, detail=detail)
        if type(link).__module__.partition(".")[0] == "aiohttp":
            # s3fs: the body ended early, or the server closed the connection.
            return Failure(Kind.LOST)
    return Failure(Kind.OTHER, detail=type(error).__name__)


_KINDS: tuple[tuple[tuple[type[BaseException], ...], Kind], ...] = (
    ((SSLError, ssl.SSLError), Kind.TLS),
    ((FlexibleChecksumError,), Kind.CHECKSUM),
    ((NoCredentialsError, PartialCredentialsError, CredentialRetrievalError), Kind.NO_CREDENTIALS),
    ((ConnectTimeoutError,), Kind.UNREACHABLE),
    ((ReadTimeoutError, TimeoutError), Kind.TIMEOUT),
    ((EndpointConnectionError, ConnectionRefusedError), Kind.UNREACHABLE),
    (
        (HTTPClientError, ProtocolError, ConnectionError, IncompleteReadError, HTTPException),
        Kind.LOST,
    ),
)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, and the exceptions that it was raised from or that it holds."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        inner = (
            getattr(link, "kwargs", {}).get("error")
            if isinstance(getattr(link, "kwargs", None), dict)
            else None
        )
        link = inner if isinstance(inner, BaseException) else link.__cause__ or link.__context__

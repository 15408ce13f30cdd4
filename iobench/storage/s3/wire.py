"""GET and DELETE requests as bytes for a connection of one's own, and what their answers say.

An event loop reads objects with it at a fraction of the CPU time that a client library takes. It
understands the plain good answer alone. Whoever gets another one leaves the request to the storage,
``S3Storage.read_on``, which retries and explains.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import time
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from .errors import Failure, failure_of_text

_NO_BODY = hashlib.sha256(b"").hexdigest()

_PORTS = {"http": 80, "https": 443}

_MAX_DIGITS = 19
"""Of a number of bytes. Python refuses to read one of 4,300 digits and more."""


class S3Settings(NamedTuple):
    """What a ``S3Wire`` needs of a client.

    ``credentials``: botocore's, None for anonymous requests. ``verify``: True,
    False, or a file of certificates to trust as well. ``timeout``: seconds.
    """

    endpoint: str
    region: str
    bucket: str
    path_style: bool
    verify: bool | str
    timeout: float
    credentials: Any


def proxies_of_environment() -> dict[str, str]:
    """Scheme, or 'all' -> proxy; 'no' -> the hosts that need none."""
    return getproxies_environment()


class S3Wire:
    """Made in the process that uses it, for one thread; ``connect`` is for any."""

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        endpoint = settings.endpoint or f"https://s3.{settings.region}.amazonaws.com"
        if not settings.path_style:
            endpoint = endpoint.replace("://", f"://{settings.bucket}.", 1)
        parts = urlsplit(endpoint)
        usual = _PORTS[parts.scheme]
        self.scheme, self.name, self.port = parts.scheme, parts.hostname or "", parts.port or usual
        name = f"[{self.name}]" if ":" in self.name else self.name
        self._host = name if self.port == usual else f"{name}:{self.port}"
        bucket = f"/{quote(settings.bucket)}" if settings.path_style else ""
        self._root = f"{parts.path.rstrip('/')}{bucket}/"
        self._tls = _tls(settings.verify) if parts.scheme == "https" else None
        self._second = -1
        self._known: tuple[Any, ...] = ()  # what the signing key was made of
        self._signing_key = b""
        self._authorization = self._canonical = self._to_sign = self._headers = ""

    @property
    def timeout(self) -> float:
        """In seconds."""
        return self._settings.timeout

    @property
    def proxied(self) -> bool:
        """Whether the environment asks for a proxy, which this does not speak to."""
        proxies = proxies_of_environment()
        if not proxies.get(self.scheme, proxies.get("all")):
            return False
        return not proxy_bypass(self._host)

    def connect(self) -> socket.socket:
        """Return a connection that does not block. Raises OSError, within the time-out."""
        made = socket.create_connection((self.name, self.port), self._settings.timeout)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                made = self._tls.wrap_socket(made, server_hostname=self.name)
            made.setblocking(False)
        except BaseException:
            made.close()
            raise
        return made

    # Requests

    def get(self, key: str, offset: int, length: int) -> bytes:
        """Return the request for ``length`` bytes. Raises what the search for credentials does."""
        return self._request("GET", key, extent=f"bytes={offset}-{offset + length - 1}")

    def delete(self, key: str, etag: str) -> bytes:
        """Return the request to delete an object if it has this ETag ('': any).

        Raises what the search for credentials does.
        """
        text = ""
        if etag:  # which is not signed: a server that ignores it may do so
            text += f'If-Match: "{_plain(etag)}"\r\n'
        return self._request("DELETE", key, text)

    def _request(self, method: str, key: str, unsigned: str = "", *, extent: str = "") -> bytes:
        """``unsigned``: header lines. ``extent``: the value of ``Range``, '' without it."""
        path = self._root + quote(key, safe="/~")
        ranged = f"Range: {extent}\r\n" if extent else ""
        text = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\n{ranged}{unsigned}"
        if self._settings.credentials is None:
            return f"{text}\r\n".encode("ascii")
        if (second := int(time.time())) != self._second:
            self._at(second)
        signed, signs = f"range:{extent}\n{self._canonical}", self._authorization
        if not extent:
            signed = self._canonical.replace("\nhost;range;", "\nhost;", 1)
            signs = signs.replace("SignedHeaders=host;range;", "SignedHeaders=host;", 1)
        canonical = f"{method}\n{path}\n\nhost:{self._host}\n{signed}"
        to_sign = self._to_sign + hashlib.sha256(canonical.encode("ascii")).hexdigest()
        signature = hmac.digest(self._signing_key, to_sign.encode("ascii"), "sha256").hex()
        return f"{text}{self._headers}{signs}{signature}\r\n\r\n".encode("ascii")

    def _at(self, second: int) -> None:
        """Prepare what all signatures of this second share: AWS Signature Version 4.

        https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
        """
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        frozen = self._settings.credentials.get_frozen_credentials()
        secret, token = frozen.secret_key, frozen.token
        scope = (stamp[:8], self._settings.region, "s3", "aws4_request")
        if (known := (scope, secret)) != self._known:
            signing = f"AWS4{secret}".encode()
            for part in scope:
                signing = hmac.digest(signing, part.encode(), "sha256")
            self._known, self._signing_key = known, signing
        signed = [("x-amz-content-sha256", _NO_BODY), ("x-amz-date", stamp)]
        signed += [("x-amz-security-token", token)] if token else []
        names = ";".join(["host", "range", *(name for name, _ in signed)])
        values = "".join(f"{name}:{value}\n" for name, value in signed)
        self._canonical = f"{values}\n{names}\n{_NO_BODY}"
        self._to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{'/'.join(scope)}\n"
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in signed)
        self._authorization = (
            f"Authorization: AWS4-HMAC-SHA256 Credential={frozen.access_key}/{'/'.join(scope)}, "
            f"SignedHeaders={names}, Signature="
        )
        self._second = second


def _plain(etag: str) -> str:
    """A server's ETag, as far as it is a word: it must begin no new line."""
    return "".join(c for c in etag if c.isascii() and c.isprintable() and c != '"')


def _tls(verify: bool | str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif isinstance(verify, str):
        context.load_verify_locations(verify)
    return context


# Answers


class Answer(NamedTuple):
    """What the lines before a body say.

    ``length``: bytes of the body; -1: it has the bytes that were asked for only in a way that is
    not understood here, or not at all. ``kept``: the connection serves further requests.
    """

    status: int
    length: int
    kept: bool


def understood(head: bytes, offset: int, length: int) -> Answer:
    """Return what the answer to a request for these bytes says.

    ``head``: all of its lines, with the empty one at their end.
    """
    head = head.lower()
    status = head[9:12]
    if not head.startswith(b"http/1.1 ") or not status.isdigit():
        return Answer(0, -1, kept=False)
    size = _value(head, b"\r\ncontent-length:")
    kept = _value(head, b"\r\nconnection:") in (b"", b"keep-alive")
    found = -1
    if (
        status in (b"206", b"200")
        and is_count(size)
        and b"\r\ntransfer-encoding:" not in head
        and head.count(b"\r\ncontent-length:") == 1
    ):
        found = int(size)
        sent = _value(head, b"\r\ncontent-range:")
        # Some servers answer ranges with 200. Without a range it is the whole object.
        if not (
            _matches(sent, offset, length, found)
            if sent or status == b"206"
            else offset == 0 and found <= length
        ):
            found = -1
    return Answer(int(status), found, kept)


def _matches(sent: bytes, offset: int, length: int, count: int) -> bool:
    """Whether ``bytes FIRST-LAST/SIZE`` is what was asked for, or all that the object has of it."""
    unit, _, sent = sent.partition(b" ")
    extent, _, size = sent.partition(b"/")
    first, _, last = extent.partition(b"-")
    if unit != b"bytes" or not (is_count(first) and is_count(last) and is_count(size)):
        return False
    end = int(last) + 1
    return (
        int(first) == offset
        and end - offset == count
        and (count == length or (count < length and end == int(size)))
    )


def is_count(text: bytes) -> bool:
    """Whether this is a number of bytes that an object can have: below 10^19."""
    return text.isdigit() and len(text) <= _MAX_DIGITS


def _value(head: bytes, name: bytes) -> bytes:
    start = head.find(name)
    if start < 0:
        return b""
    start += len(name)
    return head[start : head.index(b"\r\n", start)].strip()


def error_is_whole(head: bytes, body: bytes) -> bool:
    """Whether all has arrived of the body of an error, which may be sent in chunks."""
    size = _value(head.lower(), b"\r\ncontent-length:")
    return b"</Error>" in body or (is_count(size) and len(body) >= int(size))


def failure_of(status: int, body: bytes) -> Failure:
    """The Failure for an error answer, without the server's text, which may repeat the request."""
    failure = failure_of_text(status, body.decode("utf-8", "replace"))
    return Failure(failure.kind, code=failure.code, status=status)

"""Failures of S3 requests, and when a request is sent again.

One kind for each cause, whatever the client library calls it, and the remedy to tell the user.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable
from enum import StrEnum
from threading import Event, Lock
from typing import TypeVar

from ..base import Retries
from .options import S3Options


class Kind(StrEnum):
    MISSING = "no such object"
    NO_BUCKET = "no such bucket"
    NO_UPLOAD = "no such upload"
    EXISTS = "it exists"
    RANGE = "the range starts beyond the object's end"
    UNSUPPORTED = "the server does not support it"
    DENIED = "access denied"
    CREDENTIALS = "the server refuses these credentials"
    NO_CREDENTIALS = "no credentials were found"
    EXPIRED = "the credentials have expired"
    CLOCK = "this machine's clock is wrong"
    REGION = "the bucket is in another region"
    TLS = "TLS failed"
    NAME = "the endpoint's name is unknown"
    UNREACHABLE = "the endpoint can't be reached"
    LOST = "the connection was lost"
    TIMEOUT = "no answer in time"
    SERVER = "the server failed"
    THROTTLED = "the server asks to slow down"
    CHECKSUM = "the bytes have another checksum than the server says"
    OTHER = "the request failed"


TRANSIENT = frozenset(
    {Kind.UNREACHABLE, Kind.LOST, Kind.TIMEOUT, Kind.SERVER, Kind.THROTTLED, Kind.NAME}
)
"""Kinds for which a retry may help."""

_CODES = {
    Kind.MISSING: ("NoSuchKey",),
    Kind.NO_BUCKET: ("NoSuchBucket",),
    Kind.NO_UPLOAD: ("NoSuchUpload",),
    Kind.EXISTS: ("PreconditionFailed",),
    Kind.RANGE: ("InvalidRange",),
    Kind.UNSUPPORTED: ("NotImplemented", "MethodNotAllowed"),
    Kind.DENIED: ("AccessDenied", "AllAccessDisabled", "AccountProblem"),
    Kind.CREDENTIALS: (
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "InvalidSecurity",
        "InvalidClientTokenId",
    ),
    Kind.EXPIRED: (
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidToken",
        "TokenRefreshRequired",
        "RequestExpired",
    ),
    Kind.CLOCK: ("RequestTimeTooSkewed",),
    Kind.REGION: (
        "PermanentRedirect",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "TemporaryRedirect",
    ),
    # 409 of two conditional writes at one time: AWS asks for a retry.
    Kind.SERVER: (
        "InternalError",
        "ServiceUnavailable",
        "RequestTimeout",
        "ConditionalRequestConflict",
        "IncompleteBody",
    ),
    Kind.THROTTLED: (
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    ),
}
_KIND_OF_CODE = {code: kind for kind, codes in _CODES.items() for code in codes}

_STATUSES = {
    **dict.fromkeys((301, 302, 307, 308), Kind.REGION),
    **dict.fromkeys((408, 500, 502, 504), Kind.SERVER),
    **dict.fromkeys((429, 503), Kind.THROTTLED),
    401: Kind.CREDENTIALS,
    403: Kind.DENIED,
    404: Kind.MISSING,
    405: Kind.UNSUPPORTED,
    412: Kind.EXISTS,
    416: Kind.RANGE,
    501: Kind.UNSUPPORTED,
}

_RIGHTS = {
    "read": "reading (s3:GetObject)",
    "stat": "reading (s3:GetObject)",
    "list": "listing (s3:ListBucket)",
    "create": "writing (s3:PutObject)",
    "write": "writing (s3:PutObject)",
    "replace": "writing (s3:PutObject)",
    "delete": "deleting (s3:DeleteObject)",
}

_REMEDIES = {
    Kind.MISSING: "check that the dataset is complete: iobench verify",
    Kind.NO_BUCKET: "check its name, the endpoint and the region; iobench creates no buckets",
    Kind.EXISTS: "choose another prefix, or clean this one: iobench never overwrites objects",
    Kind.NO_UPLOAD: "another program aborted the upload: write the object again",
    Kind.RANGE: "the object is shorter than the manifest says: run iobench verify",
    Kind.UNSUPPORTED: "try another client (option client), or another server",
    Kind.CHECKSUM: "find out what damages them; a server that sends the checksum of the whole "
    "object with a part of it needs checksum=when_required",
    Kind.OTHER: "check the options endpoint, region and addressing, and the server's log",
    Kind.CREDENTIALS: "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile "
    "(AWS_PROFILE), and the endpoint",
    Kind.NO_CREDENTIALS: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE; for "
    "public data add signing=none",
    Kind.EXPIRED: "get new ones, for example with aws sso login",
    Kind.CLOCK: "set the clock (NTP): a signature is valid for a few minutes only",
    Kind.REGION: "set the option region (or AWS_REGION), and check the endpoint",
    Kind.TLS: "trust the server's certificate with tls_verify=/path/to/ca.pem or AWS_CA_BUNDLE, "
    "and check that the endpoint speaks https",
    Kind.NAME: "check the options endpoint, region and addressing, AWS_ENDPOINT_URL, and this "
    "machine's DNS",
    Kind.UNREACHABLE: "check that the server runs, the option endpoint (or AWS_ENDPOINT_URL), and "
    "the network",
    Kind.LOST: "check the server and the network, or raise the options retries and deadline",
    Kind.TIMEOUT: "check the server and the network, or raise the options timeout and deadline",
    Kind.SERVER: "see the server's log, or raise the options retries and deadline",
    Kind.THROTTLED: "request less at one time, spread keys over prefixes, or raise the options "
    "retries and deadline",
}


class Failure(Exception):
    """One request failed.

    ``code``: S3's error code, or ''. ``status``: the HTTP status, 0: no answer. ``detail``: text
    of the server or the client in one line, without credentials; may be empty.
    """

    def __init__(self, kind: Kind, *, code: str = "", status: int = 0, detail: str = "") -> None:
        super().__init__(kind, code, status, detail)
        self.kind = kind
        self.code = code
        self.status = status
        self.detail = " ".join(detail.split())[:200]
        self.attempts = 1
        self.elapsed_s = 0.0


def failure_of_answer(status: int, code: str, message: str) -> Failure:
    """The failure that an error response means.

    The response to a HEAD request has no body, so ``code`` is then only the status as text.
    """
    code = "" if code.isdigit() else code
    kind = (
        _KIND_OF_CODE.get(code)
        or _STATUSES.get(status)
        or (Kind.REGION if 300 <= status < 400 else None)
        or (Kind.SERVER if status >= 500 else Kind.OTHER)
    )
    return Failure(kind, code=code, status=status, detail=message)


_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")


def failure_of_text(status: int, text: str) -> Failure:
    """The failure that an error response means, whose body is somewhere in ``text``."""
    code, message = _CODE.search(text), _MESSAGE.search(text)
    return failure_of_answer(status, code[1] if code else "", message[1] if message else "")


def explain(failure: Failure, verb: str) -> tuple[str, str]:
    """(what happened, what to do)."""
    what = str(failure.kind)
    remedy = _REMEDIES.get(failure.kind, "")
    if failure.kind is Kind.DENIED:
        what = f"access denied: these credentials do not permit {_RIGHTS.get(verb, verb)}"
        remedy = "ask for this permission on the bucket and the prefix"
    said = " ".join(part for part in (str(failure.status or ""), failure.code) if part)
    if said and failure.kind not in (Kind.EXISTS, Kind.MISSING):
        what += f" ({said})"
    if failure.detail and failure.kind in (
        Kind.OTHER,
        Kind.REGION,
        Kind.TLS,
        Kind.UNSUPPORTED,
        Kind.NAME,
    ):
        what += f": {failure.detail}"
    if failure.attempts > 1:
        what += f"; tried {failure.attempts} times in {failure.elapsed_s:.1f} s"
    return what, remedy


T = TypeVar("T")

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0
_NAME_ATTEMPTS = 3
"""A host name that could not be resolved in three attempts is taken for a wrong name."""


class Retrier:
    """Retries the requests of one storage in one process, where that can help.

    Exponential back-off with full jitter, the same limits for every client; every retry is counted.
    """

    def __init__(self, options: S3Options) -> None:
        self._options = options
        self._lock = Lock()
        self._retries = 0
        self._throttled = 0

    @property
    def counts(self) -> Retries:
        return Retries(self._retries, self._throttled)

    def run(
        self, attempt: Callable[[int], T], *, stop: Event | None = None, began: float | None = None
    ) -> T:
        """The result of ``attempt(n)``, where n counts from 0.

        Raises the last Failure if a retry can't help, or if the retries or the time are used up.
        An attempt starts only if it could time out before the deadline. ``stop``, once set, ends
        the pause and the attempts. ``began``: when the first attempt did, by ``time.monotonic``;
        None: now.
        """
        started = time.monotonic() if began is None else began
        number = 0
        while True:
            try:
                return attempt(number)
            except Failure as failure:
                failure.attempts, failure.elapsed_s = number + 1, time.monotonic() - started
                if not self._may_retry(failure):
                    raise
                # Full jitter (M. Brooker, "Exponential Backoff And Jitter", AWS 2015), with a
                # floor, so that a retry never fires immediately.
                ceiling = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2**number)
                pause = random.uniform(ceiling / 4, ceiling)
                if failure.elapsed_s + pause + self._options.timeout > self._options.deadline:
                    raise
                throttled = failure.kind is Kind.THROTTLED
                log.info(
                    "attempt %d failed (%s), the next one in %.3f s",
                    *(number + 1, failure.kind.name.lower(), pause),
                )
            with self._lock:
                self._retries += 1
                self._throttled += throttled
            if stop is None:
                time.sleep(pause)
            elif stop.wait(pause):
                raise Failure(Kind.OTHER, detail="stopped while waiting to retry")
            number += 1

    def _may_retry(self, failure: Failure) -> bool:
        if failure.kind is Kind.NAME and failure.attempts >= _NAME_ATTEMPTS:
            return False
        return failure.kind in TRANSIENT and failure.attempts <= self._options.retries

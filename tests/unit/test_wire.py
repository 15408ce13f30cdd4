"""Requests that are signed as botocore signs them, and answers of which only the plain good one is
understood.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from iobench.storage.s3 import wire
from iobench.storage.s3.clients.boto_api import range_length
from iobench.storage.s3.errors import TRANSIENT, Failure, Kind, explain, failure_of_answer
from iobench.storage.s3.storage import S3Storage
from iobench.storage.s3.wire import S3Settings, S3Wire, understood

KEYS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=30)
WORDS = st.text("abcXYZ0123456789+/=-", min_size=1, max_size=30)


def settings(**changed: Any) -> S3Settings:
    usual: dict[str, Any] = {
        "endpoint": "http://server.example:9000",
        "region": "us-east-1",
        "bucket": "bucket",
        "path_style": True,
        "verify": True,
        "timeout": 1.0,
        "credentials": None,
    }
    return S3Settings(**{**usual, **changed})


def parts(request: bytes) -> tuple[str, dict[str, str]]:
    """The first line, and the other lines by their names in small letters."""
    first, *lines = request.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
    return first, {name.lower(): value for name, _, value in (x.partition(": ") for x in lines)}


@given(
    key=KEYS,
    offset=st.integers(0, 1 << 50),
    length=st.integers(1, 1 << 30),
    region=st.sampled_from(["us-east-1", "eu-central-1"]),
    secret=WORDS,
    token=st.none() | WORDS,
    endpoint=st.sampled_from(
        ["http://127.0.0.1:9000", "https://a.example", "https://a.example:443", "http://[::1]:8"]
    ),
    second=st.integers(1_500_000_000, 3_000_000_000),
)
def test_signatures_are_those_of_botocore(
    key: str,
    offset: int,
    length: int,
    region: str,
    secret: str,
    token: str | None,
    endpoint: str,
    second: int,
) -> None:
    credentials = Credentials("an/id", secret, token)
    ours = S3Wire(settings(endpoint=endpoint, region=region, credentials=credentials))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "time", SimpleNamespace(**{**vars(wire.time), "time": lambda: second}))
        first, lines = parts(ours.get(key, offset, length))
    path = first.split(" ")[1]
    theirs = AWSRequest("GET", endpoint + path, headers={"Range": lines["range"]})
    theirs.context["timestamp"] = lines["x-amz-date"]
    theirs.headers["X-Amz-Date"] = lines["x-amz-date"]
    signer = S3SigV4Auth(credentials, "s3", region)
    theirs.headers["X-Amz-Content-SHA256"] = signer.payload(theirs)
    if token:
        theirs.headers["X-Amz-Security-Token"] = token
    to_sign = signer.string_to_sign(theirs, signer.canonical_request(theirs))
    assert lines["authorization"].endswith(f"Signature={signer.signature(to_sign, theirs)}")
    assert lines["authorization"].startswith(
        f"AWS4-HMAC-SHA256 Credential={signer.scope(theirs)}, SignedHeaders="
    )
    names = re.findall("SignedHeaders=([^,]*)", lines["authorization"])[0].split(";")
    assert set(names) == set(lines) - {"authorization"}
    assert lines["range"] == f"bytes={offset}-{offset + length - 1}"
    assert lines.get("x-amz-security-token") == token


def test_credentials_that_were_renewed_sign_from_the_next_second_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1_700_000_000]
    monkeypatch.setattr(
        wire, "time", SimpleNamespace(**{**vars(wire.time), "time": lambda: now[0]})
    )
    current = [Credentials("first", "secret")]
    renewing = SimpleNamespace(get_frozen_credentials=lambda: current[0].get_frozen_credentials())
    signing = S3Wire(settings(credentials=renewing))
    old = parts(signing.get("x", 0, 1))[1]["authorization"]
    current[0] = Credentials("second", "another", "token")
    now[0] += 1
    lines = parts(signing.get("x", 0, 1))[1]
    assert "=first/" in old
    assert "=second/" in lines["authorization"]
    assert lines["x-amz-security-token"] == "token"


@pytest.mark.parametrize(
    ("changed", "line", "host"),
    [
        ({}, "/bucket/a/b%20%C3%BC~", "server.example:9000"),
        ({"endpoint": "https://s.example:443/below/"}, "/below/bucket/a/b%20%C3%BC~", "s.example"),
        ({"endpoint": "http://s.example", "path_style": False}, "", "bucket.s.example"),
        ({"endpoint": "", "path_style": False}, "", "bucket.s3.us-east-1.amazonaws.com"),
        ({"endpoint": ""}, "/bucket/a/b%20%C3%BC~", "s3.us-east-1.amazonaws.com"),
    ],
)
def test_where_a_request_goes(changed: dict[str, Any], line: str, host: str) -> None:
    first, lines = parts(S3Wire(settings(**changed)).get("a/b ü~", 0, 5))
    assert first == f"GET {line or '/a/b%20%C3%BC~'} HTTP/1.1"
    assert lines == {"host": host, "range": "bytes=0-4"}  # anonymous


def head(status: str = "206 Partial Content", *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


SIZE = "Content-Length: 50"


@pytest.mark.parametrize(
    ("answer", "length"),
    [
        (head("206 X", SIZE, "Content-Range: bytes 100-149/900"), 50),
        (head("206 X", "content-length:50", "CONTENT-RANGE:bytes 100-149/150"), 50),
        (head("200 OK", SIZE, "Content-Range: bytes 100-149/900"), 50),  # as rclone answers
        (head("206 X", "Content-Length: 7", "Content-Range: bytes 100-106/107"), 7),  # the end
        (head("206 X", "Content-Length: 7", "Content-Range: bytes 100-106/900"), -1),
        (head("206 X", SIZE, "Content-Range: bytes 101-150/900"), -1),
        (head("206 X", "Content-Length: 51", "Content-Range: bytes 100-150/900"), -1),
        (head("206 X", SIZE, "Content-Range: bytes 100-149/*"), -1),
        (head("206 X", SIZE), -1),
        (head("206 X", "Content-Range: bytes 100-149/900"), -1),
        (head("206 X", SIZE, SIZE, "Content-Range: bytes 100-149/900"), -1),
        (head("206 X", "Content-Length: -5", "Content-Range: bytes 100-149/900"), -1),
        (head("206 X", SIZE, "Content-Range: bytes 100-149/900", "Transfer-Encoding: chunked"), -1),
        (head("200 OK", SIZE), -1),  # the whole object, which is not what was asked for
        (head("204 X", SIZE, "Content-Range: bytes 100-149/900"), -1),
        (head("301 X", SIZE, "Location: elsewhere"), -1),
        (head("503 X", SIZE), -1),
        (head("206 X", SIZE, "Content-Range: bytes 100-149/900").replace(b"1.1", b"1.0"), -1),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", -1),
    ],
)
def test_only_the_plain_good_answer_is_understood(answer: bytes, length: int) -> None:
    assert understood(answer, 100, 50).length == length


def test_a_whole_object_for_a_range_from_its_start() -> None:
    assert understood(head("200 OK", SIZE), 0, 50).length == 50
    assert understood(head("200 OK", SIZE), 0, 51).length == 50  # it ends there
    assert understood(head("200 OK", SIZE), 0, 49).length == -1


def test_an_answer_whose_head_was_cut_off_is_a_lost_connection() -> None:
    """botocore takes what has come of the head for all of it."""
    with pytest.raises(Failure) as caught:
        range_length({"ContentRange": "bytes 0-9/10"}, 0, 10)
    assert caught.value.kind is Kind.LOST


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, ""),
        ({"http_proxy": "http://proxy.example:3128"}, "HTTP proxy"),
        ({"ALL_PROXY": "http://proxy.example:3128"}, "HTTP proxy"),
        ({"https_proxy": "http://proxy.example:3128"}, ""),  # the endpoint speaks http
        ({"http_proxy": "http://proxy.example:3128", "no_proxy": "x.example,server.example"}, ""),
    ],
)
def test_behind_a_proxy_the_library_reads(
    variables: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    url = "s3://bucket/x"
    options = {"endpoint": "http://server.example:9000", "signing": "none"}
    storage = S3Storage.open(url, direct=False, options=options)
    assert told in storage.not_wired()
    assert bool(told) == bool(storage.not_wired())
    other = S3Storage.open(url, direct=False, options={**options, "client": "boto3"})
    assert "boto3" in other.not_wired()


# S3's options as text: what they become, and what is refused in one line. Nothing is contacted


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "NoSuchKey", Kind.MISSING),
        (404, "NoSuchBucket", Kind.NO_BUCKET),
        (403, "", Kind.DENIED),
        (403, "InvalidAccessKeyId", Kind.CREDENTIALS),
        (400, "ExpiredToken", Kind.EXPIRED),
        (409, "ConditionalRequestConflict", Kind.SERVER),
        (503, "SlowDown", Kind.THROTTLED),
        (503, "ServiceUnavailable", Kind.SERVER),
        (429, "", Kind.THROTTLED),
        (301, "PermanentRedirect", Kind.REGION),
    ],
)
def test_answers_have_a_kind(status: int, code: str, kind: Kind) -> None:
    failure = failure_of_answer(status, code, "a\nb")
    assert failure.kind is kind
    assert (kind in TRANSIENT) == (kind in (Kind.SERVER, Kind.THROTTLED))
    what, remedy = explain(failure, "read")
    assert "\n" not in what + remedy
    assert remedy

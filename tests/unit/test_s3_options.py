"""S3's options as text: what they become, and what is refused in one line. Nothing is contacted."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from iobench.storage import open_storage
from iobench.storage.s3.errors import TRANSIENT, Kind, explain, failure_of_answer
from iobench.storage.s3.options import CHOICES, NAMES, parse_options


def test_text_becomes_values(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.touch()
    given = {
        "client": "boto3",
        "endpoint": "https://s3.example.com:9000",
        "region": "eu-central-1",
        "addressing": "virtual",
        "tls_verify": str(bundle),
        "signing": "none",
        "checksum": "when_supported",
        "part_size": "64MiB",
        "timeout": "500ms",
        "retries": "0",
        "deadline": "2min",
    }
    assert set(given) == NAMES, "an option without a test"
    options = parse_options(given)
    assert (options.part_size, options.timeout, options.retries, options.deadline) == (
        64 << 20,
        0.5,
        0,
        120.0,
    )
    facts = options.facts()
    assert facts["part_size_bytes"] == 64 << 20
    assert facts["timeout_s"] == 0.5
    assert {name for name in facts if name in CHOICES} == set(CHOICES)


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
    ],
)
def test_places(url: str, plain: str) -> None:
    storage: Any = open_storage(f"{url}?client=boto3&retries=3")
    assert storage.url == plain
    copy = pickle.loads(pickle.dumps(storage))
    assert (copy.url, copy.options) == (plain, storage.options)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "NoSuchKey", Kind.MISSING),
        (404, "NoSuchBucket", Kind.NO_BUCKET),
        (403, "", Kind.DENIED),
        (403, "InvalidAccessKeyId", Kind.CREDENTIALS),
        (400, "ExpiredToken", Kind.EXPIRED),
        (412, "PreconditionFailed", Kind.EXISTS),
        (409, "ConditionalRequestConflict", Kind.SERVER),
        (416, "InvalidRange", Kind.RANGE),
        (503, "SlowDown", Kind.THROTTLED),
        (503, "ServiceUnavailable", Kind.SERVER),
        (429, "", Kind.THROTTLED),
        (301, "PermanentRedirect", Kind.REGION),
        (418, "Teapot", Kind.OTHER),
    ],
)
def test_answers_have_a_kind(status: int, code: str, kind: Kind) -> None:
    failure = failure_of_answer(status, code, "a\nb")
    assert failure.kind is kind
    assert (kind in TRANSIENT) == (kind in (Kind.SERVER, Kind.THROTTLED))
    what, remedy = explain(failure, "read")
    assert "\n" not in what + remedy
    assert remedy

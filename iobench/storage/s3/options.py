"""The options of an S3 URL. All are recorded in the result, so none of them is a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...base.errors import UsageError, in_option
from ...base.units import parse_duration, parse_size

_MIB = 1 << 20

CHOICES = {
    "client": ("obstore", "s3fs", "boto3"),
    "addressing": ("auto", "path", "virtual"),
    "signing": ("v4", "none"),
    "checksum": ("when_required", "when_supported"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Options:
    """Settings of one S3 storage.

    '' means that the standard chain (environment, shared configuration file) decides.
    """

    client: str = "obstore"  # the library that sends the requests
    endpoint: str = ""
    """http(s)://host[:port]; '': AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or else AWS."""
    region: str = ""
    """'': the first of AWS_REGION, AWS_DEFAULT_REGION, the profile's region, us-east-1."""
    addressing: str = "auto"
    """Where the bucket's name goes. auto: in the host name on AWS, in the path elsewhere."""
    tls_verify: str = "true"  # true, false, or a file of certificates (PEM) to trust
    signing: str = "v4"  # none: anonymous requests
    checksum: str = "when_required"
    """when_supported: send checksums, and verify received ones, wherever the client can."""
    part_size: int = 16 * _MIB  # bytes; a larger object is uploaded in parts of this size
    timeout: float = 20.0
    """Seconds without progress after which a request is given up. A byte now and then is none."""
    retries: int = 10  # maximum number of retries of one request
    deadline: float = 60.0
    """Seconds from the first attempt, in which the last one must end or make progress."""

    def facts(self) -> dict[str, Any]:
        """The settings for the result; names carry their unit."""
        facts = asdict(self)
        for plain, named in (
            ("part_size", "part_size_bytes"),
            ("timeout", "timeout_s"),
            ("deadline", "deadline_s"),
        ):
            facts[named] = facts.pop(plain)
        return facts


NAMES = frozenset(field.name for field in fields(S3Options))


def parse_options(given: Mapping[str, str]) -> S3Options:
    """Settings from the options' texts.

    Raises UsageError in one line that names the option and its possible values.
    """
    values: dict[str, Any] = dict(given)
    for name, known in CHOICES.items():
        if values.get(name, known[0]) not in known:
            raise _wrong(name, given[name], f"one of {', '.join(known)}")
    if "part_size" in values:
        values["part_size"] = in_option("part_size", parse_size, given["part_size"])
        if not 5 * _MIB <= values["part_size"] <= 5 << 30:
            raise _wrong("part_size", given["part_size"], "5MiB to 5GiB, which S3 sets")
    for name in ("timeout", "deadline"):
        if name in values:
            values[name] = in_option(name, parse_duration, given[name])
            if not 0.1 <= values[name] <= 3600:
                raise _wrong(name, given[name], "100ms to 1h")
    if "retries" in values:
        if not re.fullmatch(r"[0-9]{1,3}", given["retries"]):
            raise _wrong("retries", given["retries"], "a whole number, 0 to 999")
        values["retries"] = int(given["retries"])
    if not re.fullmatch(r"[A-Za-z0-9-]{0,40}", values.get("region", "")):
        raise _wrong("region", given["region"], "a region's name, e.g. eu-central-1")
    options = S3Options(**values)
    if options.timeout > options.deadline:
        raise UsageError(
            f"s3 option timeout ({options.timeout:g} s) is greater than "
            f"deadline ({options.deadline:g} s)",
            remedy="raise deadline, or lower timeout",
        )
    check_endpoint(options.endpoint, "s3 option endpoint")
    if options.tls_verify not in ("true", "false") and not Path(options.tls_verify).is_file():
        raise _wrong("tls_verify", options.tls_verify, "true, false or a file of certificates")
    return options


def check_endpoint(endpoint: str, what: str) -> str:
    """The endpoint, if it is '' or ``http(s)://host[:port]`` and nothing more.

    Raises UsageError; its message repeats no credentials.
    """
    if not endpoint:
        return endpoint
    try:
        parts = urlsplit(endpoint)
        usable = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        usable = False
    if "@" in endpoint:
        raise UsageError(
            f"{what} contains credentials",
            remedy="pass them by the environment or the shared credentials file",
        )
    if not usable or parts.query or parts.fragment:
        raise UsageError(
            f"{what} is '{endpoint}'", remedy="write it like https://s3.example.com:9000"
        )
    return endpoint.rstrip("/")


def _wrong(name: str, value: str, expected: str) -> UsageError:
    return UsageError(f"s3 option {name} is '{value[:60]}'", remedy=f"it must be {expected}")
